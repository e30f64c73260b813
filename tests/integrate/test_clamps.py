"""Clamps in steps: poses, reactions, what they hold, batches, gradients, refusals."""

import math
import warnings

import numpy as np
import pytest
import torch

from torchdismech import Circle, Control, InputError, Material, Rectangle, RobotBuilder, State, meshes, straight
from torchdismech.forces import Gravity, Viscous
from torchdismech.integrate import BDF2, ImplicitEuler, ImplicitMidpoint, Newmark, Static
from torchdismech.model.clamps import posed
from torchdismech.runs.rollout import rollout
from torchdismech.runs.unroll import unroll
from torchdismech.testing import check_stencil
from torchdismech.trajectory import Trajectory

INTEGRATORS = [ImplicitEuler, ImplicitMidpoint, Newmark, BDF2]


def curved_rod(both_ends: bool = False, nodes: int = 9, reverse: bool = False, **options):
    """A curved, twisted rod with a rectangular section under gravity and drag, held in directions."""
    s = np.linspace(0, 1, nodes)
    x = np.stack([np.sin(s), 0.3 * s**2, -np.cos(s)], axis=1)
    builder = RobotBuilder(**options)
    builder.add_rod(x[::-1] if reverse else x, Rectangle(0.01, 0.006), Material(1e7, 1000.0, 0.4))
    first, last = (nodes - 1, 0) if reverse else (0, nodes - 1)
    builder.clamp(nodes=[first], direction="rest")
    if both_ends:
        builder.clamp(nodes=[last], direction="rest")
    builder.add_force(Gravity((0, 0, -9.81)))
    builder.add_force(Viscous(0.05))
    return builder.finalize(compile=False)


def moving_pose(model, time: float, batch: int):
    """The first clamp moves and turns about z."""
    pose = model.rest_poses.expand(batch, -1, -1).clone()
    pose[:, 0, :3] += torch.tensor([0.1 * time, 0.0, 0.5 * time**2], dtype=pose.dtype)
    pose[:, 0, 3:] = torch.tensor([math.cos(time / 4), 0, 0, math.sin(time / 4)], dtype=pose.dtype)
    return pose


def test_the_rest_shape_is_at_rest_without_loads():
    """No clamp strains what it holds."""
    model = curved_rod(both_ends=True)
    state = model.initial_state()
    start = model.start_step(state)
    # rounding of EI / h^2 times 1e-16
    assert model.mechanics.elastic_force(start, state.q).abs().max() < 1e-10


def test_positions_are_those_of_nodes_alone():
    """Held tangents are no nodes, and their springs none of those that are controlled."""
    model = curved_rod(both_ends=True)
    state = model.initial_state()
    assert state.n_nodes == 9 and state.positions.shape == (1, 9, 3)
    assert state.twist.shape == (1, 10) and state.held_tangents.shape == (1, 2, 3)
    assert len(model.springs) == 7
    torch.testing.assert_close(state.positions[0], model.nodes)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_reactions_balance_momentum(integrator):
    """Force and torque of the clamp are the rate of momentum and angular momentum less the loads."""
    model, steps = curved_rod(), integrator(0.01, force_tolerance=1e-13, relative_tolerance=0.0)
    state, nodes, edges = model.initial_state(2), 3 * model.body.n_nodes, model.body.n_edges
    for k in range(5):
        before, control = state, Control(pose=moving_pose(model, 0.01 * (k + 1), 2))
        state, _ = steps.step(model, before, control, throw=True)
        wrench = steps.reactions(model, before, state, control)[:, 0]
        equations = steps.equations(model, before, control)
        q, velocity, time = equations.evaluated_at(state.q)
        loads = sum(f(before.replace(q=q, velocity=velocity, time=time), control) for f in model.forces)
        gained = model.body.mass * equations.acceleration(state.q) - loads
        force, x = (v[:, :nodes].unflatten(1, (-1, 3)) for v in (gained, q))
        # 1e-9: a residual of 1e-13 N on each node, and rounding of stiffnesses of 1e5 N/m times 1e-16 m
        torch.testing.assert_close(wrench[:, :3], force.sum(1), rtol=0, atol=1e-9)
        torque = torch.linalg.cross(x - x[:, :1], force).sum(1)
        tangent, anchor = model.frames.tangents(q)[:, :edges], before.tangent[:, :edges]
        binormal = 2 * torch.linalg.cross(anchor, tangent) / (1 + (anchor * tangent).sum(-1, keepdim=True))
        axis = tangent + 0.5 * torch.linalg.cross(tangent, binormal)
        torque = torque + (gained[:, nodes : nodes + edges, None] * axis).sum(1)
        torch.testing.assert_close(wrench[:, 3:], torque, rtol=0, atol=1e-9)


