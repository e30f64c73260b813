"""Damaged configs, checkpoints and recordings of fits: no traceback, no silence, no hang; see `training.py`."""

import pytest

from tests.attacks.training import attacks, tried

COUNT = 100


@pytest.mark.parametrize("share", [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_attacks_are_refused_in_one_sentence_or_right(tmp_path, share):
    """Try each `share`-th of a hundred: most are refused."""
    outcomes = [tried(attack) for k, attack in enumerate(attacks(COUNT, tmp_path)) if k % share == 0]
    bad = [f"{o.name}: {o.attack.kind}: {o.words}" for o in outcomes if o.name not in ("refused", "accepted")]
    assert not bad, "\n".join(bad)
    assert sum(o.name == "refused" for o in outcomes) > 0.8 * len(outcomes)
