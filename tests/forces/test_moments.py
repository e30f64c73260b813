"""Moments on rods and loads along lines."""

import math

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, InputError, Material, Rectangle, RobotBuilder, meshes, straight
from torchdismech.forces import LineLoad, PointForce, PointMoment
from torchdismech.integrate import ImplicitEuler, ImplicitMidpoint, Static
from torchdismech.model.initial import trial_state
from torchdismech.testing import check_force

LENGTH, RADIUS, YOUNGS = 1.0, 5e-3, 1e7
EI = YOUNGS * math.pi * RADIUS**4 / 4


def rod(*forces, edges=20, section=None, stiffness=None, planar=False):
    """Return a rod along x held at its first node."""
    points, builder = straight((0, 0, 0), (LENGTH, 0, 0), edges + 1), RobotBuilder(planar=planar)
    material = Material(YOUNGS, 1000.0)
    rod_through(points, section or Circle(RADIUS), material, forces, "end", builder, stiffness=stiffness)
    return builder.finalize(compile=False)


def settled(model, parts=1):
    """Return the equilibrium."""
    static = Static(force_tolerance=1e-11, load_steps=parts)
    return static.step(model, model.initial_state(), throw=True)[0]


@pytest.mark.parametrize("frame", ["world", "material"])
def test_derivatives(frame):
    """Match differences over all dofs, where anchors are not where the edges are."""
    per_robot = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.7, -1.1]], dtype=torch.float64)
    model = rod(PointMoment(per_robot[:, None], nodes=[3, 20], frame=frame), edges=20, section=Rectangle(0.01, 0.006))
    rest, moved = model.rest_state(2), trial_state(model.body, model.frames, 2)
    state = rest.replace(q=moved.q, velocity=moved.velocity)  # anchors at rest, edges where chance puts them
    check_force(model.forces[0], model, state).raise_if_failed()


@pytest.mark.parametrize("angle", [0.5, 2 * math.pi])
def test_an_end_moment_rolls_a_rod_up(angle):
    """Bend to an arc, up to a whole turn, by a moment fixed in space about y."""
    edges = 40
    model = rod(PointMoment((0, angle * EI / LENGTH, 0), nodes=[edges]), edges=edges)
    state = settled(model, parts=8)
    tangent = model.frames.tangents(state.q)[0, :edges]
    turned = torch.atan2(-tangent[:, 2], tangent[:, 0]).numpy()
    expected = (np.arange(edges) + 0.5) / edges * angle
    # a spring that should turn by x turns by x (1 - x^2 / 3) under this moment
    off = np.angle(np.exp(1j * (turned - expected)))
    assert np.abs(off).max() < 1.1 * angle * (angle / edges) ** 2 / 3 + 1e-6


def test_which_stiffness_resists_which_moment():
    """m1 is up here, d1 = t x y: EI1 counts for moments about m2, EI2 for those about m1, GJ about the tangent."""
    stiffness, small = {"EI1": 1e-3, "EI2": 2e-3, "GJ": 4e-3}, 1e-6
    for axis, name in ((0, "EI2"), (1, "EI1"), (2, "GJ")):
        moment = small * torch.eye(3, dtype=torch.float64)[axis]
        model = rod(PointMoment(moment, nodes=[20], frame="material"), stiffness=stiffness)
        state = settled(model)
        expected = small / stiffness[name] * (LENGTH - 0.5 * LENGTH / 20)  # to the middle of the last edge
        if name == "GJ":
            found = state.twist[0, 19].item()
        else:
            tangent = model.frames.tangents(state.q)[0, 19]
            found = torch.linalg.vector_norm(tangent[1:]).item()
        assert found == pytest.approx(expected, rel=1e-6), name  # turns of 1e-3 rad: their square over six


def test_a_following_moment_stays_with_the_section():
    """A twisting moment follows the tangent of a rod that is bent by a force: its torque is the same at the clamp."""
    load = PointForce([20], (0.0, 0.0, -2 * EI / LENGTH**2))
    follow = PointMoment((0.0, 0.0, 0.2 * EI / LENGTH), nodes=[20], frame="material")
    model = rod(load, follow)
    static, start = Static(force_tolerance=1e-11, relative_tolerance=0.0, load_steps=4), model.initial_state()
    state, _ = static.step(model, start, throw=True)
    tangent = model.frames.tangents(state.q)[0, 19]
    force, x = torch.tensor([0.0, 0.0, -2 * EI / LENGTH**2], dtype=torch.float64), state.positions[0, 20]
    expected = -(torch.linalg.cross(x, force) + 0.2 * EI / LENGTH * tangent)
    torque = static.reactions(model, state, state)[0, 0, 3:]
    torch.testing.assert_close(torque, expected, rtol=0, atol=1e-9)  # residuals of 1e-11 N up to 1 m away


@pytest.mark.parametrize("integrator", [ImplicitEuler, ImplicitMidpoint])
def test_steps_converge_in_few_iterations(integrator):
    """The matrix of a step with moments is exact: Newton's method is quadratic."""
    model = rod(
        PointMoment((0.1 * EI, EI, 0.3 * EI), edges=[19]), PointMoment((EI, 0, 0), nodes=[10], frame="material")
    )
    state, steps = model.initial_state(), integrator(5e-3, force_tolerance=1e-12, relative_tolerance=0.0)
    for _ in range(5):
        state, info = steps.step(model, state, throw=True)
        assert info.iterations.max() <= 5