def test_two_held_nodes_take_the_same_torque_as_a_direction():
    """Held in a direction or by two nodes, a rod pulls at its support with the same force and torque."""
    found = []
    for nodes, direction in (([0], "rest"), ([0, 1], None)):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (1, 0, 0), 21), Circle(5e-3), Material(1e8, 1000.0))
        builder.clamp(nodes=nodes, direction=direction)
        builder.add_force(Gravity((0, 0, -0.1)))
        model = builder.finalize(compile=False)
        static, state = Static(force_tolerance=1e-12, relative_tolerance=0.0), model.initial_state()
        after, _ = static.step(model, state, throw=True)
        found.append(static.reactions(model, state, after)[0, 0])
        x = after.positions[0]
        weight = model.body.node_mass() * 0.1
        arm = x - x[nodes].mean(0)
        # rounding of positions times EA / h = 1e5 N/m, and the residual of 1e-12 N on nodes up to 1 m away
        torch.testing.assert_close(found[-1][2], weight.sum(), rtol=0, atol=1e-10)
        torch.testing.assert_close(found[-1][4], -(arm[:, 0] * weight).sum(), rtol=0, atol=1e-10)
    assert found[0][4] < 0  # the support lifts: about y, from z to x is positive


def test_poses_move_clamps_as_rigid_bodies():
    """A rod without loads that is moved and turned as a whole is not strained, whatever holds it."""
    for nodes, direction in (([0], "rest"), ([0, 1], None), ([0, 1, 4], None)):
        s = np.linspace(0, 1, 9)
        builder = RobotBuilder()
        builder.add_rod(np.stack([s, 0.2 * s**2, 0.1 * s], axis=1), Rectangle(0.01, 0.006), Material(1e7, 1000.0))
        builder.clamp(nodes=nodes, direction=direction)
        model = builder.finalize(compile=False)
        pose = model.rest_poses[None].clone()
        pose[0, 0, :3] += torch.tensor([0.3, -0.2, 0.5])
        pose[0, 0, 3:] = torch.nn.functional.normalize(torch.tensor([0.8, 0.3, -0.5, 0.2], dtype=pose.dtype), dim=0)
        state, _ = Static(force_tolerance=1e-12).step(model, model.initial_state(), Control(pose=pose), throw=True)
        energies = model.energies(state)
        # J; a strain of 1e-9 times EA of 600 N would be 1e-15
        assert sum(float(e) for e in energies.values()) < 1e-14


