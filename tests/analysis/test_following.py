"""Equilibrium paths: against closed forms past limit points, branch points, where they end, batches."""

import math
import warnings

import numpy as np
import pytest
import torch

from tests.analysis.structures import LOAD, STIFFNESS, column, truss
from torchdismech import (
    Circle,
    Control,
    InputError,
    Material,
    RobotBuilder,
    Static,
    Status,
    follow,
    forces,
    meshes,
    straight,
)
from torchdismech.analysis.path import load_reversal
from torchdismech.geometry.frames import rotated
from torchdismech.geometry.quaternions import rotation_of_vector


def truss_load(height, stiffness):
    """Return the load that two bars bear at a height, for an energy EA/2 (l/L - 1)^2 L of each."""
    rest = math.sqrt(1.09)
    return 2 * stiffness * height * (1 / (1 + height**2) ** 0.5 - 1 / rest)


def test_two_bars_snap_through():
    """Go over the highest load, down through pulling to the other side, and up again, each robot at its own pace."""
    path = follow(truss(), truss().initial_state(), steps=45, length=0.03, force_tolerance=1e-12)
    assert path.points.tolist() == [46, 46] and not bool(path.reached.any())
    rest = math.sqrt(1.09)
    highest = math.sqrt(rest ** (2 / 3) - 1)
    for robot, stiffness in enumerate(STIFFNESS[:, 0].tolist()):
        height = torch.stack([state.positions[robot, 1, 2] for state in path.states])
        # 1e-8: what bending of 1e-12 N m^2 adds to a load of 0.02 N
        assert (truss_load(height, stiffness) / LOAD - path.load_factor[:, robot]).abs().max() < 2e-8
        assert float(height[-1]) < -0.24
        top = truss_load(torch.tensor(highest), stiffness).item() / LOAD
        # a cubic between points that are 0.03 of the extent apart
        torch.testing.assert_close(path.limits(robot), torch.tensor([top, -top]).double(), rtol=1e-3, atol=0)
        assert path.stable is not None
        between = height.abs() < highest
        assert torch.equal(path.stable[:, robot], ~between)


def test_each_robot_of_a_batch_walks_as_alone():
    """Take the points that the robot alone takes."""
    together = follow(truss(), truss().initial_state(), steps=15)
    for robot in range(2):
        model = truss(STIFFNESS[robot, 0])
        alone = follow(model, model.initial_state(), steps=15)
        # rounding, which 15 points hand on
        torch.testing.assert_close(together.load_factor[:, robot], alone.load_factor[:, 0], rtol=0, atol=1e-10)


def test_a_path_turns_with_the_robot():
    """Take the same points, however the robot and its loads stand in space."""
    angle, paths = np.linspace(-0.4, 0.4, 13), []
    curve = torch.from_numpy(np.stack([np.sin(angle), 0 * angle, np.cos(angle)], axis=1))
    push = torch.tensor([1e-4, 2e-4, -2e-3], dtype=torch.float64)  # N
    for turn in ([0.0, 0.0, 0.0], [0.5, -0.9, 0.7]):
        turned = rotation_of_vector(torch.tensor(turn, dtype=torch.float64))
        builder = RobotBuilder()
        builder.add_rod(curve @ turned.T, Circle(5e-3), Material(1e5, 1000.0))
        builder.clamp(nodes=[0], direction="rest")
        builder.add_force(forces.PointForce([12], turned @ push))
        model = builder.finalize(compile=False)
        paths.append(follow(model, model.initial_state(), steps=8))
    torch.testing.assert_close(paths[1].load_factor, paths[0].load_factor, rtol=0, atol=1e-9)


