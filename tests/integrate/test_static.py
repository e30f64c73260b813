"""Equilibria that a search does not come to at once: membranes under pressure, growth, loads in parts."""

import math

import numpy as np
import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    Material,
    RobotBuilder,
    SimulationError,
    Static,
    forces,
    magnetics,
    meshes,
    straight,
)
from torchdismech.actuation import AtNodes, Chambers, Tendons
from torchdismech.contact import Complementarity, HalfSpace, Obstacle
from torchdismech.errors import Status
from torchdismech.integrate import static
from torchdismech.integrate.equilibria import settling


def membrane(pressures, open_rim=False):
    """Return thin discs, held at their rim or three fifths of it, that are pressed [Pa]."""
    mesh, builder = meshes.disc(0.05, 0.0125), RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, 1e-4, Material(1e7, 1000.0, 0.3))
    rim = np.linalg.norm(mesh.nodes, axis=1) > 0.0499
    builder.clamp(nodes=rim & (mesh.nodes[:, 0] < 0.02) if open_rim else rim, twist=False)
    builder.add_force(forces.Pressure(torch.tensor(pressures, dtype=torch.float64)[:, None]))
    return builder.finalize(compile=False)


def test_pressed_membranes_are_found_at_once():
    """Come to Hencky's deflection in one load step, where the flat disc's first Newton step is metres long."""
    pressures = [100.0, 200.0, 500.0, 1000.0, 2000.0]
    model = membrane(pressures)
    state, info = Static().step(model, model.initial_state(), throw=True)
    assert info.iterations.max() <= 12 and bool(info.stable.all()) and (info.substeps == 1).all()
    ratio = state.positions[:, :, 2].amax(1) / 0.05 / (torch.tensor(pressures) * 0.05 / (1e7 * 1e-4)) ** (1 / 3)
    assert ((ratio - 0.653).abs() < 0.04).all()  # edges of a quarter of the radius, and some bending


def grown(growth, **options):
    """Return a sheet that nothing keeps from growing, its equilibrium, and how that was found."""
    mesh, builder = meshes.rectangle(0.1, 0.02, 0.01), RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(1e7, 1000.0, 0.3))
    x, y = mesh.nodes[:, 0], mesh.nodes[:, 1]
    for node, axes in ((0, "xyz"), (int(np.argmax(x - y)), "yz"), (int(np.argmax(y - x)), "z")):
        builder.clamp(nodes=[node], axes=axes)
    model = builder.finalize(compile=False)
    strain = (growth**2 - 1) / 2
    natural = torch.tensor([strain, strain, 0], dtype=torch.float64).expand(1, len(model.triangles), 3)
    return model, *Static(**options).step(model, model.initial_state(), Control(natural_membrane_strain=natural))


@pytest.mark.parametrize("growth", [1.05, 1.2])
def test_sheets_grow_by_default(growth):
    """Find the grown sheet, without stress, where a search down the potential takes hundreds of steps."""
    model, state, info = grown(growth, max_iterations=20)
    assert info.converged.all() and info.stable.all()
    torch.testing.assert_close(state.positions[0], growth * model.nodes, rtol=0, atol=1e-8)


def test_loads_that_fail_are_taken_in_parts():
    """Take the load of a robot that fails in parts, as if it were alone; the other one takes it as a whole."""
    pressures = [1e-3, 200.0]  # on discs whose rim is held in part, so that their load has no potential
    (after, info), (alone, by_itself) = (
        Static().step(model, model.initial_state(), throw=True)
        for model in (membrane(given, open_rim=True) for given in (pressures, pressures[1:]))
    )
    assert info.stable is None and info.substeps[0] == 1 and info.substeps[1] > 1
    assert by_itself.substeps[0] == info.substeps[1]
    torch.testing.assert_close(after.q[1:], alone.q, rtol=0, atol=1e-8)  # by the tolerance


def test_equilibria_are_not_advised_to_take_a_smaller_dt(monkeypatch):
    """Name load steps, which `Static` has, in the message of what fails."""
    monkeypatch.setattr(settling, "MAX_STEPS", 0)
    model = membrane([2000.0])
    with pytest.raises(SimulationError, match="more iterations, or take more load_steps") as said:
        Static(max_iterations=1).step(model, model.initial_state(), throw=True)
    assert "dt" not in str(said.value) and "substeps" not in str(said.value)