@pytest.mark.parametrize("reverse", [False, True])
def test_natural_curvature_goes_on_to_the_clamp(reverse):
    """A rod whose natural curvature is set all along takes it up to its clamp: an arc from its first node on."""
    nodes, curvature = 11, 1.0
    x = straight((0, 0, 0), (1, 0, 0), nodes)
    builder = RobotBuilder()
    builder.add_rod(x[::-1].copy() if reverse else x, Circle(5e-3), Material(1e7, 1000.0))
    root = nodes - 1 if reverse else 0
    builder.clamp(nodes=[root], direction="rest")
    model = builder.finalize(compile=False)
    natural = torch.zeros(1, nodes - 2, 2, dtype=torch.float64)
    natural[..., 0] = 2 * math.tan(0.5 * curvature / (nodes - 1))
    state, _ = Static(force_tolerance=1e-12).step(
        model, model.initial_state(), Control(natural_curvature=natural), throw=True
    )
    tangents = model.frames.tangents(state.q)[0, : nodes - 1]
    turns = torch.arccos((tangents[1:] * tangents[:-1]).sum(1).clamp(max=1))
    # balanced to 1e-12 N: 1e-11 rad seen
    torch.testing.assert_close(turns, torch.full_like(turns, 0.1), rtol=0, atol=1e-9)
    held = state.held_tangents[0, 0]
    next_to_it = tangents[-1] if reverse else tangents[0]
    # half of a spring's turn in half of its length; its tangent is 2 tan(turn / 2) of it, a part of 1e-3 off
    assert torch.arccos((held * next_to_it).sum()).item() == pytest.approx(0.05, rel=2e-3)


def test_all_natural_strains_go_on_to_a_clamp_at_either_end():
    """Rods that differ only in the order of their nodes are the same robot."""
    nodes, shapes = 9, []
    added = torch.linspace(0.02, 0.05, nodes - 2, dtype=torch.float64)
    for reverse in (False, True):
        x = straight((0, 0, 0), (1, 0, 0), nodes)
        builder = RobotBuilder()
        builder.add_rod(
            x[::-1].copy() if reverse else x,
            Rectangle(0.01, 0.006),
            Material(1e7, 1000.0),
            directors=np.tile([0.0, 0.0, 1.0], (nodes - 1, 1)),
        )
        builder.clamp(nodes=[nodes - 1 if reverse else 0], direction="rest")
        model = builder.finalize(compile=False)
        natural = added.flip(0) if reverse else added
        # seen the other way, the second directors and so the second curvatures change their signs
        second = -natural if reverse else natural
        control = Control(natural_curvature=torch.stack([natural, second], dim=1)[None], natural_twist=natural[None])
        after, _ = Static(force_tolerance=1e-12).step(model, model.initial_state(), control, throw=True)
        shapes.append(after.positions[0].flip(0) if reverse else after.positions[0])
    # both without stress; 1e-9 m: 1e-12 N over the bending stiffness of .02 N/m
    torch.testing.assert_close(*shapes, rtol=0, atol=1e-9)


def test_an_inner_node_and_a_junction():
    """Each rod at a held node is held on its own: what one does, the others do not feel."""
    arms = [straight((0, 0, 0), end, 6) for end in ((1, 0, 0), (-1, 0, 0), (0, 1, 0))]

    def model_of(numbers):
        builder = RobotBuilder()
        for k in numbers:
            builder.add_rod(arms[k], Circle(5e-3), Material(1e6, 1000.0))
        builder.clamp(nodes=[0], direction="rest")
        builder.add_force(Gravity((0, 0, -9.81)))
        return builder.finalize(compile=False)

    steps = ImplicitEuler(0.01, force_tolerance=1e-12)

    def tip(model, node):
        state = model.initial_state()
        for _ in range(10):
            state, _ = steps.step(model, state, throw=True)
        return state.positions[0, node]

    for together in ((0, 1), (0, 1, 2)):
        model = model_of(together)
        assert len(model.springs) == 4 * len(together)  # none across the node
        for place, k in enumerate(together):
            alone, own = tip(model_of((k,)), 5), tip(model, 5 * (place + 1))
            torch.testing.assert_close(own, alone, rtol=0, atol=1e-10)


