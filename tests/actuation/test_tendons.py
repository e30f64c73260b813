"""Tendons: derivatives, closed forms, friction, energy, gradients, and what is refused."""

import math

import numpy as np
import pytest
import torch

from tests.actuation.robots import EA, EI, GJ, LENGTH, OFFSET, rod, settled
from torchdismech import Circle, Control, InputError, Material, RobotBuilder, meshes, straight
from torchdismech.actuation import AtNodes, Chambers, Fixed, OnEdges, Tendons
from torchdismech.forces import Gravity
from torchdismech.integrate import ImplicitEuler, ImplicitMidpoint, Static
from torchdismech.model.initial import trial_state
from torchdismech.testing import check_force

WINDING = [
    Fixed([(-0.2, 0, 0), (-0.1, 0, 0.02)]),
    AtNodes(range(8), (0, 0, 0.01)),
    OnEdges([8, 9], (0, 0.01, 0.01), at=0.3),
]
DRIVEN = {
    "tension": {"tension": 2.0},
    "taut": {"pull": 0.02, "stiffness": 1e3, "pretension": 0.5},
    "slack": {"pull": -0.5, "stiffness": 1e3},
    # friction that turns within the velocities of the trial state: differences cannot follow a sharper turn
    "tension, friction": {"tension": 2.0, "friction": 0.3, "slip_velocity": 5.0},
    "taut, friction": {"pull": 0.02, "stiffness": 1e3, "friction": 0.3, "slip_velocity": 5.0},
    "slack, friction": {"pull": -0.5, "stiffness": 1e3, "friction": 0.3, "slip_velocity": 5.0},
}


def straight_tendon(edges, **driven):
    """Return a tendon along the whole rod at a constant offset above it."""
    return Tendons([AtNodes(range(edges + 1), (0, 0, OFFSET))], **driven)


def moved_from_rest(model, batch):
    """Return robots where chance puts them, their frames anchored at rest."""
    rest, moved = model.rest_state(batch), trial_state(model.body, model.frames, batch)
    return rest.replace(q=moved.q, velocity=moved.velocity)


def bending(model, state):
    """Return the angles (E,) of the edges in the plane of x and z."""
    tangent = model.frames.tangents(state.q)[0, : len(model.rod_edges)]
    return torch.atan2(tangent[:, 2], tangent[:, 0])


@pytest.mark.parametrize("driven", DRIVEN)
def test_derivatives(driven):
    """Match differences over all dofs, and the potential where there is one."""
    model = rod(Tendons([WINDING], **DRIVEN[driven]))
    check_force(model.forces[0], model, moved_from_rest(model, 2)).raise_if_failed()


def test_sharp_friction_has_its_exact_derivatives():
    """Match autograd where friction turns within a small part of the velocities, through one straight point."""
    model = rod(Tendons([AtNodes(range(5))], tension=2.0, friction=0.3, slip_velocity=0.01), edges=4)
    points = [[0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0.5, 0], [3.2, 1.5, 0.7]]
    state, force = model.rest_state(1), model.forces[0]
    q, velocity = state.q.clone(), torch.tensor(np.random.default_rng(0).normal(size=state.q.shape))
    q[0, :15] = torch.tensor(points, dtype=torch.float64).flatten()

    def forces(q, velocity):
        return force(state.replace(q=q, velocity=velocity), Control())[0]

    expected = torch.autograd.functional.jacobian(forces, (q, velocity))
    found = force.derivatives(state.replace(q=q, velocity=velocity), Control())
    for kind in (0, 1):
        total = torch.zeros(model.n_dofs, model.n_dofs, dtype=torch.float64)
        for block, entries in zip(force.blocks(), found, strict=True):
            if entries[kind] is not None:
                rows, cols = (torch.as_tensor(x) for x in (block.rows, block.cols))
                total.index_put_((rows[:, :, None], cols[:, None, :]), entries[kind][0], accumulate=True)
        torch.testing.assert_close(total, expected[kind].squeeze(1))