def pulled_magnet(size, magnetization, field, floor):
    """Return a bent rod that a field turns far, its lengths in units of `size`, above a floor or without any."""
    builder, s = RobotBuilder(join_distance=1e-9 * size), np.linspace(0, 1, 9)
    line = size * np.stack([s, 0.15 * np.sin(2 * s), 0.1 * s**2], axis=1)
    builder.add_rod(line, Circle(0.02 * size), Material(2e6, 1100.0, 0.4))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(magnetics.Magnetic(magnetization, field))
    if floor:
        plane = HalfSpace((0, 0, -0.1 * size), (0, 0, 1))
        builder.add_contact(Obstacle(plane, Complementarity(tolerance=1e-7 * size), name="floor"))
    return builder.finalize(compile=False)


@pytest.mark.parametrize(
    ("magnetization", "field", "floor"),
    [((1e4, 0, 5e4), (-0.02, 0.03, -0.03), False), ((5e4, 0, 0), (-0.05, 0, -0.05), True)],
    ids=["free", "on a floor"],
)
def test_equilibria_take_the_same_iterations_in_any_size(magnetization, field, floor):
    """Search alike for robots of metres and of micrometres, whose matrices are indefinite on the way."""
    taken, tips = [], []
    for size in (1.0, 1e-2, 1e-4, 1e-6):  # moduli and stresses are the same in all, so forces go with the area
        model = pulled_magnet(size, magnetization, field, floor)
        state, info = Static(force_tolerance=1e-8 * size**2).step(model, model.initial_state(), throw=True)
        taken.append(int(info.iterations))
        tips.append(state.positions[0, -1] / size)
    assert taken == taken[:1] * 4 and taken[0] < 20
    for tip in tips:
        torch.testing.assert_close(tip, tips[0], rtol=0, atol=1e-6)


def hanging_rod(*moments):
    """Return a rod that hangs down from its clamped end."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 21), Circle(2e-3), Material(1e6, 1000.0, 0.5))
    builder.clamp(nodes=[0, 1])
    for force in (forces.Gravity((0, 0, -9.81)), *moments):
        builder.add_force(force)
    return builder.finalize(compile=False)


TWIST = 1e6 / 3 * np.pi * 2e-3**4 / 2 / 0.2  # N m that turn its end by 1 rad where it is straight


def torque_on_the_end(model, torques):
    """Return the control of torques (B,) on the angle of the last edge."""
    force = torch.zeros(len(torques), model.n_dofs, dtype=torch.float64)
    force[:, 3 * 21 + 19] = torques
    return Control(force=force)


@pytest.mark.parametrize("youngs", [4e6, 7e6])
def test_a_soft_loop_takes_its_load_in_parts(youngs):
    """Come to rest in parts of the load also where the searches for the whole of it took many iterations together."""
    # fmt: off
    spine = [
        (0, 0, 0), (0.064, 0.018, -0.02), (0.127, 0.034, -0.042), (0.19, 0.048, -0.066),
        (0.253, 0.061, -0.094), (0.314, 0.071, -0.125), (0.374, 0.081, -0.158), (0.432, 0.089, -0.194),
    ]
    bow = [
        (0.121, 0.088, -0.001), (0.113, 0.14, 0.041), (0.102, 0.192, 0.082), (0.183, 0.168, 0.026),
        (0.257, 0.146, -0.027), (0.318, 0.128, -0.074), (0.366, 0.113, -0.114), (0.398, 0.102, -0.146),
        (0.418, 0.095, -0.172),
    ]
    # fmt: on
    edges = [[k, k + 1] for k in range(7)] + [[2, 8], *([k, k + 1] for k in range(8, 16)), [16, 7]]
    builder = RobotBuilder()
    builder.add_rods(spine + bow, edges, Circle(3e-3), Material(youngs, 1100.0))
    builder.clamp(nodes=[0, 1])
    builder.clamp(nodes=[7], along=(0.6, 0.07, -0.8))
    builder.add_force(forces.Gravity((0.5, 0.1, -9.6)))
    model = builder.finalize()
    _, info = Static().step(model, model.initial_state(), throw=True)
    assert bool(info.stable) and int(info.substeps) == 8


def soft_rod(rise):
    """Return a builder with a soft rod under gravity that is clamped at one end, and rises at an angle [rad]."""
    builder = RobotBuilder()
    tip = (0.5 * math.cos(rise), 0, 0.5 * math.sin(rise))
    builder.add_rod(straight((0, 0, 0), tip, nodes=13), Circle(5e-3), Material(3e4, 1100.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    return builder


@pytest.mark.parametrize("rise", [0.0, 1.2])
def test_a_soft_rod_comes_to_rest_under_a_moment(rise):
    """Settle where the load fails in parts, too, and come to what many shares lead to."""
    builder = soft_rod(rise)
    builder.add_force(forces.PointMoment((0.0, 0.0, 3.5e-4), nodes=[12]))
    model = builder.finalize()
    after, _ = Static().step(model, model.initial_state(), throw=True)
    slowly, _ = Static(load_steps=20).step(model, model.initial_state(), throw=True)
    torch.testing.assert_close(after.positions, slowly.positions, rtol=0, atol=1e-7)


def test_a_soft_arm_comes_to_rest_under_pressure():
    """Settle where a search down the potential takes more than `max_iterations`, which are far less than `Static`'s."""
    builder = soft_rod(1.2)
    builder.add_force(Chambers([AtNodes(range(1, 13), (0, 5e-3, 0))], area=1e-5, pressure=600.0))
    model = builder.finalize()
    after, info = Static(max_iterations=40).step(model, model.initial_state(), throw=True)
    enough, searched = Static().step(model, model.initial_state(), throw=True)
    assert info.stable.all() and searched.iterations > 40
    torch.testing.assert_close(after.positions, enough.positions, rtol=0, atol=1e-7)


