"""How many Newton iterations a hard step takes."""

import math

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    SimulationError,
    Static,
    Status,
    forces,
    helix,
    meshes,
    straight,
)
from torchdismech.contact import HalfSpace, Obstacle, Penalty, SelfContact


def swinging(*loads, floor=None, contact=None):
    """Return a clamped rod of 21 nodes, 0.3 m long, that gravity lets swing; `floor` is the height of a floor."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 21), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    for load in (forces.Gravity((0, 0, -9.81)), *loads):
        builder.add_force(load)
    if floor is not None:
        builder.add_contact(Obstacle(HalfSpace((0, 0, floor), (0, 0, 1)), Penalty(100.0, 1e-3)))
    if contact is not None:
        builder.add_contact(contact)
    return builder.finalize()


def mean_iterations(model, integrator, steps):
    """Return how many iterations steps from rest take, on average."""
    state, counts = model.initial_state(), []
    for _ in range(steps):
        state, info = integrator.step(model, state, throw=True)
        counts.append(info.iterations.item())
    return sum(counts) / len(counts)


@pytest.mark.parametrize(
    ("rule", "dt", "most"),
    [
        (ImplicitEuler, 1e-3, 1.2),  # 1.05 found; 1.34 for guesses without acceleration
        (ImplicitEuler, 1e-2, 2.3),  # 2.22; 2.52
        pytest.param(ImplicitMidpoint, 1e-3, 1.2, marks=pytest.mark.slow),  # 1.05; 1.48
        pytest.param(Newmark, 1e-3, 1.2, marks=pytest.mark.slow),  # 1.06; 1.90
        (ImplicitMidpoint, 1e-2, 2.6),  # 2.40; 2.83 where what vibrates faster is counted on as well
        (Newmark, 1e-2, 2.5),  # 2.18; 2.83
    ],
)
def test_first_iterates_count_on_smooth_acceleration(rule, dt, most):
    """Take few iterations a step while a rod swings, and do not count on what only vibrates."""
    assert mean_iterations(swinging(), rule(dt, relative_tolerance=1e-6), round(0.4 / dt)) <= most


def test_first_iterates_of_very_small_euler_steps_count_on_the_whole_acceleration():
    """Take few iterations to the default tolerance."""
    assert mean_iterations(swinging(), ImplicitEuler(1e-3), 300) <= 1.5  # 1.39 found; 2.0 with half of it


@pytest.mark.parametrize("contact", ["floor", "own parts"])
def test_first_iterates_count_on_acceleration_beside_what_may_touch(contact):
    """Take about as many iterations beside a floor that is out of reach, or with self-contact, as without."""
    model = swinging(floor=-1.0) if contact == "floor" else swinging(contact=SelfContact(Penalty(100.0, 1e-3)))
    assert mean_iterations(model, ImplicitEuler(1e-3), 300) <= 1.5  # 1.39 found; 2.0 by the velocity alone


def test_a_midpoint_step_is_as_easy_as_an_euler_step_of_half_its_length():
    """Let go a thin helix in steps that turn its edges: at first both rules solve the same equations."""
    builder = RobotBuilder()
    turns = helix(center=(0, 0, 0), start=(5.5e-3, 0, 0), axis=(0, 0, 1), angle=7.0, height=7.7e-3, nodes=21)
    builder.add_rod(turns, Circle(2.6e-4), Material(4e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    start = model.initial_state()
    after, info = ImplicitMidpoint(2e-2).step(model, start, throw=True)
    middle, half = ImplicitEuler(1e-2).step(model, start, throw=True)
    # 107 where moves of the iterate keep the lengths of edges at the end of the step, not where forces are evaluated
    assert info.iterations.item() == half.iterations.item() <= 4
    # both solved to 1e-12 N
    assert torch.allclose(after.q, 2 * middle.q - start.q, rtol=0, atol=1e-8)


def test_first_iterates_do_not_count_on_a_fold():
    """Take at most 5 iterations in each step of a plate that is held at one side, falls and folds."""
    mesh = meshes.rectangle(0.4, 0.4, 0.02, "right")
    builder = RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, 2e-3, Material(1e7, 1200.0, 0.3), "midedge")
    builder.clamp(nodes=[k for k, node in enumerate(mesh.nodes) if node[0] < 1e-9])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model, step = builder.finalize(), ImplicitEuler(1e-2, relative_tolerance=1e-6)
    state = model.initial_state()
    for _ in range(36):
        state, info = step.step(model, state, throw=True)
        assert info.iterations.item() <= 5  # 12 where a first iterate counts on velocities that change by a tenth


@pytest.mark.parametrize("rule", [ImplicitEuler, Newmark])
@pytest.mark.parametrize("loads", [[], [lambda: forces.Viscous(0.01)]])
def test_the_force_scale_is_that_of_the_forces(rule, loads):
    """Report the sum of the norms of momentum over dt, external and elastic force at the start of a step."""
    model, dt = swinging(*[load() for load in loads]), 1e-2
    step, state = rule(dt, relative_tolerance=1e-9), model.initial_state(batch=2)
    noise = torch.randn(state.q.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = state.replace(velocity=0.1 * noise * model.free)
    for count in range(4):
        start, weight = model.start_step(state, elapsed=dt), model.unknowns.residual_weight()
        elastic = model.mechanics.elastic_force(start, state.q)
        load = model.mechanics.constant_load(start, state.time)
        load = load + model.mechanics.varying_load(start, state.q, state.velocity, state.time)
        forces_there = (model.body.mass * state.velocity / dt, load, elastic)
        norms = [(weight * force[:, model.unknowns.index]).norm(dim=1) for force in forces_there]
        state, info = step.step(model, state, throw=True)
        if count > 0:  # the first one does not know the acceleration that belongs to a given velocity
            # to what the step before left of its residual, and to the turn of the frames on the way: 3e-6 found
            assert torch.allclose(info.force_scale, sum(norms), rtol=1e-5, atol=0)


@pytest.mark.parametrize("axis", [(0, 0, -1), (1, 0, 0)])
@pytest.mark.parametrize("radius", [1e-3, 5e-3])
def test_a_helix_let_go(axis, radius):
    """Take a median of at most 6 and never more than 10 iterations to 1e-8 of the step's force scale."""
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
    assert torch.tensor(counts).median() <= 6 and max(counts) <= 10, counts


