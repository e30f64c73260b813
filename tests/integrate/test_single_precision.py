"""Steps and equilibria in single precision end where those in double precision do, not where rounding begins."""

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    Status,
    analysis,
    forces,
    meshes,
    straight,
)
from torchdismech.contact import Barrier, Friction, HalfSpace, Obstacle, Penalty
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.solve.noise import settled

GRAVITY = (0.0, 0.0, -9.81)


def rod(dtype, nodes=41, youngs=1e7):
    """Return a clamped rod whose weight is less than the rounding of its stretching forces in single precision."""
    points = straight((0, 0, 0), (0.3, 0, 0), nodes)
    return rod_through(points, Circle(5e-3), Material(youngs, 1100.0), [forces.Gravity(GRAVITY)]).finalize(dtype=dtype)


def plate(dtype, bending):
    """Return a plate that is held at one side."""
    mesh, builder = meshes.rectangle(0.2, 0.2, 0.025, "right"), RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(1e6, 1200.0, 0.3), bending=bending)
    builder.clamp(nodes=np.flatnonzero(mesh.nodes[:, 0] < 1e-9).tolist())
    builder.add_force(forces.Gravity(GRAVITY))
    return builder.finalize(dtype=dtype)


def lying(dtype):
    """Return a soft rod that falls on a rough floor, one end first."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.006), (0.3, 0, 0.02), 21), Circle(5e-3), Material(1e6, 1100.0))
    builder.add_force(forces.Gravity(GRAVITY))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(200.0, 1e-3), Friction(0.4, 1e-3)))
    return builder.finalize(dtype=dtype)


def difference(make, rule, steps=1):
    """Return how far nodes are from those in double precision after steps, at most [m]."""
    ends = []
    for dtype in (torch.float64, torch.float32):
        model = make(dtype)
        state = model.initial_state()
        with torch.no_grad():
            for _ in range(steps):
                state, _ = rule.step(model, state, throw=True)
        ends.append(state.positions.double())
    return float((ends[0] - ends[1]).abs().max())


# Positions of 0.3 m are rounded by 1.5e-8 m. Over edges of h that is a curvature of 1.5e-8 / h^2, at random: 1e-6 to
# 1e-5 m at the tip. Where a search ended within the rounding of stretching forces it was 6 to 150 mm away.


@pytest.mark.parametrize("integrator", [ImplicitEuler(5e-3), ImplicitMidpoint(5e-3)], ids=["euler", "midpoint"])
def test_robots_stay_in_single_precision_where_torch_makes_tensors_in_double(integrator):
    """Step a robot in float32 where the default of torch is float64, to the same bits as with float32 as default."""
    model, found = rod(torch.float32, 11), []
    before = torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            state = model.initial_state(1)
            for _ in range(3):
                state, _ = integrator.step(model, state, throw=True)
        finally:
            torch.set_default_dtype(before)
        found.append(state.q)
    assert torch.equal(*found)


@pytest.mark.parametrize(("nodes", "youngs"), [(21, 1e7), (41, 1e7), (81, 3e6), (81, 3e7)])
def test_equilibria_of_rods(nodes, youngs):
    """Let rods hang whose weight is hidden by the rounding of their stretching forces."""
    assert difference(lambda dtype: rod(dtype, nodes, youngs), Static()) < 3e-5


def test_paths_of_equilibria():
    """Let gravity grow; single precision has to tell the rod's bending from a free motion, so it has few nodes."""
    tips = []
    for dtype in (torch.float64, torch.float32):
        model = rod(dtype, 21)
        path = analysis.follow(model, model.initial_state())
        assert path.status.tolist() == [Status.CONVERGED]
        tips.append(float(path.states[-1].positions[0, -1, 2]))
    assert abs(tips[0] - tips[1]) < 3e-5


@pytest.mark.parametrize("rule", [ImplicitEuler(1e-2), ImplicitMidpoint(5e-3), Newmark(5e-3), BDF2(5e-3)])
def test_steps_of_rods(rule):
    """Take steps until they are recorded, and more."""
    assert difference(rod, rule, 25) < 3e-5