def test_batch_rows_are_robots_alone():
    """Each robot follows the pose of its own clamps."""
    model, steps = curved_rod(both_ends=True), ImplicitEuler(0.01, force_tolerance=1e-12)
    pose = torch.cat([moving_pose(model, t, 1) for t in (0.05, 0.1, 0.2)])
    together, _ = steps.step(model, model.initial_state(3), Control(pose=pose), throw=True)
    for k in range(3):
        alone, _ = steps.step(model, model.initial_state(1), Control(pose=pose[k : k + 1]), throw=True)
        torch.testing.assert_close(together.q[k : k + 1], alone.q, rtol=0, atol=1e-13)


def test_stencils_with_held_tangents_have_exact_derivatives():
    """Also by tangents at either end, on both kinds of frames."""
    for model in (curved_rod(both_ends=True), curved_rod(both_ends=True, curvature="averaged")):
        check_stencil(model.term("bend_twist").stencil, model.initial_state()).raise_if_failed()


def test_gradients_by_pose_and_constants():
    """Of a tip's place and of a reaction, by a clamp's pose, against central differences."""
    model, steps = curved_rod(both_ends=False), ImplicitMidpoint(0.02, force_tolerance=1e-13)
    weight = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss(shift):
        state, total = model.initial_state(), 0.0
        for k in range(3):
            pose = moving_pose(model, 0.02 * (k + 1), 1)
            turn = torch.cat([pose[:, 0, :3], torch.nn.functional.normalize(pose[:, 0, 3:] + shift[3:], dim=1)], dim=1)
            pose = (turn + torch.nn.functional.pad(shift[:3], (0, 4))).unsqueeze(1)
            before, control = state, Control(pose=pose)
            state, _ = steps.step(model, before, control, throw=True)
            total = total + (steps.reactions(model, before, state, control)[0, 0] * weight).sum()
        return total + state.positions[0, -1].sum()

    shift = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(shift), shift)
    step = 1e-5
    for k in range(7):
        unit = step * torch.eye(7, dtype=torch.float64)[k]
        with torch.no_grad():
            expected = (loss(unit) - loss(-unit)) / (2 * step)
        # accelerations are second differences over dt = .02: the differences keep six digits
        assert gradient[k].item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)