@pytest.mark.slow
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


@pytest.mark.parametrize("pressed", [True, False])
def test_equilibria_of_many_loads_at_once(pressed):
    """Find equilibria of rods that get curvature, twist and a force in one load step, and a clamp pushed inwards.

    The push turns an edge inside out: the matrix has eigenvalues below minus its largest entry. Without it matrices
    are hardly definite on the way and Newton steps a thousand times too long.
    """
    nodes, robots = 21, 8
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), nodes), Circle(2e-3), Material(1e6, 1000.0))
    ends = [nodes - 2, nodes - 1] if pressed else []
    builder.clamp(nodes=[0, 1, *ends])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    state, springs = model.initial_state(batch=robots), len(model.springs)
    generator = torch.Generator().manual_seed(1)
    curvature, twist, load = (
        size * (2 * torch.rand(robots, 1, number, generator=generator, dtype=torch.float64) - 1)
        for size, number in ((0.1, 2), (0.1, 1), (0.05, 3))
    )
    force, target = torch.zeros_like(state.q), state.q.clone()
    force[:, 3 * (nodes // 2) :][:, :3] = load[:, 0]
    for node in ends:
        target[:, 3 * node] -= 0.03
        target[:, 3 * node + 1] += 0.01
    control = Control(
        curvature.expand(-1, springs, -1), twist[..., 0].expand(-1, springs), clamped_q=target, force=force
    )
    after, info = Static().step(model, state, control, throw=True)
    assert info.iterations.max() <= 100  # 23 to 66 found
    force_there = model.mechanics.force(model.start_step(after, control), after.q, after.velocity, after.time)
    # relative to the load; the tolerance asked for is 1e-8 of it and of the elastic forces, which are larger
    residual = (force_there * model.free)[:, : 3 * nodes].norm(dim=1)
    assert (residual < 1e-5 * force.norm(dim=1)).all()
