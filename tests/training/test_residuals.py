"""Derivatives of residuals: of all kinds of constants at once as of one after the other."""

import numpy as np
import pytest
import torch

from tests.training.beams import DT, SCENE, system_of, window_of
from training.data import read
from training.optimization import residuals
from training.optimization.residuals import STEP, Residual, fitted_numbers


def one_by_one(residual: Residual, numbers) -> torch.Tensor:
    """Return the derivatives (B, T, C, P) by moving the parameters themselves."""
    found = []
    for number in numbers:
        flat, ends = residual.system.entries[number.entry].parameter.data.view(-1), []
        before = flat[number.index].clone()
        for sign in (1, -1):
            flat[number.index] = before + sign * STEP * number.unit
            ends.append(residual()[0])
        flat[number.index] = before
        found.append((ends[0] - ends[1]) / (2 * STEP))
    return torch.stack(found, dim=-1)


def shift(*tensors: str, unit: float = 1e-3, **more) -> dict:
    """Return an entry that shifts tensors, each element by itself."""
    return {"tensors": list(tensors), "kind": "shift", "unit": unit, "per": "element", **more}


FROM_REST = {
    "bending": {"tensors": ["bend_twist.EI1", "bend_twist.EI2"], "per": "element"},
    "twisting": {"tensors": ["bend_twist.GJ"]},
    "curvature": shift("bend_twist.natural_kappa1", unit=0.5),
    "length": shift("stretch.rest_length", elements=[1]),
    "drag": {"tensors": ["Viscous.viscosity"]},
    "gravity": shift("Gravity.acceleration", unit=0.1, elements=[1, 2]),
    "payload": shift("added_mass", elements=[3], mean=1e-3, spread=2e-3),
    "channels": shift("Tendons.offset", elements=[1, 8]),
    "pretension": {"tensors": ["Tendons.pretension"]},
    "spring": {"tensors": ["Tendons.stiffness"], "per": "element"},
    "soil": {"tensors": ["ground.stiffness"]},
    "pulled": {"tensors": ["pull.gain", "pull.offset"], "kind": "shift", "unit": 1e-3},
    "origin": shift("markers.position", elements=[0, 2]),
    "axes": shift("markers.rotation", unit=0.05, elements=[1]),
}
SETTLED = {
    "base": shift("clamp0.position", elements=[0]),
    "tilt": shift("clamp0.rotation", unit=0.05, elements=[1]),
    "gain": shift("pull.gain"),
    "offset": shift("pull.offset"),
}
SCENERY = """
[[tendon]]
nodes = [1, 2, 3]
offset = [0.0, 0.005, 0.01]
pull = 0.0
stiffness = 50.0
pretension = 0.2
[[obstacle]]
shape = "plane"
name = "ground"
point = [0.0, 0.0, -0.004]
normal = [0.0, 0.0, 1.0]
stiffness = 100.0
"""


MAGNETISED = SCENE.replace("[rod]", "[rod]\nmagnetisation = [8e4, 0.0, 5e4]")
IN_GRADIENT = {
    "magnet": {"tensors": ["Magnetic.magnetisation"]},
    "gradient": shift("Magnetic.field.gradient", unit=0.1, elements=[0, 8]),
    "field": shift("Magnetic.field.value", unit=0.01, elements=[2]),
}
GRADIENT = """
[magnetic.gradient]
value = [0.0, 0.0, 0.02]
gradient = [[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, -1.0]]
"""
OVER_TIME = {
    "magnet": shift("Magnetic.magnetisation", unit=1e5, elements=[0, 5]),
    "magnets": {"tensors": ["Magnetic.field.rows"]},
    "push": shift("push.displacements", unit=1e-4, elements=[2]),
}
TABLE = """
[magnetic]
file = "field.csv"
[[obstacle]]
shape = "plane"
name = "push"
point = [0.0, 0.0, -0.004]
normal = [0.0, 0.0, 1.0]
stiffness = 100.0
velocity = [0.0, 0.0, 0.01]
"""
CASES = {
    "rest": ("rest", FROM_REST, SCENE + SCENERY),
    "settled": ("settled", SETTLED, SCENE + SCENERY),
    "gradient": ("rest", IN_GRADIENT, MAGNETISED + SCENERY + GRADIENT),
    "over time": ("rest", OVER_TIME, MAGNETISED + SCENERY + TABLE),
}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_constant_may_differ_from_robot_to_robot(folder, monkeypatch, case):
    """Predict with all constants apart in one batch, and get the numbers of one prediction after the other."""
    start, constants, scene = CASES[case]
    (folder / "beam.toml").write_text(scene)
    (folder / "field.csv").write_text("time,Bx,By,Bz\n0,0,0,0.01\n0.01,0,0,0.03\n0.5,0,0,0.03\n")
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    drives = {"pull": {"sets": "Tendons.pull", "gain": 2e-3}}
    system = system_of(folder, data=data, drives=drives, constants=constants, start={"state": start})
    residual, numbers = Residual(system, window_of(folder, 2, inputs=("pull",))), fitted_numbers(system)
    before = {name: entry.parameter.detach().clone() for name, entry in system.entries.items()}
    monkeypatch.setattr(residuals, "ROBOTS", 80)  # 13 numbers at a time, as there are three windows
    found = residual.linearized(numbers)
    assert found.good.all() and all(torch.equal(e.parameter, before[name]) for name, e in system.entries.items())
    # each row does the same sums, but Newton's method goes on until all rows have converged, to 1e-6 of forces
    torch.testing.assert_close(found.jacobian, one_by_one(residual, numbers), rtol=1e-5, atol=1e-8)
    moved = dict(zip((n.entry for n in numbers), found.jacobian.abs().amax((0, 1, 2)).tolist(), strict=True))
    assert all(size > 1e-7 for size in moved.values()), moved  # m: each shows