def test_friction_where_a_tendon_comes_back_along_itself():
    """Match differences where the angle stays half a turn, as in a tackle, so that it has no slope by its cosine."""
    there_and_back = [AtNodes([1, 4], (0, 0, OFFSET)), AtNodes([1], (0, 0, OFFSET)), AtNodes([6, 1], (0, OFFSET, 0))]
    model = rod(Tendons([there_and_back], tension=2.0, friction=0.3, slip_velocity=5.0))
    check_force(model.forces[0], model, moved_from_rest(model, 2)).raise_if_failed()


def test_steps_in_which_tendons_change_their_direction_of_slip():
    """Take few iterations where motors pull to and fro, as tractions are unknowns; by Newton steps alone it is 24."""
    builder = RobotBuilder()
    nodes = builder.add_rod(straight((0, 0, 0), (0, 0, -0.3), 13), Circle(4e-3), Material(1.6e7, 1100.0, 0.5, 0.012))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(Gravity((0, 0, -9.81)))
    builder.add_mass([12], 0.027)
    sides = [AtNodes(nodes, (0.01 * math.cos(a), 0.01 * math.sin(a), 0)) for a in (0, 2.094, 4.189)]
    builder.add_force(Tendons(sides, tension=[3.0, 1.0, 1.0], friction=0.05))
    model = builder.finalize()
    state, taken = model.initial_state(), []
    for k in range(60):
        change = torch.sin(torch.tensor([[0.06 * k, 0.06 * k, 0.09 * k + 1.571]], dtype=torch.float64))
        tension = torch.tensor([[3.0, 1.0, 1.0]]) + torch.tensor([[2.0, -0.5, 0.8]]) * change
        control = Control(values={"Tendons.tension": tension})
        state, info = ImplicitEuler(dt=0.01).step(model, state, control, throw=True)
        taken.append(int(info.iterations))
    assert max(taken) <= 12


def test_expected_friction_is_that_of_the_state_where_nothing_moves():
    """Have the matrix of Newton's method where the tractions to expect are those of the velocities; else another."""
    model = rod(Tendons([WINDING], tension=2.0, friction=0.3, slip_velocity=5.0))
    force, state = model.forces[0], moved_from_rest(model, 2)
    rubbing, friction = model.contact.rubbing(None), force.first_friction(state)
    torch.testing.assert_close(force.expected_friction(state, friction), friction)
    exact = force.derivatives(state, Control())
    for factor in (1.0, 0.5):
        expected = torch.cat([factor * friction[..., :1], friction[..., 1:]], dim=-1)
        with rubbing.with_tractions([expected]):
            force_now, found = force.with_derivatives(state, Control())
        torch.testing.assert_close(force_now, force(state, Control()))
        same = [torch.allclose(a, b) for a, b in zip(found[2], exact[2], strict=True)]
        assert all(same) == (factor == 1.0)


@pytest.mark.parametrize(("route", "most"), [("nodes", 1e-2), ("edges", 0.4)])
def test_a_constant_offset_bends_to_an_arc(route, most):
    """Bend by T d / EI and compress by T / EA, with an error of second order in the edges.

    At nodes it is the square of a bend, .1 rad; from middle to middle of edges the tendon cuts corners besides: its
    arm is d + kappa l^2 / 4 to begin with, .25 d more.
    """
    tension, errors = 0.5, []
    for edges in (10, 20):
        nodes = AtNodes(range(edges + 1), (0, 0, OFFSET))
        over_edges = [Fixed((0, 0, OFFSET)), OnEdges(range(edges), (0, 0, OFFSET))]
        model = rod(Tendons([nodes if route == "nodes" else over_edges], tension=tension), edges=edges)
        state = settled(model)
        curvature = bending(model, state).diff() * edges / LENGTH
        errors.append((curvature * EI / (tension * OFFSET) - 1).abs().max().item())
        stretch = state.positions[0].diff(dim=0).norm(dim=-1) * edges / LENGTH - 1
        inside = stretch if route == "nodes" else stretch[:-1]  # half of the last edge has no tendon
        # the tendon's direction is that of the rod up to the square of half a bend, (.1 / 2)^2
        torch.testing.assert_close(inside, torch.full_like(inside, -tension / EA), rtol=5e-3, atol=0)
    assert errors[0] < most
    assert errors[1] < errors[0] / 3.5 + 2e-5  # 4 for second order