def arch(nodes: int):
    """A circular arch of 215 degrees and radius 1, clamped and hinged, with a load of 10 EI / R^2 at its crown."""
    half = math.radians(215) / 2
    angle = np.linspace(-half, half, nodes)
    builder = RobotBuilder(planar=True)
    builder.add_rod(
        np.stack([np.sin(angle), 0 * angle, np.cos(angle)], axis=1),
        Circle(0.01),
        Material(1e6, 1000.0),
        stiffness={"EA": 1e5, "EI1": 1.0},
    )
    builder.clamp(nodes=[0], direction=(math.cos(half), 0, math.sin(half)))
    builder.clamp(nodes=[nodes - 1])
    builder.add_force(forces.PointForce([nodes // 2], (0, 0, -10)))
    return builder.finalize(compile=False)


def test_a_deep_arch_buckles_as_dadeppo_and_schmidt_have_it():
    """Turn at 8.97 EI / R^2 (DaDeppo and Schmidt, 1975), of second order in the edges, and become unstable there."""
    loads = []
    for nodes in (61, 121):
        model = arch(nodes)
        path = follow(model, model.initial_state(), steps=28)
        loads.append(10 * path.limits()[0].item())
        falling = path.slope[:, 0] < 0
        assert path.stable is not None and torch.equal(path.stable[:, 0], ~falling)
    assert loads[1] == pytest.approx(8.97, rel=0.01)  # 0.64 % at 120 edges, 2.5 % at 60
    assert (4 * loads[1] - loads[0]) / 3 == pytest.approx(8.97, rel=5e-4)  # published with three digits


def shallow_arch(loads):
    """A shallow arch between clamps, radius 1 and rise .031, of 20 edges, with a load at its crown for each robot."""
    angle = np.linspace(-0.25, 0.25, 21)
    builder = RobotBuilder(planar=True)
    builder.add_rod(np.stack([np.sin(angle), 0 * angle, np.cos(angle)], 1), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 20], direction="rest")
    force = torch.zeros(len(loads), 3, dtype=torch.float64)
    force[:, 2] = -torch.tensor(loads)
    builder.add_force(forces.PointForce([10], force))
    return builder.finalize(compile=False)


@pytest.fixture(scope="module")
def snapping_loads():
    """Return the two loads [N] at which the shallow arch turns, by steps of a tenth of the default."""
    model = shallow_arch([0.5])
    return 0.5 * follow(model, model.initial_state(), steps=400, length=0.005).limits()


def test_a_snap_is_not_stepped_over(snapping_loads):
    """Come to both limits, which are 5 % of the load apart, by the default length: a twentieth of the robot's extent.

    That is more than half of what the crown moves by in all.
    """
    model = shallow_arch([0.5])
    path = follow(model, model.initial_state())
    assert path.reached.tolist() == [True] and len(path.states) < 30
    # 1e-2: cubics between some points a limit, 2e-3 and less
    torch.testing.assert_close(0.5 * path.limits(), snapping_loads, rtol=1e-2, atol=0)
    assert path.stable is not None and torch.equal(path.stable[:, 0], path.slope[:, 0] > 0)
    assert not bool(path.stable.all())


@pytest.mark.parametrize("length", [0.05, 0.2])
def test_a_snap_is_found_whatever_the_whole_load(snapping_loads, length):
    """Come to both limits also where the whole load is forty times the first, and a step of the load is past both."""
    loads = [part * 0.32 for part in (1.5, 2.5, 5.0, 10.0, 20.0, 40.0)]
    model = shallow_arch(loads)
    path = follow(model, model.initial_state(), length=length)
    assert bool(path.reached.all()) and len(path.states) < 30
    for robot, load in enumerate(loads):
        # 1e-2 as above
        torch.testing.assert_close(load * path.limits(robot), snapping_loads, rtol=1e-2, atol=0)


def test_how_far_a_load_goes_back():
    """Measure it for a cubic of two turns, whichever way it goes; it is zero with fewer turns than two."""
    # f = +-(s^3 / 3 - s), which turns at -1 and 1, from -2 on for a length of 4, of 2.5 (one turn), and of .5 (none)
    ends, sign = torch.tensor([2.0, 2.0, 0.5, -1.5]).double(), torch.tensor([1.0, -1.0, 1.0, 1.0]).double()
    start = torch.full_like(ends, -2.0)
    values = [sign * (s**3 / 3 - s) for s in (start, ends)]
    slopes = [sign * (s**2 - 1) for s in (start, ends)]
    back = load_reversal(ends - start, *values, *slopes)
    torch.testing.assert_close(back, torch.tensor([4 / 3, 4 / 3, 0, 0]).double())


@pytest.mark.parametrize(("force", "shorter"), [(1e-3, 0.05), (1e-4, 0.05), (1e-4, 0.01), (1e-7, 0.05)])
def test_small_imperfections_lead_into_a_branch(force, shorter):
    """Bend a rod between clamps that approach each other to the side of a force, however small, and not stay straight.

    The height of the middle is by elastica, 2 L sqrt(short) / pi (1 - short / 8) to the third order, less what coarse
    edges leave.
    """
    nodes, long = 21, 0.1
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (long, 0, 0), nodes), Circle(5e-4), Material(5e7, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.clamp(nodes=[nodes - 1], direction="rest")
    model = builder.finalize(compile=False)
    state = model.initial_state()
    ends, load = state.q.clone(), torch.zeros(1, model.n_dofs, dtype=torch.float64)
    ends[:, 3 * (nodes - 1)] = long * (1 - shorter)
    load[0, 3 * (nodes // 2) + 2] = force
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = follow(model, state, Control(clamped_q=ends, force=load))
    assert path.reached.tolist() == [True] and path.stable is not None and bool(path.stable[: path.points[0]].all())
    height = 2 * long / math.pi * math.sqrt(shorter) * (1 - shorter / 8)
    assert abs(path.states[-1].positions[0, nodes // 2, 2].item() / height - 1) < 0.03
    assert ", 0 of them unstable" in repr(path)


def test_a_straight_column_goes_straight_on():
    """Stay straight beyond Euler's load, and warn that this is no minimum."""
    model = column((0, 0, -1.5 * math.pi**2 / 4), planar=True)
    with pytest.warns(RuntimeWarning, match=r"path of robot 0 is stable no more beyond the load factor 0\.66"):
        path = follow(model, model.initial_state())
    assert path.reached.tolist() == [True] and path.load_factor[-1].item() == 1
    assert path.stable is not None and torch.equal(path.stable[:, 0], 1.5 * path.load_factor[:, 0] < 1)
    assert path.states[-1].positions[0, :, 0].abs().max() < 1e-12  # rounding
    # the column's edges leave 0.05 % of Euler's load
    torch.testing.assert_close(path.branches(), torch.tensor([1 / 1.5]).double(), rtol=2e-3, atol=0)
    unstable = int((~path.stable).sum())
    assert len(path.limits()) == 0
    assert f"1 robot, {unstable} of them unstable, to load factors 1)" in repr(path)
    with pytest.raises(InputError, match="robot: expected one from 0 to 0, got 9"):
        path.limits(robot=9)


def ends_together(model):
    """Bring the ends of a rod together, in the second robot half as far."""
    pose = model.rest_poses.expand(2, -1, -1).clone()
    pose[:, 1, 0] -= torch.tensor([0.3, 0.15], dtype=torch.float64)
    return Control(pose=pose)


@pytest.mark.parametrize("last", [1.0, -1.0])
def test_paths_end_before_they_turn_back(last):
    """End on the near side of a limit point that is barely above the last load, and go over one that is barely below.

    Also with the load the other way and a last load factor of -1.
    """
    above = torch.tensor([[3e-2], [1e-3], [1e-6], [-1e-6], [-1e-3]], dtype=torch.float64)
    highest = math.sqrt(1.09 ** (1 / 3) - 1)
    model = truss(LOAD * (1 + above) / truss_load(highest, 1.0))
    state, whole = model.initial_state(5), torch.zeros(5, model.n_dofs, dtype=torch.float64)
    whole[:, 5] = (1 - last) * LOAD
    path = follow(model, state, Control(force=whole), last=last, steps=60, length=0.2, force_tolerance=1e-12)
    assert bool(path.reached.all()) and path.load_factor[-1].tolist() == pytest.approx([last] * 5, rel=1e-12)
    height = path.states[-1].positions[:, 1, 2]
    assert bool((height[:3] > highest).all()) and bool((height[3:] < 0).all())
    assert path.stable is not None and bool(path.stable[-1].all())
    assert [len(path.limits(robot)) for robot in range(5)] == [0, 0, 0, 2, 2]


def curved(model):
    """Bend a rod by its natural curvature, in the second robot the other way."""
    curvature = torch.zeros(2, len(model.springs), 2, dtype=torch.float64)
    curvature[:, :, 0] = torch.tensor([[0.1], [-0.05]])
    return Control(natural_curvature=curvature)


def pulled(model):
    """Pull at a rod's end by a control's force."""
    force = torch.zeros(2, model.n_dofs, dtype=torch.float64)
    force[:, 30:33] = torch.tensor([[0.0, 1e-3, 2e-3], [1e-3, 0, -3e-3]])
    return Control(force=force)


@pytest.mark.parametrize(("control", "both"), [(ends_together, True), (curved, False), (pulled, False)])
def test_paths_end_where_equilibria_are(control, both):
    """End at the equilibrium that `Static` finds, whatever the control sets."""
    builder = RobotBuilder()
    x = straight((0, 0, 0), (1, 0, 0), 11)
    x[:, 2] += 0.01 * np.sin(np.pi * x[:, 0]) ** 2
    builder.add_rod(x, Circle(0.01), Material(1e6, 1000.0))
    for node in (0, 10) if both else (0,):
        builder.clamp(nodes=[node], direction="rest")
    model = builder.finalize(compile=False)
    state, given = model.initial_state(2), control(model)
    path = follow(model, state, given, length=0.1, force_tolerance=1e-12)
    expected, _ = Static(force_tolerance=1e-12).step(model, state, given, throw=True)
    assert bool(path.reached.all()) and path.stable is not None and bool(path.stable.all())
    # 1e-12 N over the least stiffness, and what frames that are transported in many steps differ by
    torch.testing.assert_close(path.states[-1].positions, expected.positions, rtol=0, atol=1e-8)


@pytest.mark.parametrize("clamp", [{"nodes": [0, 1]}, {"nodes": [0], "direction": "rest"}], ids=["nodes", "direction"])
def test_clamps_turn_as_rigid_bodies(clamp):
    """Turn the clamp of a rod without loads by 120 degrees about a slanted axis: it stays straight all the way.

    The clamp's point goes straight; the second robot begins where it was turned and moved before.
    """
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 4), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(**clamp)
    model = builder.finalize(compile=False)
    angle = math.radians(120)
    axis, half = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64), angle / 2
    pose = model.rest_poses.expand(2, -1, -1).clone()
    pose[:, 0, :3] += torch.tensor([0.0, 0.02, 0.0])
    pose[:, 0, 3:] = torch.cat([torch.tensor([math.cos(half)], dtype=torch.float64), math.sin(half) * axis])
    turned, _ = Static(force_tolerance=1e-12).step(model, model.initial_state(2), Control(pose=pose), throw=True)
    begun = model.initial_state(2).merged(turned, torch.tensor([False, True]))
    pose[1] = model.rest_poses
    path = follow(model, begun, Control(pose=pose), length=0.2, force_tolerance=1e-12)
    assert bool(path.reached.all())
    bending = 1e6 * math.pi / 4 * 2e-3**4 * angle**2 / 0.1  # J: what so much turn would cost
    for f, state in zip(path.load_factor, path.states, strict=True):
        # 1e-9: a residual of 1e-12 N on a rod of .01 N; and what a clamp's axis is found to
        assert max(float(part.max()) for part in model.energies(state).values()) < 1e-9 * bending
        point = state.positions[:, : len(clamp["nodes"])].mean(1)
        way = torch.stack([f[0], 1 - f[1]])[:, None] * torch.tensor([0.0, 0.02, 0.0]).to(point)
        torch.testing.assert_close(point, model.rest_poses[0, :3] + way, rtol=0, atol=1e-12)  # rounding
    tip = path.states[-1].positions[:, -1] - path.states[-1].positions[:, 0]
    expected = torch.stack([rotation_of_vector(angle * axis)[:, 0], torch.tensor([1.0, 0, 0]).to(axis)]) * 0.1
    torch.testing.assert_close(tip, expected, rtol=0, atol=1e-8)  # 1e-12 N over 1e-4 N/m
    # turns about the rod's own axis, in frames that went along a cone: the end of the rod is turned as the clamp is
    state = path.states[-1]
    director = rotated(state.director, state.tangent, state.twist)[0, 2]
    rest = rotation_of_vector(angle * axis) @ model.body.directors[2]
    torch.testing.assert_close(director, rest, rtol=0, atol=1e-6)


def test_the_other_way():
    """Follow a load that points the other way, by a negative load factor."""
    up, down = column((0.3, 0, -1.0)), column((-0.3, 0, 1.0))
    path = follow(up, up.initial_state(), last=-1.0)
    expected = follow(down, down.initial_state())
    assert path.load_factor[-1].item() == -1
    # residuals of 1e-8 N over 1 N/m
    torch.testing.assert_close(path.states[-1].q, expected.states[-1].q, rtol=0, atol=1e-7)


def test_a_shell_snaps_through():
    """Follow a shallow cap under a load at its crown over the top and down, in more unknowns than a band holds."""
    disc = meshes.disc(0.1, 0.025)
    nodes = disc.nodes.copy()
    square = (nodes[:, :2] ** 2).sum(1)
    nodes[:, 2] = 0.02 * (1 - square / 0.01)
    builder = RobotBuilder()
    builder.add_shell(nodes, disc.triangles, 2e-3, Material(1e6, 1000.0, 0.3), "hinge")
    builder.clamp(nodes=np.flatnonzero(square > 0.0999**2).tolist())
    crown = int(square.argmin())
    builder.add_force(forces.PointForce([crown], (0, 0, -0.5)))
    model = builder.finalize(solver="multifrontal", compile=False)
    path = follow(model, model.initial_state(), steps=40, length=0.1)
    height = torch.stack([state.positions[0, crown, 2] for state in path.states])
    assert path.status.tolist() == [Status.CONVERGED] and path.slope.min() < 0 and float(height[-1]) < 0
    for k in range(0, len(path.states), 4):
        balance = Static().equations(model, path.states[k], Control())
        balance.load = balance.load * path.load_factor[k, 0]
        residual = balance.residual(path.states[k].q[:, model.unknowns.index])
        assert residual.norm() < 1e-7  # forces to 1e-8 N, and angles transported anew


def test_loads_without_a_potential():
    """Follow a moment that turns with its section, whose matrix is not symmetric: what is stable is not known."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 11), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.PointMoment((0.002, 0.003, 0.0), edges=[9], frame="material"))
    model = builder.finalize(compile=False)
    path = follow(model, model.initial_state(), force_tolerance=1e-12)
    expected, _ = Static(force_tolerance=1e-12).step(model, model.initial_state(), throw=True)
    assert path.stable is None and path.reached.tolist() == [True]
    torch.testing.assert_close(path.states[-1].q, expected.q, rtol=0, atol=1e-8)  # 1e-12 N over 1e-3 N/m
