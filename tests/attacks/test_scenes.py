"""Mutated scenes are refused by name or run; see scenes.py for what is done to them."""

import pytest

from tests.attacks.scenes import tried

COUNT = 600


def assert_good(found: dict[tuple[str, str], list[str]], count: int, fewest: int) -> None:
    """Find nothing but refusals by name and runs, and enough refusals of each kind that cannot be right."""
    bad = [detail for (_, name), details in found.items() if name not in ("refused", "ran") for detail in details]
    assert not bad, "\n".join(bad)
    assert sum(map(len, found.values())) == count
    refused = sum(len(details) for (_, name), details in found.items() if name == "refused")
    ran = sum(len(details) for (_, name), details in found.items() if name == "ran")
    assert refused >= fewest and ran > 0


def test_some_mutated_scenes_are_refused_or_run(tmp_path):
    """Try every 13th of the mutants, which are of all kinds."""
    assert_good(tried(COUNT, tmp_path, step=13), -(-COUNT // 13), 30)


@pytest.mark.slow
def test_all_mutated_scenes_are_refused_or_run(tmp_path):
    """Try all mutants: in about a minute and a half, 500 are refused by name and 100 run."""
    assert_good(tried(COUNT, tmp_path), COUNT, 450)