def test_parts_that_stand_far_apart():
    """Judge steps beside the size of a part."""

    def two_rods(dtype):
        builder = RobotBuilder()
        for y in (0.0, 10.0):
            nodes = builder.add_rod(straight((0, y, 0), (0.3, y, 0), 21), Circle(5e-3), Material(1e7, 1100.0))
            builder.clamp(nodes=[int(nodes[0])], direction="rest")
        builder.add_force(forces.Gravity(GRAVITY))
        return builder.finalize(dtype=dtype)

    assert difference(two_rods, Static()) < 3e-5


def test_a_barrier_out_of_reach():
    """Stand by the same, where each iterate has noise of its own."""

    def above(dtype):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 101), Circle(2e-3), Material(1e7, 1100.0))
        builder.clamp(nodes=[0], direction="rest")
        builder.add_force(forces.Gravity(GRAVITY))
        builder.add_contact(Obstacle(HalfSpace((0, 0, -1), (0, 0, 1)), Barrier(20.0, 1e-3)))
        return builder.finalize(dtype=dtype)

    assert difference(above, Static()) < 3e-5


def test_a_barrier_within_reach(monkeypatch):
    """Lie on a barrier, in recorded steps: what is left of a residual there is noise after the first iteration."""

    def lying_on_it(dtype):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0.02), (0.5, 0, 0.02), 41), Circle(5e-3), Material(1e6, 1000.0))
        builder.add_force(forces.Gravity(GRAVITY))
        builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Barrier(10.0, 1e-3)))
        return builder.finalize(dtype=dtype)

    left, ends_eagerly = [], RecordedStep.finish_without_rounds

    def counted(self, *given):
        left.append(self)
        return ends_eagerly(self, *given)

    monkeypatch.setattr(RecordedStep, "finish_without_rounds", counted)
    assert difference(lying_on_it, ImplicitEuler(5e-3), 80) < 3e-5
    assert len(left) <= 10  # of 160 steps: none; 69 where recordings know the noise of the first iterate alone


def test_steps_that_creep_towards_a_barrier():
    """Come to rest on a barrier within reach, towards which 13 short steps are not yet the end of 38."""

    def hanging(dtype):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 81), Circle(1.256e-3), Material(6.891e7, 1100.0))
        builder.clamp(nodes=[0], direction="rest")
        builder.add_force(forces.Gravity(GRAVITY))
        builder.add_contact(Obstacle(HalfSpace((0, 0, -2.9565e-3), (0, 0, 1)), Barrier(2.258e4, 2.637e-3)))
        return builder.finalize(dtype=dtype)

    assert difference(hanging, Static()) < 3e-5  # 3e-3 where a step that is no more than short counts


def test_long_steps():
    """Take steps in which the rod moves by a good part of its length."""
    assert difference(rod, ImplicitEuler(0.1), 10) < 3e-5


@pytest.mark.filterwarnings("ignore:shell. bending 'hinge'")
@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_steps_of_plates(bending):
    """Let a plate fold; its hinges buckle, which makes more of rounding."""
    most = {"hinge": 1e-4, "midedge": 3e-5}[bending]
    assert difference(lambda dtype: plate(dtype, bending), ImplicitEuler(1e-2), 20) < most


def test_steps_on_a_rough_floor():
    """Take primal-dual steps, too."""
    assert difference(lying, ImplicitEuler(2e-3), 60) < 3e-5


def test_what_it_cannot_tell_fails():
    """Ask for the equilibrium of a rod whose bending is lost in the rounding of its stretching."""
    model = rod_through(
        straight((0, 0, 0), (1, 0, 0), 1001), Circle(5e-3), Material(1e7, 1100.0), [forces.Gravity(GRAVITY)]
    )
    model = model.finalize(dtype=torch.float32)
    _, info = Static(max_iterations=30).step(model, model.initial_state())
    assert not info.converged.any()


def test_settled():
    """Judge steps within the noise of 1 N where a length of 1 is short."""
    norm = torch.tensor([0.9, 1.1, 0.9, 0.9, 0.9, 0.9, 0.9, torch.nan])
    length = torch.tensor([0.9, 0.9, 1.1, 3.0, 3.0, 5.0, 5.0, 0.9])
    before = torch.tensor([torch.inf, torch.inf, torch.inf, 3.5, 7.0, 1.0, 2e3, torch.inf])
    # short; beyond the noise; the first step; as few as the one before; the one before was long; not few;
    # 5 (5 / 2000)^2 is next; not a number
    expected = [True, False, False, True, False, False, True, False]
    assert settled(norm, length, before, torch.ones(8), torch.ones(8)).tolist() == expected
