"""What a look at held-out recordings finds."""

from types import SimpleNamespace

import pytest
import torch

from torchdismech.system.processes import ALONE
from training.data import Recordings
from training.optimization.validation import Validation
from training.reports.predictions import OpenLoop


@pytest.mark.parametrize("frames", [4, 5, 9])
def test_learned_share_is_of_predicted_frames_at_their_own_time(frames):
    """Hand the system two predicted frames with the inputs, the time and the history of just these frames."""
    positions = torch.randn(2, frames, 3, 3, dtype=torch.float64)
    number = torch.arange(frames, dtype=torch.float64)
    inputs = number[:, None].expand(2, frames, 1)
    recordings = Recordings(positions, 0.5, ("a", "b"), torch.ones(2, frames, 3, dtype=torch.bool), inputs, ("number",))
    windows = []
    system = SimpleNamespace(
        given=2, measured=True, history=lambda recordings: {"number": recordings.inputs}, learned_share=windows.append
    )
    predicted = OpenLoop(positions[:, 2:] + 100, torch.ones(2, dtype=torch.bool), None)
    Validation(system, 1.0, recordings, recordings, ALONE, None).learned_share(predicted)
    (window,) = windows
    first = int(window.inputs[0, 0, 0])
    assert 2 <= first <= frames - 2
    assert torch.equal(window.positions, positions[:, first : first + 2] + 100)
    assert torch.equal(window.inputs[0, :, 0], number[first : first + 2])
    assert window.time.tolist() == [0.5 * first] * 2
    assert torch.equal(window.history["number"], torch.full((2, 1), float(first), dtype=torch.float64))


def test_learned_share_needs_two_predicted_frames():
    """Return none of recordings that have a single frame to predict."""
    positions = torch.zeros(1, 3, 3, 3, dtype=torch.float64)
    recordings = Recordings(positions, 0.5, ("a",), torch.ones(1, 3, 3, dtype=torch.bool))
    predicted = OpenLoop(positions[:, 2:], torch.ones(1, dtype=torch.bool), None)
    system = SimpleNamespace(given=2, measured=True)
    assert Validation(system, 1.0, recordings, recordings, ALONE, None).learned_share(predicted) is None