def test_a_node_of_two_clamps_is_where_the_last_one_has_it():
    """Move a shared node with the last clamp, and differentiate by its pose alone."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 5), Rectangle(0.01, 0.006), Material(1e7, 1000.0, 0.4))
    builder.clamp(nodes=[0, 1])
    builder.clamp(nodes=[1, 2])
    model = builder.finalize(compile=False)
    pose = model.rest_poses[None].clone()
    pose[0, 0, 0], pose[0, 1, 0] = -0.1, 0.2 + float(pose[0, 1, 0])
    pose.requires_grad_()
    held = posed(model.body, model.initial_state(), Control(pose=pose)).clamped_q
    assert held[0, 3].item() == pytest.approx(0.25 + 0.2, abs=1e-15)
    (by_pose,) = torch.autograd.grad(held[0, 3:6].sum(), pose)
    assert by_pose[0, :, :3].tolist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("twist_first", [False, True])
def test_a_clamp_of_twist_alone_leaves_its_nodes_to_others(twist_first):
    """Move the end by its own clamp, which bears all of the load there, in whichever order they were made."""
    builder = RobotBuilder()
    rod = builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 11), Circle(3e-3), Material(1e6, 1100.0))
    builder.add_force(Gravity((0, 0, -9.81)))
    place, twist = (1, 0) if twist_first else (0, 1)
    for clamp in sorted((place, twist)):
        builder.clamp(nodes=rod[:1]) if clamp == place else builder.clamp(nodes=rod[:2], axes="")
    builder.clamp(nodes=rod[-1:])
    model = builder.finalize()
    pose = model.rest_poses[None].clone()
    pose[0, place, 2] = 0.01
    static, control = Static(), Control(pose=pose)
    state, info = static.step(model, model.initial_state(), control, throw=True)
    assert state.positions[0, 0].tolist() == pytest.approx([0, 0, 0.01])
    reactions = static.reactions(model, state, state, control)[0]
    assert not reactions[twist, :3].any()
    weight = 9.81 * float(model.body.node_mass().sum())
    assert reactions[:, 2].sum().item() == pytest.approx(weight, rel=1e-8)


def test_a_trajectory_keeps_held_tangents(tmp_path):
    """A state that is read from a file goes on as the one that was written."""
    model = curved_rod(both_ends=True)
    path = tmp_path / "held.h5"
    trajectory = rollout(model, model.initial_state(2), ImplicitEuler(0.01), 3)
    trajectory.save(path)
    state = Trajectory.load(path).state
    assert isinstance(state, State) and state.n_held == 2
    torch.testing.assert_close(state.held_tangents, trajectory.state.held_tangents, rtol=0, atol=0)


@pytest.mark.parametrize("every", [None, 2])
def test_a_rollout_that_is_observed(every):
    """A strain gauge and a load cell in each step, differentiable, with and without checkpoints."""
    model, steps = curved_rod(), ImplicitEuler(0.02, force_tolerance=1e-12)
    stiffness = model.term("bend_twist").energy.EI1.requires_grad_()

    def observe(before, after, control):
        return {
            "gauge": model.strains(after)["kappa1"][:, 2],
            "load cell": steps.reactions(model, before, after, control)[:, 0],
        }

    def loss():
        run = unroll(model, model.initial_state(2), steps, 5, checkpoint_every=every, observe=observe)
        assert run.observed["gauge"].shape == (5, 2) and run.observed["load cell"].shape == (5, 2, 6)
        return run.observed["gauge"].sum() + run.observed["load cell"][:, :, 4].sum()

    (gradient,) = torch.autograd.grad(loss(), stiffness)
    start, step = stiffness.detach().clone(), 1e-4 * float(stiffness.detach().mean())
    found = []
    with torch.no_grad():
        for sign in (1, -1):
            stiffness.copy_(start + sign * step)
            found.append(float(loss()))
        stiffness.copy_(start)
    expected = (found[0] - found[1]) / (2 * step)
    # differences of residuals of 1e-12 N over moves of 1e-8 N m^2
    assert float(gradient.sum()) == pytest.approx(expected, rel=1e-4)


def test_what_observes_is_refused_by_name():
    """It has to return tensors with a row for each robot."""
    model, steps = curved_rod(), ImplicitEuler(0.02)
    for found, named in ((torch.zeros(2), "tensors by name, got Tensor"), ({"all": torch.zeros(3)}, "'all' has to be")):
        with pytest.raises(InputError, match=named):
            unroll(model, model.initial_state(2), steps, 1, observe=lambda before, after, control, f=found: f)


def pointed(points, direction, natural):
    """Return a robot of one rod whose first node is held in a direction."""
    builder = RobotBuilder()
    builder.add_rod(points, Circle(1e-2), Material(1e6, 1000.0), natural=natural)
    builder.clamp(nodes=[0], direction=direction)
    return builder.finalize(compile=False)


def test_a_direction_bends_rods_that_are_naturally_straight():
    """Point a rod by a vector; of a rod as built it is the tangent at rest: it stays, and that is warned of."""
    points = straight((0, 0, 0), (1, 0, 0), 6)
    with pytest.warns(RuntimeWarning, match=r"at node 0 it is 45 degrees off edge 0, .*natural='straight'") as said:
        kept = pointed(points, (1, 0, 1), "initial")
    assert [warning.filename for warning in said] == [__file__]  # `pointed` is here
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bent = pointed(points, (1, 0, 1), "straight")
    ends = [Static().step(model, model.initial_state(), throw=True)[0].positions[0, -1] for model in (kept, bent)]
    half = math.sqrt(0.5)
    # without loads nothing is strained; forces are balanced to 1e-12 N, and bending takes EI / L^3 = 8e-3 N/m
    torch.testing.assert_close(ends[0], ends[0].new_tensor([1.0, 0.0, 0.0]), rtol=0, atol=1e-8)
    torch.testing.assert_close(ends[1], ends[1].new_tensor([half, 0.0, half]), rtol=0, atol=1e-8)


def test_tangents_of_curved_rods_are_not_warned_of():
    """Say nothing of the tangent at the end of arcs, whatever their edges, nor of one where a spiral is flat."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for edges in (2, 5, 40):
            angle = np.linspace(0, 1.5, edges + 1)
            pointed(np.stack([np.sin(angle), 0 * angle, 1 - np.cos(angle)], axis=1), (1, 0, 0), "initial")
            s = np.linspace(0, 1, edges + 1)
            pointed(np.stack([s, 0 * s, s**3], axis=1), (1, 0, 0), "initial")
    angle = np.linspace(0, 1.5, 21)
    arc = np.stack([np.sin(angle), 0 * angle, 1 - np.cos(angle)], axis=1)
    with pytest.warns(RuntimeWarning, match="7.85 degrees off edge 0"):  # 10 degrees less half an edge, 2.15 degrees
        pointed(arc, (math.cos(math.radians(10)), 0, math.sin(math.radians(10))), "initial")


