"""How many Newton iterations a hard step takes."""

import math

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    SimulationError,
    Status,
    forces,
    helix,
)


@pytest.mark.parametrize("axis", [(0, 0, -1), (1, 0, 0)])
@pytest.mark.parametrize("radius", [1e-3, 5e-3])
def test_a_helix_let_go(axis, radius):
    """Take a median of at most 6 and never more than 8 iterations to 1e-8 of the step's force scale."""
    builder = RobotBuilder()
    start = (0.02, 0, 0) if axis[2] else (0, 0.02, 0)
    points = helix((0, 0, 0), start, axis, 3.7 * 2 * math.pi, 0.185, 100)
    builder.add_rod(points, Circle(radius), Material(1e7, 1200.0, 0.5))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    state, counts = model.initial_state(), []
    rule = ImplicitEuler(5e-2, force_tolerance=1e-14, relative_tolerance=1e-8)
    for _ in range(20):
        state, info = rule.step(model, state, throw=True)
        # the tolerance asked for counted, not the floor that rounding sets
        assert info.tolerance[0] < 2e-8 * info.force_scale[0]
        counts.append(info.iterations.item())
    assert torch.tensor(counts).median() <= 6 and max(counts) <= 8, counts


def test_upright_helix_collapses_with_substeps():
    """Step a soft upright helix that collapses under its weight: some steps only work in parts."""
    builder = RobotBuilder()
    points = helix((0, 0, 0), (0.02, 0, 0), (0, 0, 1), 3.7 * 2 * math.pi, 0.185, 60)
    builder.add_rod(points, Circle(1e-3), Material(1e7, 1200.0, 0.5))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    state = model.initial_state()
    rule = ImplicitEuler(5e-2, max_substeps=32)
    for _ in range(12):
        state, _ = rule.step(model, state, throw=True)
    assert state.positions[0, -1, 2] < 0.0


def test_a_folding_edge_is_named():
    """Report an edge that is turned by 180 degrees within a step, and go on with the other robot."""
    builder = RobotBuilder()
    builder.add_rod([(0.05 * k, 0, 0) for k in range(7)], Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    state = model.initial_state(batch=2)
    target = state.q.clone()
    target[0, 3] = -0.05  # node 1 goes to the other side of node 0
    after, info = ImplicitEuler(0.01).step(model, state, Control(clamped_q=target))
    assert info.status.tolist() == [Status.FOLDED_EDGE, Status.CONVERGED]
    assert torch.equal(after.q[0], state.q[0]) and torch.isfinite(after.q).all()
    with pytest.raises(SimulationError, match="robot 0: folded_edge"):
        ImplicitEuler(0.01).step(model, state, Control(clamped_q=target), throw=True)
