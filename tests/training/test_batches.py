"""Noise on where the windows of a batch start."""

import pytest
import torch

from tests.training.faulty import Sinking, trainer
from tests.training.swinging import recordings
from torchdismech import InputError
from torchdismech.system.processes import ALONE
from training.config import Config, Noise
from training.data import gather
from training.optimization.batches import noisy_window
from training.optimization.loop import Trainer

NOISE = Noise(position=1e-3, velocity=0.1)


def disturbed(given: int, noise: Noise = NOISE) -> torch.Tensor:
    """Return by how much each frame of three windows (3, 5, N, 3) is moved, for a system with so many given frames."""
    whole, system = recordings(3), Sinking(0.01, set())
    system.given = given
    window = gather(whole, torch.arange(3), torch.zeros(3, dtype=torch.long), 5)
    return noisy_window(window, noise, system, 7, 3, slice(0, 3)).positions - window.positions


@pytest.mark.parametrize("given", [1, 2, 3])
def test_noise_falls_on_the_last_given_frames(given):
    """Move free nodes of the last two of them, or of the only one, alike but for the velocity; no other frame."""
    moved = disturbed(given).abs().amax((0, 2, 3)) > 0
    assert moved.nonzero().flatten().tolist() == list(range(max(given - 2, 0), given))
    assert not bool(disturbed(given)[:, :, 0].any())  # gripped
    last = disturbed(given)[:, given - 1]
    # places of 0.1 m are rounded in the sixteenth digit
    assert torch.allclose(last, disturbed(2)[:, 1], rtol=0, atol=1e-16)
    if given > 1:
        difference = (last - disturbed(given)[:, given - 2]) / 0.01
        assert 0.05 < float(difference[:, 1:].std()) < 0.2  # 45 numbers of standard deviation 0.1


def test_noise_that_a_start_cannot_take_is_refused(tmp_path):
    """Refuse velocities where one frame is given, and noise where none is; take noise on one frame."""

    def fit(given: int, **noise: float) -> None:
        quick = trainer(tmp_path, set(), ALONE)
        quick.system.given = given
        config = Config.model_validate(quick.config.model_dump() | {"noise": noise})
        Trainer(config, quick.system, quick.trained_on, quick.held_out, tmp_path)

    fit(1, position=1e-3)
    with pytest.raises(InputError, match=r"noise.velocity: .* given = 2 or more, got 1: .*noise.position"):
        fit(1, position=1e-3, velocity=0.1)
    with pytest.raises(InputError, match="noise: it is added to measured starts"):
        fit(0, position=1e-3)
