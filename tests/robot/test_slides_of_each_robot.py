"""Robots of a batch that slide along lines of their own."""

import pytest
import torch

from tests.robot.sliding_arches import EXACT, INTEGRATORS, arch, moved
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    modes,
    straight,
)

LINES = torch.tensor([[1.0, 0, 0.3], [-0.8, 0.2, 0.4], [2.0, 0, 0]], dtype=torch.float64)
NORMALS = torch.tensor([[0.0, 1, 0.2], [0.3, 1, 0], [0, 1, 0]], dtype=torch.float64)
YOUNGS = torch.tensor([[1e6], [3e6], [2e6]], dtype=torch.float64)


def on_own_ways(robots=slice(None), **options):
    """Return arches each of whose ends slides along a line of its own, in the middle in a plane of its own.

    The last robot's are those of axes.
    """
    lines, normals, youngs = LINES[robots], NORMALS[robots], YOUNGS[robots]
    if isinstance(robots, int):
        youngs = youngs[0]
    return arch(ways=(lines, normals), youngs=youngs, **options)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_each_robot_may_slide_along_its_own_line(integrator):
    """Move each robot as the model of its own line and plane does; lines along axes are those of axes."""
    together = moved(on_own_ways(), integrator)
    for k in range(3):
        alone = moved(on_own_ways(k), integrator)
        # a residual of 1e-13 N over the arch's stiffness of 0.1 N/m in each of 12 steps; forces by stiffnesses of
        # 1e4 N/m; where a line is along an axis it is held as an axis is when the robot is alone
        torch.testing.assert_close(together[0][k : k + 1], alone[0], rtol=0, atol=1e-11)
        torch.testing.assert_close(together[1][k : k + 1], alone[1], rtol=0, atol=1e-10)
    assert on_own_ways(2).unknowns.slides.none and on_own_ways().batch == 3


@pytest.mark.parametrize("contact", ["floor", "rods", "constraints"])
def test_robots_on_their_own_lines_touch_as_alone(contact):
    """Widen patterns for what touches, find the loads of constraints, and feel clamps, as each robot alone does."""
    positions, wrenches, _ = moved(on_own_ways(contact=contact), ImplicitEuler)
    for k in range(3):
        alone = moved(on_own_ways(k, contact=contact), ImplicitEuler)
        torch.testing.assert_close(positions[k : k + 1], alone[0], rtol=0, atol=1e-9)  # constraints hold gaps to that
        torch.testing.assert_close(wrenches[k : k + 1], alone[1], rtol=0, atol=1e-5)  # that, by 1e4 N/m of the rod


def test_one_line_given_as_that_of_one_robot_is_that_of_all():
    """Find the same reactions beside constraints for all robots of a batch whose only line is (1, 3)."""
    model, method = on_own_ways(slice(1), contact="constraints"), ImplicitEuler(0.01, **EXACT)
    before = model.initial_state(batch=2)
    after, _ = method.step(model, before, throw=True)
    found = method.reactions(model, before, after)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)  # forces, as above


@pytest.mark.parametrize("options", [{"mass": "consistent"}, {"solver": "dense"}, {"solver": "pcg"}], ids=str)
def test_own_lines_by_other_masses_and_solvers(options):
    """Be those of the robots alone with masses that couple nodes, and by every kind of solver."""
    together = moved(on_own_ways(**options), Newmark)[0]
    for k in range(3):
        alone = moved(on_own_ways(k, **options), Newmark)[0]
        torch.testing.assert_close(together[k : k + 1], alone, rtol=0, atol=1e-11)  # as above


def test_equilibria_and_modes_on_their_own_lines():
    """Hang and vibrate as each robot alone does; say of each what nothing holds."""
    model = on_own_ways()
    state, info = Static(force_tolerance=1e-12).step(model, model.initial_state(), throw=True)
    found = modes(model, state, 6).eigenvalue
    for k in range(3):
        single = on_own_ways(k)
        alone, told = Static(force_tolerance=1e-12).step(single, single.initial_state(), throw=True)
        torch.testing.assert_close(
            state.positions[k : k + 1], alone.positions, rtol=0, atol=1e-9
        )  # 1e-12 N over 0.01 N/m
        torch.testing.assert_close(found[k : k + 1], modes(single, alone, 6).eigenvalue, rtol=1e-7, atol=0)
        assert bool(info.stable[k]) == bool(told.stable)
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 4), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 3], along=[(0, 1, 0), (0, 0, 1)])
    builder.add_force(forces.PointForce([1], (0, 0, 1.0)))
    loose = builder.finalize(compile=False)
    with pytest.raises(InputError, match="nothing holds the robot along z, where its loads pull with 1 N"):
        Static().step(loose, loose.initial_state())
    running = torch.tensor([True, False])  # that one's line is across the load
    Static().step(loose, loose.initial_state(), running=running, throw=True)


@pytest.mark.parametrize("integrator", [ImplicitEuler, Static])
def test_gradients_on_own_lines_are_those_alone(integrator):
    """Differentiate each robot by its own stiffness, in parts of the batch, too, as the robot alone."""
    method = integrator(**EXACT) if integrator is Static else integrator(0.01, **EXACT)
    for options in ({}, {"chunk": 2}):
        method.chunk = options.get("chunk", "auto")
        gradients = []
        for robots in (slice(None), 0, 1, 2):
            model = on_own_ways(robots)
            stiffness = model.term("bend_twist").energy.EI1.requires_grad_(True)
            after, _ = method.step(model, model.initial_state(), throw=True)
            after.positions[:, 8].sum().backward()
            gradients.append(stiffness.grad.reshape(3 if isinstance(robots, slice) else 1, -1).sum(1))
        torch.testing.assert_close(gradients[0], torch.cat(gradients[1:]), rtol=1e-7, atol=0)


@pytest.mark.slow
def test_compiled_steps_on_own_lines():
    """Take compiled steps as those that are not."""
    found = {}
    for compiled in (False, True):
        model = on_own_ways(compile=compiled)
        found[compiled] = moved(model, Newmark)[0]
    torch.testing.assert_close(found[True], found[False], rtol=0, atol=1e-12)  # rounding of sums


def test_own_lines_that_do_not_fit_are_refused():
    """Name the node whose lines are fewer in one robot, and clamps of unlike numbers of robots."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 4), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[3], normal=[(0, 0, 1), (0, 1, 0)])
    builder.clamp(nodes=[3], normal=(0, 0, 1))
    with pytest.raises(InputError, match="node 3 moves in 1 or 2 directions, from robot to robot"):
        builder.finalize()
    builder.clamp(nodes=[2], along=[(1, 0, 0)] * 3)
    with pytest.raises(InputError, match="directions of 2 and of 3 robots"):
        builder.finalize()
    with pytest.raises(InputError, match=r"clamp.along\[1\]: expected a vector \(3,\) other than zero"):
        builder.clamp(nodes=[1], along=[(1, 0, 0), (0, 0, 0)])