def test_refusals():
    """What does not fit is refused by name."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 5), Circle(5e-3), Material(1e6, 1000.0))
    for direction in ("up", [0, 0, 0], [1, 0], [math.nan, 0, 0]):
        with pytest.raises(InputError, match="clamp.direction: expected"):
            builder.clamp(nodes=[0], direction=direction)
    builder.clamp(nodes=[0], direction=[-1, 0, 0])
    with pytest.raises(InputError, match="within 90 degrees of edge 0"):
        builder.finalize()
    twice = RobotBuilder()
    twice.add_rod(straight((0, 0, 0), (1, 0, 0), 5), Circle(5e-3), Material(1e6, 1000.0))
    twice.clamp(nodes=[0], direction="rest")
    twice.clamp(nodes=[0, 4], direction="rest")
    with pytest.raises(InputError, match="node 0 is held in a direction by two clamps"):
        twice.finalize()
    sheet = RobotBuilder()
    square = meshes.rectangle(0.1, 0.1, spacing=0.05)
    sheet.add_shell(square.nodes, square.triangles, 1e-3, Material(1e6, 1000.0))
    sheet.clamp(nodes=[0, 1], direction="rest")
    with pytest.raises(InputError, match="node 0: it has no direction; a shell is clamped along a side by holding"):
        sheet.finalize()
    model = curved_rod()
    pose = model.rest_poses[None].clone()
    with pytest.raises(InputError, match=r"Control.pose: expected shape \(1, 1, 7\)"):
        ImplicitEuler(0.01).step(model, model.initial_state(), Control(pose=pose[:, :0]))
    pose[0, 0, 3:] = 0.0
    with pytest.raises(InputError, match="unit quaternions"):
        ImplicitEuler(0.01).step(model, model.initial_state(), Control(pose=pose))


def pushed(mass="lumped"):
    """Return a straight rod whose first node a clamp holds, damped inside."""
    builder = RobotBuilder(mass=mass)
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 6), Circle(2e-3), Material(1e6, 1000.0, 0.5, relaxation_time=0.02))
    builder.clamp(nodes=[0], direction="rest")
    return builder.finalize(compile=False)


def pushed_to(model, place):
    """Return the control that holds the clamp at such places (B,) along x."""
    q = model.body.rest_q.expand(len(place), -1).clone()
    q[:, 0] = place
    return Control(clamped_q=q)


@pytest.mark.parametrize("kind", [ImplicitMidpoint, Newmark, BDF2])
def test_velocity_of_a_clamp_that_stops(kind):
    """Report the velocity of a clamp that moves uniformly, and none two steps after it has stopped."""
    model, integrator, speed, stop = pushed(), kind(1e-2), 0.1, 20
    state, seen = integrator.started(model.initial_state()), []
    for step in range(1, 31):
        place = torch.tensor([speed * integrator.dt * min(step, stop)], dtype=torch.float64)
        state, info = integrator.step(model, state, pushed_to(model, place))
        assert bool(info.converged.all())
        seen.append(float(state.velocity[0, 0]))
    # differences of places of millimetres, over dt: rounding of 1e-18 / 1e-2
    assert seen[2:stop] == pytest.approx([speed] * (stop - 2), abs=1e-13)
    assert seen[stop + 1 :] == pytest.approx([0.0] * (30 - stop - 1), abs=1e-13)


@pytest.mark.parametrize("mass", ["lumped", "consistent"])
def test_reaction_of_a_clamp_that_moves_uniformly(mass):
    """Need next to no force to push a rod of 1.3 g at one speed, however long; what its beginning rings dies out."""
    model, integrator = pushed(mass), Newmark(1e-2)

    def motion(time, model):
        return pushed_to(model, 0.1 * time)

    run = rollout(model, model.initial_state(), integrator, 300, schedule=motion, reactions=True)
    forces = run.reactions["clamp0"][:, 0, 0].abs()
    # the first step throws the clamp's node: m v / dt is 1.3e-3 N, and the springs beside it answer; the velocity of
    # the clamp rang with an amplitude of .1 m/s, which took 1.3 N after a second and 2.6 N after three
    assert forces[-10:].max() < 0.01 and forces[-10:].max() < 0.5 * forces[90:100].max()


@pytest.mark.parametrize("kind", [ImplicitMidpoint, Newmark])
def test_prescribed_motion_is_of_second_order(kind):
    """Miss velocity and felt acceleration of a clamp that swings by a quarter if steps are half as long."""
    model, rate, last = pushed(), 20.0, 0.35  # 1/s, s: a shake of three periods a second, about .1 into the second one
    missed = []
    for count in (80, 160, 320):
        integrator, state = kind(last / count), model.initial_state()
        for step in range(1, count + 1):
            before, time = state, step * integrator.dt
            place = torch.tensor([0.01 * (1 - math.cos(rate * time))], dtype=torch.float64)
            state, _ = integrator.step(model, state, pushed_to(model, place))
        equations = integrator.equations(model, before, pushed_to(model, place))
        felt = float(equations.acceleration(state.q)[0, 0])
        at = time - (1 - integrator.scheme.time) * integrator.dt
        missed.append(
            [
                abs(float(state.velocity[0, 0]) - 0.01 * rate * math.sin(rate * time)),
                abs(felt - 0.01 * rate**2 * math.cos(rate * at)),
            ]
        )
    ratios = np.array(missed[:-1]) / np.array(missed[1:])
    assert (ratios > 3.5).all() and (ratios < 4.6).all()  # 4, but for terms of the next order: rate dt is .1 at first


@pytest.mark.parametrize("kind", [ImplicitMidpoint, Newmark])
def test_gradient_by_places_of_a_moved_clamp(kind):
    """Differentiate by where a clamp is held: its acceleration is felt through consistent masses."""
    model, integrator = pushed("consistent"), kind(1e-2)

    def tip(speed):
        state = model.initial_state()
        for step in range(1, 5):
            state, _ = integrator.step(model, state, pushed_to(model, speed * (0.01 * step) ** 2))
        return state.positions[0, -1, 0] + 1e-2 * state.velocity[0, 0]

    speed = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(tip(speed), speed)
    with torch.no_grad():
        ahead, behind = tip(speed + 1e-3), tip(speed - 1e-3)
    # steps are solved to 1e-8 of their loads; the motion is nearly linear in the speed
    assert gradient.item() == pytest.approx(float(ahead - behind) / 2e-3, rel=1e-6)