def helix_of_cosserat_rod(tension, turns):
    """Return bending (2,), in the frame that turns with the tendon, and twist of a rod with a helical tendon [1/m].

    Any section carries what lies beyond it, on which nothing acts but the tendon, so its force and its moment are
    n = - T t and m = - T r x t, with t the tendon's direction in the section's frame, t ~ v + u x r + r' (Rucker and
    Webster 2011). Along a helix all of these are constant in the frame that turns with it.
    """
    rate = 2 * math.pi * turns / LENGTH
    r, along = np.array([OFFSET, 0, 0]), np.array([0, rate * OFFSET, 0])
    u, v = np.zeros(3), np.array([0, 0, 1.0])
    for _ in range(100):
        t = v + np.cross(u, r) + along
        t /= np.linalg.norm(t)
        n, m = -tension * t, -tension * np.cross(r, t)
        u, v = m / np.array([EI, EI, GJ]), np.array([0, 0, 1 + n[2] / EA])
    return u


@pytest.mark.parametrize(("edges", "per_cent"), [(5, 9.9), (20, 2.3), (80, 0.6)])
def test_driven_by_length_the_last_half_edge_is_missed(edges, per_cent):
    """Pull a tendon a little: tension and deflection are off theory by what docs/tendons.md says, in first order."""
    stiffness, pull = 1e3, 1e-5
    model = rod(straight_tendon(edges, pull=pull, stiffness=stiffness), edges=edges)
    state = settled(model)
    tension = stiffness * pull / LENGTH / (1 + stiffness * (OFFSET**2 / EI + 1 / EA))
    deflection = tension * OFFSET / EI * LENGTH**2 / 2
    found = model.forces[0].tensions(state)[0, 0].item(), state.positions[0, -1, 2].item()
    for off in (found[0] / tension - 1, found[1] / deflection - 1):
        assert 100 * off == pytest.approx(per_cent, abs=0.05)  # the figures are rounded to a tenth


def test_a_helical_route_bends_and_twists_as_a_cosserat_rod():
    """Have the curvature and twist of Rucker and Webster's equations, within a per cent."""
    tension, turns, edges = 0.5, 1.0, 40
    angle = 2 * math.pi * turns * np.arange(edges + 1) / edges
    offset = OFFSET * np.stack([0 * angle, np.cos(angle), np.sin(angle)], axis=1)
    model = rod(Tendons([AtNodes(range(edges + 1), offset)], tension=tension), edges=edges)
    state = settled(model)
    tangent = model.frames.tangents(state.q)[0, :edges]
    between = (tangent[1:] * tangent[:-1]).sum(-1)
    turned = 2 * torch.atan2((tangent[1:] - tangent[:-1]).norm(dim=-1), (2 + 2 * between).sqrt())
    twist = state.twist[0, :edges].diff() + state.reference_twist[0, : edges - 1]
    expected = helix_of_cosserat_rod(tension, turns)
    # a chord of the helix turns by 9 degrees an edge: second order, .6 per cent
    curvature = turned * edges / LENGTH
    torch.testing.assert_close(curvature, torch.full_like(curvature, float(np.hypot(*expected[:2]))), rtol=1e-2, atol=0)
    torch.testing.assert_close(twist * edges / LENGTH, torch.full_like(twist, float(expected[2])), rtol=1e-2, atol=0)


