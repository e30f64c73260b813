"""Examples that end in numbers."""

import math
from pathlib import Path

import pytest

from examples.hidden_laws.hidden_laws import main as hidden_laws
from examples.identification.identification import TRUTH, identify
from examples.seen_in_part.seen_in_part import main as seen_in_part
from training.config import load

EXAMPLES = Path(__file__).parents[2] / "examples"


CONFIGS = [
    "sim_to_real/cable.toml",
    "sim_to_real/without_physics.toml",
    "hidden_laws/fit.toml",
    "seen_in_part/fit.toml",
]


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_are_valid(name):
    """Accept every field."""
    assert load(EXAMPLES / name).stages


@pytest.mark.slow
def test_identification_finds_what_is_true():
    """Find the four constants within three standard deviations of the mean, which is what the noise leaves."""
    robots = 12
    for name, values in identify(robots=robots, iterations=40).items():
        error = abs(float(values.mean()) - TRUTH[name])
        # the fit of some robots ends before the bottom of the valley: a few per cent remain
        assert error <= 3 * float(values.std()) / robots**0.5 + 0.04 * TRUTH[name], name


@pytest.mark.slow
def test_hidden_laws_are_found(tmp_path):
    """Recover the drag and the stiffening bending law from noisy recordings."""
    found = hidden_laws(tmp_path, [])
    # measured: 0.8 % and 1.7 %; noise and the order of the batches leave room
    assert found["drag"] < 0.1
    assert found["law"] < 0.1


def test_sheet_that_is_seen_in_part_is_fitted(tmp_path):
    """Run the whole example on a few frames: it ends with constants that came nearer to what is true."""
    short = ["iterations=1", "horizon=[2]", "batch=1", "check_every=1"]
    settings = [f"stages.0.{field}" for field in short] + ["start.frames=1", "start.rounds=1"]
    found = seen_in_part(tmp_path, settings, count=2, frames=4)
    assert found["stiffness"][0] == pytest.approx(0.5 * math.exp(0.1), rel=1e-3)  # one step of the optimiser


@pytest.mark.slow
def test_sheet_that_is_seen_in_part_gives_stiffness_and_drag(tmp_path):
    """Recover both from 5 of 16 markers, without knowing any velocity."""
    found = seen_in_part(tmp_path, [])
    # measured: 0.999 and 1.008; noise, and velocities of nodes that nobody saw, leave room
    assert found["stiffness"][0] == pytest.approx(1, abs=0.02)
    assert found["drag"][0] == pytest.approx(1, abs=0.05)