def test_bicgstab_goes_down_the_potential():
    """Bend a wavy finger by its tendon in about as few iterations as a direct solver, where a search may go uphill."""
    s, found = np.linspace(0, 0.2, 13), []
    for solver in ("banded", "bicgstab"):
        builder = RobotBuilder(planar=True)
        line = np.stack([s, 0 * s, 0.01 * np.sin(4 * np.pi * s / 0.2)], axis=1)
        builder.add_rod(line, Circle(4e-3), Material(1e6, 1100.0))
        builder.clamp(nodes=[0], direction="rest")
        builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
        builder.add_force(Tendons([AtNodes(range(1, 13), (0, 0, -4e-3))], tension=1.0))
        model = builder.finalize(solver=solver, compile=False)
        after, info = Static().step(model, model.initial_state(), throw=True)
        found.append(after.positions)
        assert info.iterations < 20
    torch.testing.assert_close(*found, rtol=0, atol=1e-8)


def test_a_torque_turns_with_its_edge():
    """Come to the equilibrium of a moment that turns with the section, from any start and in any number of shares."""
    model, torques = hanging_rod(), TWIST * torch.tensor([0.0, -0.3, 3.0], dtype=torch.float64)
    moment = torch.zeros(3, 3, dtype=torch.float64)
    moment[:, 2] = torques
    other = hanging_rod(forces.PointMoment(moment[:, None], edges=[19], frame="material"))
    expected, _ = Static(force_tolerance=1e-11).step(other, other.initial_state(batch=3), throw=True)
    control, start = torque_on_the_end(model, torques), model.initial_state(batch=3)
    for shares in (1, 4):
        state, info = Static(shares, force_tolerance=1e-11).step(model, start, control, throw=True)
        assert torch.allclose(state.positions, expected.positions, rtol=0, atol=1e-8)
        assert bool(info.stable.all())
    again, info = Static(force_tolerance=1e-11).step(model, state, control, throw=True)
    assert torch.allclose(again.q, state.q, rtol=0, atol=1e-7) and info.iterations.max() <= 2


def test_gradients_by_a_torque_that_turns_with_its_edge():
    """Differentiate the equilibrium, not the last search for it."""
    model, precise = hanging_rod(), Static(force_tolerance=1e-13, relative_tolerance=0.0)

    def tip(torque):
        state, _ = precise.step(model, model.initial_state(), torque_on_the_end(model, torque), throw=True)
        return state.positions[0, -1, 1] + state.twist[0, 10]

    torque = torch.tensor([TWIST], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(tip(torque), torque)
    with torch.no_grad():
        ahead, behind = tip(torque * (1 + 1e-4)), tip(torque * (1 - 1e-4))
    assert float(slope) == pytest.approx(float((ahead - behind) / (2e-4 * TWIST)), rel=1e-5)


def test_torques_under_which_edges_never_stay(monkeypatch):
    """Fail, and name the moment that does the same, where repeated searches do not come to rest."""
    monkeypatch.setattr(static, "MOST_FOLLOWING", 3)
    model = hanging_rod()
    control = torque_on_the_end(model, torch.tensor([0.0, TWIST], dtype=torch.float64))
    with pytest.warns(RuntimeWarning, match=r"PointMoment.*frame='material'"):
        _, info = Static(force_tolerance=1e-11).step(model, model.initial_state(batch=2), control)
    assert info.status.tolist() == [Status.CONVERGED, Status.MAX_ITERATIONS]