def arc_with_a_free_end(**driven):
    """Return a rod bent to half a circle, all clamped but its last node, with a tendon along its middle line."""
    edges, radius = 40, 0.1
    angle = np.linspace(0, math.pi, edges + 1)
    nodes = radius * np.stack([np.sin(angle), 0 * angle, 1 - np.cos(angle)], axis=1)
    builder = RobotBuilder()
    builder.add_rod(nodes, Circle(1e-3), Material(1e7, 1000.0))
    builder.clamp(nodes=range(edges))
    builder.add_force(Tendons([AtNodes(range(edges + 1))], **driven))
    model = builder.finalize(compile=False)
    return model, math.pi * (1 - 1 / edges)  # by so much turn the inner points


@pytest.mark.parametrize("direction", [1, -1])
def test_friction_is_that_of_a_capstan(direction):
    """Have the tension at the end in the ratio exp(mu phi) to that at the motor, by the direction of slip."""
    friction, tension = 0.4, 3.0
    model, turned = arc_with_a_free_end(tension=tension, friction=friction, slip_velocity=1e-4)
    state = model.rest_state(1)
    velocity = torch.zeros_like(state.q)
    velocity[0, 3 * 40] = -direction * 0.1  # the last edge goes along -x: the path becomes longer, or shorter
    found = model.forces[0].tensions(state.replace(velocity=velocity))[0]
    # smoothing of a bend of .079 rad: .8 per cent of mu phi; see STRAIGHT
    assert math.log(found[-1] / tension) == pytest.approx(direction * friction * turned, rel=1e-2)
    assert found[0] == pytest.approx(tension)


def test_energy_is_kept_and_work_comes_from_the_motor():
    """Keep the energy of a rod that swings on a taut tendon; take in by the motor what its work puts in."""
    model = rod(straight_tendon(4, pull=[[0.0]], stiffness=200.0, pretension=1.0), edges=4)
    tendon, scheme = model.forces[0], ImplicitMidpoint(dt=5e-4, force_tolerance=1e-12)
    state, control = model.initial_state(1), Control()

    def energy(state, control):
        return (sum(model.energies(state).values()) + tendon.potential(state, control)).item()

    for _ in range(3):
        state, _ = scheme.step(model, state, throw=True)
    before, work = energy(state, control), 0.0
    steps, whole = 12, 0.005
    for k in range(steps):
        values = torch.full((1, 1), whole * (k + 0.5) / steps, dtype=torch.float64)
        after, _ = scheme.step(model, state, Control(values={"Tendons.pull": values}), throw=True)
        with torch.no_grad():  # the tension in the middle of the step, where the midpoint rule has it
            middle = state.replace(q=(state.q + after.q) / 2)
            tendon.pull.copy_(values)
            work += (tendon.tensions(middle)[0, 0] * whole / steps).item()
        state = after
    with torch.no_grad():
        tendon.pull.fill_(whole)
    gained = energy(state, control) - before
    # the midpoint rule is of second order; energies are of .01 J
    assert gained == pytest.approx(work, rel=2e-3)


def test_pretension_is_the_tension_as_built():
    """Pull with the pretension at rest, and with EA / l more for each metre that is taken in."""
    given = {"pull": [0.0, 0.003], "stiffness": 200.0, "pretension": [1.5, 0.5]}
    model = rod(Tendons([AtNodes(range(5), (0, 0, OFFSET)), AtNodes([0, 4], (0, OFFSET, 0))], **given), edges=4)
    found = model.forces[0].tensions(model.rest_state(1))[0]
    unstretched = LENGTH / (1 + 0.5 / 200)
    assert found[:4].tolist() == pytest.approx([1.5] * 4)
    assert found[4].item() == pytest.approx(0.5 + 200 / unstretched * 0.003)


