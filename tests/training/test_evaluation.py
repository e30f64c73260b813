"""Evaluations: what predictions of recordings that training never saw are compared with."""

import numpy as np
import pytest

from tests.training.swinging import DT, swinging_chain
from tests.training.test_resuming import config
from training.config import Config
from training.fitting import fit
from training.reports.evaluation import evaluate
from training.splits import measured_recordings

SHUFFLE = [0, 3, 1, 4, 2, 5]
REPAIRS = {"unit_scale": "repair", "order": "repair"}


def faulty() -> np.ndarray:
    """Return recordings (6, T, N, 3), of which the last two have a spike and a gap."""
    positions = swinging_chain(6, 12)
    positions[4, 6, 2] += 0.5
    positions[5, 7, 3] = np.nan
    return positions


def of(folder, positions: np.ndarray, **rules) -> Config:
    """Return a fit without a rod to recordings, the last two of which are the split "seen" that it is evaluated on."""
    data = {"path": str(folder / "chain.npz"), "held_out": 0.3, "eval": "seen", "rules": rules}
    quick = config(folder, data=data)
    np.savez(folder / "chain.npz", train=positions[:4], seen=positions[4:], dt=DT)
    return quick.model_copy(update={"stages": [quick.stages[0].model_copy(update={"iterations": 1})]})


def test_what_predictions_are_compared_with_is_in_metres_and_in_order(tmp_path):
    """Repair units and order where the rules say so, and nothing else: gaps and spikes stay as they were measured."""
    found = measured_recordings(of(tmp_path, 1000 * faulty()[:, :, SHUFFLE], **REPAIRS), "seen")
    # a division by 1000 rounds in the last of 16 digits
    assert np.allclose(found.positions, faulty()[4:], rtol=0, atol=1e-12, equal_nan=True)
    assert (~found.valid).nonzero().tolist() == [[1, 7, 3]]


@pytest.mark.slow
def test_evaluation_of_what_was_repaired_is_that_of_what_was_right(tmp_path):
    """Give the errors of the same recordings in metres and in order."""
    found = []
    for name, positions, rules in (
        ("right", faulty(), {}),
        ("wrong", 1000 * faulty()[:, :, SHUFFLE], REPAIRS),
    ):
        (tmp_path / name).mkdir()
        fit(of(tmp_path / name, positions, **rules), tmp_path / name / "run")
        found.append({key: errors.mean for key, errors in evaluate(str(tmp_path / name / "run")).items()})
    right, wrong = found
    assert right["model"] < 0.1
    # the rounding of a division by 1000, which ten steps of a small network carry on
    assert wrong == pytest.approx(right, rel=1e-9)