def test_fitted_starts_are_derived_by_as_well(folder, monkeypatch):
    """Move each number of the starts, those of all recordings at once, whatever the size of the batch."""
    markers = {"nodes": [2, 3]}
    positions = np.load(folder / "beam.npz")["train"][:, :, 2:]
    np.savez(folder / "beam.npz", train=positions, dt=DT)
    system = system_of(folder, start={"velocity": "fitted", "spread": 0.1}, markers=markers)
    window = window_of(folder).replace(start=torch.full((3, system.start_size), 0.3, dtype=torch.float64))
    residual, expected = Residual(system, window), []
    for k in range(system.start_size):
        ends = []
        for sign in (1, -1):
            start = window.start.clone()
            start[:, k] += sign * STEP
            ends.append(Residual(system, window.replace(start=start))()[0])
        expected.append((ends[0] - ends[1]) / (2 * STEP))
    for robots in (12, 384):
        monkeypatch.setattr(residuals, "ROBOTS", robots)
        found = residual.linearized(fitted_numbers(system)).starts
        assert found is not None and torch.equal(found.start, window.start)
        torch.testing.assert_close(found.jacobian, torch.stack(expected, dim=-1), rtol=1e-6, atol=1e-10)


def test_windows_of_which_a_prediction_fails_do_not_count(folder, monkeypatch):
    """Leave a window out where one side of one difference fails, and keep the others."""
    system = system_of(folder)
    recordings = read(folder / "beam.npz", "train")
    residual = Residual(system, window_of(folder))
    whole = residual.linearized(fitted_numbers(system))
    predict, calls = system.predict, []

    def failing(window, checkpoint_every=None):
        found = predict(window)
        calls.append(len(found.status))
        if len(calls) == 2:  # the second row of those a step higher
            found.status[1] = 1
        return found

    monkeypatch.setattr(system, "predict", failing)
    found = residual.linearized(fitted_numbers(system))
    assert found.good.tolist() == [True, False, True] and len(recordings) == 3
    assert not found.measured[1].any() and not found.residual[1].any() and not found.jacobian[1].any()
    assert torch.equal(found.jacobian[::2], whole.jacobian[::2])


def test_derivatives_beside_a_bound_are_one_sided(folder):
    """Differentiate by a drag that is nearly zero and must not fall below it, as its derivative by autograd says."""
    (folder / "beam.toml").write_text(SCENE.replace("viscosity = 0.05", "viscosity = 1e-6"))
    drag = {"tensors": ["Viscous.viscosity"], "kind": "shift", "unit": 0.01}
    system = system_of(folder, constants={"drag": drag})
    residual = Residual(system, window_of(folder))
    found = residual.linearized(fitted_numbers(system)).jacobian[..., 0]
    assert system.entries["drag"].parameter.item() == 0.0  # where it was
    (parameter,) = system.entries["drag"].change.parameters()
    positions = system.predict(window_of(folder)).positions[0, -1, 3, 2]
    (expected,) = torch.autograd.grad(positions, parameter)
    assert float(found[0, -1, 11]) == pytest.approx(float(expected), rel=1e-3)