def test_tensions_of_what_a_control_sets():
    """Ask for tensions while the model holds a control's values, with gradients to these; its own come back after."""
    model = rod(straight_tendon(4, pull=[0.0], stiffness=200.0, pretension=1.0), edges=4)
    state, tendon = model.rest_state(2), model.forces[0]
    pull = torch.tensor([[0.0], [0.003]], dtype=torch.float64, requires_grad=True)
    with model.holding(state, Control(values={"Tendons.pull": pull})):
        found = tendon.tensions(state)[:, 0]
    spring = 200 / LENGTH * (1 + 1 / 200)
    assert found.tolist() == pytest.approx([1.0, 1.0 + 0.003 * spring])
    assert torch.autograd.grad(found.sum(), pull)[0].flatten().tolist() == pytest.approx([spring] * 2)
    assert tendon.tensions(state)[:, 0].tolist() == pytest.approx([1.0] * 2)
    odd = Control(values={"Tendons.pull": pull[:1]})
    with pytest.raises(InputError, match="Tendons.pull'.: expected shape"), model.holding(state, odd):
        pass


def test_a_slack_tendon_catches_in_mid_step():
    """Converge in the step in which a tendon of a rod thrown away from it becomes taut, in few iterations."""
    model = rod(straight_tendon(5, pull=-0.002, stiffness=1e5), edges=5)
    state = model.initial_state(1)
    velocity = torch.zeros_like(state.q)
    velocity[:, 2 : 3 * 6 : 3] = -2 * model.nodes[:, 0]
    state, taut = state.replace(velocity=velocity), []
    for _ in range(5):
        state, info = ImplicitEuler(dt=0.02).step(model, state, throw=True)
        taut.append(bool(model.forces[0].tensions(state)[0, 0] > 0))
        assert info.iterations.item() < 25
    assert not taut[0]
    assert any(taut)


def test_an_antagonistic_pair_stays_straight_and_stiffens():
    """Bend less under a load with pretension in both tendons of a pair than with slack ones."""

    def deflection(pull):
        pair = [AtNodes(range(11), (0, 0, z)) for z in (OFFSET, -OFFSET)]
        model = rod(Tendons(pair, pull=pull, stiffness=100.0, pretension=0.0))
        tip = torch.zeros(1, model.n_dofs, dtype=torch.float64)
        tip[0, 3 * 10 + 2] = 1e-3
        state, _ = Static(force_tolerance=1e-12).step(model, model.initial_state(1), Control(force=tip), throw=True)
        return state.positions[0, -1, 2].item()

    assert abs(deflection(-0.01) - 1e-3 * LENGTH**3 / (3 * EI)) < 2e-3 * deflection(-0.01)  # slack: a beam
    assert 0 < deflection(0.005) < 0.9 * deflection(-0.01)


def test_gradients_by_all_of_its_constants():
    """Match differences of two steps by pull, friction, offsets, stiffness, and by EI of the rod."""
    route = AtNodes(range(4), (0, 0.003, OFFSET))
    given = {"pull": [0.01], "stiffness": 300.0, "pretension": 0.4, "friction": 0.3, "slip_velocity": 0.05}
    tendon = Tendons([route], **given)
    model = rod(tendon, edges=3)
    names = [
        "Tendons.pull",
        "Tendons.friction",
        "Tendons.offset",
        "Tendons.stiffness",
        "Tendons.pretension",
        "bend_twist.EI1",
    ]
    places = {name: model.places[name] for name in names}
    scheme = ImplicitEuler(dt=0.01, force_tolerance=1e-13, relative_tolerance=1e-13)
    weight = torch.tensor(np.random.default_rng(0).normal(size=(1, model.n_dofs)))

    def value():
        state = model.initial_state(1)
        for _ in range(2):
            state, _ = scheme.step(model, state, throw=True)
        return (weight * state.q).sum()

    for module, attribute in places.values():
        getattr(module, attribute).requires_grad_(True)
    value().backward()
    for name, (module, attribute) in places.items():
        parameter = getattr(module, attribute)
        gradient = parameter.grad.flatten()[-1].item()
        flat = parameter.data.view(-1)
        before, step, ends = flat[-1].item(), 1e-4 * max(abs(flat[-1].item()), 1e-3), []
        for sign in (1, -1):
            flat[-1] = before + sign * step
            with torch.no_grad():
                ends.append(value().item())
        flat[-1] = before
        # differences: rounding 1e-12 over steps of 1e-4 of the value; what is small against the others has less
        assert gradient == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-8), name


