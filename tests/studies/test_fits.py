"""Studies that fit end in numbers."""

from pathlib import Path

import numpy as np
import pytest

from studies.hidden_laws.hidden_laws import main as hidden_laws
from studies.identification.identification import TRUTH, identify
from studies.seen_in_part.seen_in_part import main as seen_in_part
from studies.trunk_arm import trunk_arm
from torchdismech import InputError
from training.config import load

STUDIES = Path(__file__).parents[2] / "studies"


CONFIGS = [
    "sim_to_real/branched.toml",
    "sim_to_real/cable.toml",
    "sim_to_real/without_physics.toml",
    "hidden_laws/fit.toml",
    "seen_in_part/fit.toml",
    "trunk_arm/fit.toml",
]


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_are_valid(name):
    """Accept every field."""
    assert load(STUDIES / name).stages


@pytest.mark.slow
def test_identification_finds_what_is_true():
    """Find the four constants within three standard deviations of the mean, which is what the noise leaves."""
    robots = 12
    # by the residuals' derivatives at the truth; twelve robots know a standard deviation to 20 %
    bars = {"youngs": 1.67e4, "fluid_density": 1.0, "viscosity": 2.5e-3, "curvature": 2.16e-2}
    for name, values in identify(robots=robots).items():
        assert abs(float(values.mean()) - TRUTH[name]) <= 3 * bars[name] / robots**0.5, name
        assert float(values.std()) == pytest.approx(bars[name], rel=0.6), name


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
    # one step, on two frames that hardly know the stiffness: it was 0.5, and the loss is lower
    assert found["stiffness"][0] != 0.5 and 0.1 < found["stiffness"][0] < 2


@pytest.mark.slow
def test_arm_of_tendons_is_fitted_and_carries_a_payload(tmp_path, monkeypatch):
    """Run the whole example on recordings of an arm that hardly moves: it hangs lower with the payload."""
    monkeypatch.setattr(trunk_arm, "TRAINED", 20)
    angles = 3 * np.sin(0.2 * np.arange(40)[:, None] + np.arange(6))
    discs = np.array([[0.101, -0.105, -0.104], [0.101, -0.105, -0.197], [0.101, -0.105, -0.312]])
    for name in trunk_arm.FILES:
        np.savez(tmp_path / f"{name}.npz", positions=np.tile(discs, (40, 1, 1)), motor_angles=angles)
    stages = len(load(trunk_arm.FOLDER / "fit.toml").stages)
    settings = [f"stages.{k}.{f}" for k in range(stages) for f in ("iterations=1", "batch=1", "check_every=1")]
    settings += ["constants={stretching = {tensors = ['stretch.EA']}}"]
    errors = trunk_arm.main(tmp_path, tmp_path / "out", settings)
    assert max(errors.values()) < 0.01  # m: guesses of constants are no worse than that
    alone, heavier = (trunk_arm.predicted(tmp_path / "out" / "run", "alone", mass) for mass in (0.1, 0.3))
    assert np.nanmean(heavier - alone, axis=0)[2, 2] < -1e-4  # m
    with pytest.raises(InputError, match="no trunk_0g.npz"):
        trunk_arm.recorded(tmp_path / "out")


@pytest.mark.slow
def test_sheet_that_is_seen_in_part_gives_stiffness_and_drag(tmp_path):
    """Recover both from 5 of 16 markers, without knowing any velocity."""
    found = seen_in_part(tmp_path, [])
    for value, spread in found.values():
        assert abs(value - 1) < 3 * spread < 0.02  # measured: 1.000 and 0.998; three error bars