def test_moments_have_times():
    """Act between start and stop alone."""
    model = rod(PointMoment((0, EI, 0), nodes=[20], start=0.1, stop=0.2))
    for time, on in ((0.1, False), (0.15, True), (0.2, True), (0.25, False)):
        state = model.rest_state(1).replace(time=torch.tensor([time], dtype=torch.float64))
        assert bool(model.forces[0](state, None).any()) == on


def test_line_loads_are_their_length_times_the_load():
    """On a rod as its weight would be, on the border of a shell as forces at its nodes."""
    load = 1e-3 * EI / LENGTH**3
    state = settled(rod(LineLoad((0, 0, -load), edges=range(20))))
    assert -state.positions[0, -1, 2].item() == pytest.approx(load * LENGTH**4 / (8 * EI), rel=3e-3)  # second order
    mesh = meshes.rectangle(1.0, 0.5, 0.25)
    border = (
        [pair for pair in mesh.edges().tolist() if np.allclose(mesh.nodes[pair, 0], 1.0)]
        if hasattr(mesh, "edges")
        else None
    )
    if border is None:
        at_end = np.flatnonzero(np.isclose(mesh.nodes[:, 0], 1.0))
        order = at_end[np.argsort(mesh.nodes[at_end, 1])]
        border = np.stack([order[:-1], order[1:]], axis=1)
    builder = RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(1e6, 1000.0))
    builder.add_force(LineLoad((0, 0, 2.0), sides=border))
    model = builder.finalize(compile=False)
    force = model.forces[0](model.rest_state(2), None)
    assert force.sum(1).tolist() == pytest.approx([1.0, 1.0])  # 2 N/m on 0.5 m


def test_point_forces_may_differ_from_node_to_node():
    """Put each node's own force on it, per robot."""
    forces = torch.arange(12, dtype=torch.float64).reshape(2, 2, 3)
    model = rod(PointForce([3, 5], forces))
    found = model.forces[0](model.rest_state(2), None)[:, :63].unflatten(1, (-1, 3))
    torch.testing.assert_close(found[:, [3, 5]], forces)
    assert found.abs().sum() == forces.sum()


ROWS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("load", "given", "of_each"),
    [
        (lambda rows: PointForce([3, 5], rows), "PointForce.force", r"node is shape \(1, 2, 3\), force\[None\]"),
        (lambda rows: LineLoad(rows, edges=[3, 5]), "LineLoad.load", "edge is a LineLoad each"),
        (lambda rows: LineLoad(rows, sides=[[3, 4], [6, 7]]), "LineLoad.load", "side is a LineLoad each"),
        (lambda rows: PointMoment(rows, nodes=[3, 5]), "PointMoment.moment", "node is a PointMoment each"),
        (lambda rows: PointMoment(rows, edges=[3, 5]), "PointMoment.moment", "edge is a PointMoment each"),
    ],
)
def test_as_many_loads_as_places_are_refused_unless_they_are_those_of_robots(load, given, of_each):
    """Refuse (2, 3) on two places; take (2, 1, 3) as a load of each robot, the same on both."""
    with pytest.raises(InputError, match=rf"{given}: shape \(2, 3\) for 2 .* is shape \(2, 1, 3\), .*{of_each}"):
        rod(load(ROWS))
    both, alone = rod(load(ROWS[:, None])), [rod(load(row)) for row in ROWS]
    assert both.batch == 2
    found = both.forces[0](both.rest_state(2), None)
    for robot, model in enumerate(alone):
        assert torch.equal(found[robot], model.forces[0](model.rest_state(1), None)[0])
    assert rod(load(torch.cat([ROWS, ROWS]))).batch == 4  # as many as there are robots alone


def test_places_before_loads_are_refused_in_words():
    """Say which comes first where nodes and edges are given in the order of `PointForce`."""
    with pytest.raises(
        InputError, match=r"moment: expected shape .*, got \(1,\); the moment comes first, then its nodes"
    ):
        PointMoment([20], (0, 1e-3, 0))
    with pytest.raises(InputError, match=r"load: expected shape .*, got \(2,\); the load comes first, then its edges"):
        LineLoad([3, 4], (0, 0, 1.0))


def test_refusals():
    """Name what does not fit."""
    for arguments, named in (
        ({}, "either nodes or edges"),
        ({"nodes": [1], "edges": [1]}, "either nodes or edges"),
        ({"nodes": [1], "frame": "body"}, "frame: expected one of 'world', 'material'"),
        ({"nodes": [1], "start": 1.0, "stop": 1.0}, "start has to be before stop"),
    ):
        with pytest.raises(InputError, match=named):
            PointMoment((0, 0, 1), **arguments)
    for force, named in (
        (PointMoment((0, 0, 1), nodes=[21]), "indices 0 to 20"),
        (PointMoment((0, 0, 1), edges=[20]), "indices 0 to 19"),
        (LineLoad((0, 0, 1), edges=[20]), "indices 0 to 19"),
        (LineLoad((0, 0, 1), sides=[[1, 2, 3]]), r"expected pairs of nodes \(k, 2\)"),
        (PointForce([1, 2], torch.zeros(1, 3, 3)), r"expected shape \(3,\), \(B, 3\), \(B, 1, 3\), \(1, 2, 3\) or"),
    ):
        with pytest.raises(InputError, match=named):
            rod(force)