@pytest.mark.parametrize("driven", ["tension", "taut", "taut, friction"])
def test_several_tendons_are_each_alone(driven):
    """Have the force and the derivatives of tendons of one force as the sums of those of a force for each."""
    routes = [WINDING, AtNodes([2, 5, 9], (0, -0.01, 0)), AtNodes(range(8), (0, 0.01, -0.002))]
    numbers = {name: [value, 1.5 * value, 0.5 * value] for name, value in DRIVEN[driven].items()}
    together = rod(Tendons(routes, **numbers))
    one_each = [
        Tendons([route], **{name: values[k] for name, values in numbers.items()}) for k, route in enumerate(routes)
    ]
    apart = rod(*one_each)
    state = moved_from_rest(apart, 2)
    check_force(together.forces[0], together, state).raise_if_failed()
    expected = sum(force(state, Control()) for force in apart.forces)
    torch.testing.assert_close(together.forces[0](state, Control()), expected)


def test_robots_pull_on_their_own():
    """Step robots with a tension each as each of them alone."""
    tensions = torch.tensor([[0.1], [0.4], [0.7]], dtype=torch.float64)
    pulls = torch.tensor([[0.0], [0.004], [0.008]], dtype=torch.float64)

    def model_of(rows):
        pair = [
            Tendons([AtNodes(range(5), (0, 0, OFFSET))], tension=tensions[rows], friction=0.2, slip_velocity=0.01),
            Tendons([AtNodes(range(5), (0, OFFSET, 0))], pull=pulls[rows], stiffness=100.0),
        ]
        return rod(*pair, edges=4)

    def stepped(model, batch):
        state = model.initial_state(batch)
        for _ in range(2):
            state, _ = ImplicitEuler(dt=0.02, force_tolerance=1e-12).step(model, state, throw=True)
        return state.q

    together = stepped(model_of(slice(None)), 3)
    for k in range(3):
        # both are solved to 1e-12 N, of stiffnesses from 1 N/m on
        torch.testing.assert_close(together[k : k + 1], stepped(model_of(slice(k, k + 1)), 1), rtol=0, atol=1e-9)


def test_points_turn_with_what_holds_and_carries_them():
    """Carry offsets along as a rigid body, where sections and clamps turn; material offsets are those of the world."""
    turn = torch.tensor([[0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)  # x goes to z
    given = {"world": (0.002, 0.003, OFFSET), "material": None}
    model = rod(Tendons([AtNodes(range(4), given["world"])], tension=1.0), edges=3)
    m1, t = model.body.directors[0], torch.tensor([1.0, 0, 0], dtype=torch.float64)
    m2, offset = torch.linalg.cross(t, m1), torch.tensor(given["world"], dtype=torch.float64)
    along = [float(offset @ axis) for axis in (m1, m2, t)]
    same = rod(Tendons([AtNodes(range(4), along, frame="material")], tension=1.0), edges=3)
    torch.testing.assert_close(same.forces[0].offset, model.forces[0].offset)
    state = model.rest_state(1)
    held = state.held_tangents @ turn.T
    q = torch.cat([(state.positions @ turn.T).flatten(1), state.twist, held.flatten(1)], dim=1)
    moved = model.frames.moved(state, q)
    found = model.forces[0].points(moved)
    expected = model.forces[0].points(state) @ turn.T  # parallel transport from x to z is this rotation
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("turned", [[1], [3], [1, 2, 3]])
def test_material_offsets_stay_on_one_side_of_a_rod_whose_edges_are_stored_either_way(turned):
    """Find the points of a rod whose edges all point along it, clamped at an end and at a node between two edges."""
    nodes = np.array([[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0.01], [0.3, 0, 0.04], [0.4, 0, 0.09]])
    along = np.stack([np.arange(4), np.arange(1, 5)], axis=1)
    either_way = along.copy()
    either_way[turned] = along[turned, ::-1]
    points = []
    for edges in (along, either_way):
        builder = RobotBuilder()
        builder.add_rods(nodes, edges, Circle(5e-3), Material(1e6, 1000.0))
        builder.clamp(nodes=[0, 2], direction="rest")
        builder.add_force(Tendons([AtNodes(range(5), (0.01, 0.02, 0.03), frame="material")], tension=1.0))
        model = builder.finalize()
        points.append(model.forces[0].points(model.initial_state()))
    torch.testing.assert_close(points[1], points[0])


def test_material_offsets_where_frames_cancel_each_other_are_refused():
    """Name the node of a cross whose four arms are stored towards its middle."""
    builder = RobotBuilder()
    arms = [[0, 0, 0], [1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]]
    builder.add_rods(arms, [[1, 0], [2, 0], [3, 0], [4, 0]], Circle(5e-3), Material(1e6, 1000.0))
    builder.add_force(Tendons([AtNodes([1, 0], (0.01, 0, 0), frame="material")], tension=1.0))
    with pytest.raises(InputError, match="AtNodes: frame: at node 0 rods meet whose tangents or directors cancel"):
        builder.finalize()


def test_a_tendon_pulls_the_nodes_of_a_shell():
    """Lift the corner of a plate towards a point in space."""
    mesh = meshes.rectangle(0.2, 0.2, 0.1)
    nodes, triangles = mesh.nodes, mesh.triangles
    builder = RobotBuilder()
    builder.add_shell(nodes, triangles, 1e-3, Material(1e6, 1000.0))
    builder.clamp(nodes=np.flatnonzero(nodes[:, 0] == nodes[:, 0].min()))
    corner = int(np.argmax(nodes[:, 0] + nodes[:, 1]))
    builder.add_force(Tendons([[Fixed(nodes[corner] + [0, 0, 1.0]), AtNodes([corner])]], tension=1e-3))
    model = builder.finalize(compile=False)
    state = settled(model)
    force = model.forces[0](state, Control())[0, : 3 * len(nodes)].view(-1, 3)
    assert force.norm(dim=1).nonzero().flatten().tolist() == [corner]
    assert force[corner].norm().item() == pytest.approx(1e-3)
    assert state.positions[0, corner, 2] > nodes[corner, 2] + 1e-4


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda: Tendons([AtNodes([0, 1])]), "either tension"),
        (lambda: Tendons([AtNodes([0, 1])], tension=1.0, pull=0.1), "either tension"),
        (lambda: Tendons([AtNodes([0, 1])], tension=-1.0), "0 or more"),
        (lambda: Tendons([AtNodes([0, 1])], pull=0.1), "stiffness"),
        (lambda: Tendons([AtNodes([0, 1])], tension=1.0, stiffness=1.0), "leave them out"),
        (lambda: Tendons([AtNodes([0, 1])], pull=0.0, stiffness=0.0), "more than 0"),
        (lambda: Tendons([AtNodes([0, 1, 2])], tension=1.0, friction=-0.1), "Tendons.friction: expected 0 or more"),
        (lambda: Tendons([AtNodes([0, 1, 2])], tension=1.0, friction=0.1, slip_velocity=0.0), "more than 0"),
        (lambda: rod(Tendons([AtNodes([0, 1])], tension=1.0, friction=0.1)), "no inner point"),
        (
            lambda: rod(straight_tendon(10, pull=5.0, stiffness=1e3)),
            r"Tendons.pull: tendon 0 is to be pulled in by 5 m, and is 1 m long: give .* in m",
        ),
        (lambda: rod(straight_tendon(10, pull=[[0.0], [5.0]], stiffness=1e3)), "tendon 0 of robot 1 is to be pulled"),
        (lambda: rod(Tendons([AtNodes([3])], tension=1.0)), "two points or more"),
        (lambda: rod(Tendons([AtNodes([3, 3])], tension=1.0)), "points 0 and 1 are one point"),
        (lambda: rod(Tendons([AtNodes([3, 11])], tension=1.0)), "AtNodes.nodes: expected indices 0 to 10"),
        (lambda: rod(Tendons([OnEdges([0, 10])], tension=1.0)), "OnEdges.edges: expected indices 0 to 9"),
        (lambda: rod(Tendons([Fixed([[0, 0, 0], [0, 0, 1]])], tension=1.0)), "acts on nothing"),
        (lambda: rod(Tendons([AtNodes([1, 2], np.zeros((3, 3)))], tension=1.0)), "expected offsets of shape"),
        (lambda: rod(Tendons([AtNodes([1, 2], (0, 0, math.nan))], tension=1.0)), "finite"),
        (lambda: AtNodes([1], frame="body"), "'world', 'material'"),
        (lambda: OnEdges([1], at=2.0), "0 to 1"),
        (lambda: Tendons([[1, 2]], tension=1.0), "AtNodes, OnEdges or Fixed"),
        (lambda: Tendons([], tension=1.0), "got none"),
        (lambda: Tendons(AtNodes([0, 1]), tension=1.0), "expected a list of routes, also of one alone, got AtNodes"),
        (lambda: Tendons(np.arange(3), tension=1.0), "expected a list of routes, also of one alone, got ndarray"),
        (lambda: Tendons([0, 1, 2], tension=1.0), "AtNodes, OnEdges or Fixed, got int"),
        (lambda: Tendons([AtNodes([0, 1])], tension="taut"), "Tendons.tension: expected numbers, got 'taut'"),
        (lambda: Tendons([AtNodes([0, 1])], tension=1.0, slip_velocity=0.1), "belongs to friction"),
        (
            lambda: Tendons([AtNodes([0, 1])], tension=[1.0, 2.0]),
            r"one of each of the 1 routes, or \(B, 1\) with those of each",
        ),
        (
            lambda: rod(Tendons([AtNodes([1, 2], np.zeros((3, 3)))], tension=1.0)),
            r"\(3,\), \(2, 3\), \(B, 1, 3\) or \(B",
        ),
        (lambda: rod(Tendons([AtNodes([1, 2]), AtNodes([4, 4, 5])], tension=1.0)), "route 1: points 0 and 1"),
    ],
)
def test_refusals(made, problem):
    """Name what is wrong."""
    with pytest.raises(InputError, match=problem):
        made()


@pytest.mark.slow
def test_steps_beside_compiled_kernels_are_the_same():
    """Step where the elastic terms are compiled as where nothing is."""

    def stepped(compile):
        pair = [
            Tendons([AtNodes(range(7), (0, 0, OFFSET))], tension=0.5, friction=0.2, slip_velocity=0.01),
            Tendons([AtNodes(range(7), (0, OFFSET, 0))], pull=0.004, stiffness=100.0),
            Chambers([AtNodes(range(2, 6), (0, -OFFSET, 0))], 1e-4, 1e3),
        ]
        model = rod(*pair, edges=6, compile=compile)
        state = model.initial_state(4)
        for _ in range(3):
            state, _ = ImplicitEuler(dt=0.02, force_tolerance=1e-12).step(model, state, throw=True)
        return state.q

    # both are solved to 1e-12 N, of stiffnesses from 1 N/m on
    torch.testing.assert_close(stepped(True), stepped(False), rtol=0, atol=1e-9)
