"""Steps with contact constraints: physics, convergence, and each robot of a batch on its own."""

import numpy as np
import pytest
import torch

from tests.contact.robots import constrained_between_nodes, constrained_crossing, constrained_on_obstacles, numbers
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    Status,
    forces,
    meshes,
    straight,
)
from torchdismech.contact import (
    Capsule,
    Complementarity,
    Friction,
    HalfSpace,
    Obstacle,
    Path,
    Penalty,
    SelfContact,
    Sphere,
)
from torchdismech.contact.response import CONTACT_METHODS
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.problem import StepProblem

GROUND = HalfSpace, ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))


def sled(slope: torch.Tensor, mu, rows=slice(None), viscosity=None):
    """Return a straight rod of 6 nodes on slopes (B,), as gravity that is tilted."""
    builder = RobotBuilder()
    builder.add_rod(np.linspace([0, 0, 1e-3], [0.05, 0, 1e-3], 6), Circle(1e-3), Material(1e7, 1200.0, 0.4))
    slope = slope[rows]
    down = torch.stack([torch.sin(slope), torch.zeros_like(slope), -torch.cos(slope)], dim=1)
    builder.add_force(forces.Gravity(9.81 * down))
    if viscosity is not None:
        builder.add_force(forces.Resistive(0.3 * viscosity, viscosity))
    shape, sizes = GROUND
    builder.add_contact(Obstacle(shape(*sizes), Complementarity(), Friction(mu), name="floor"))
    return builder.finalize()


def test_incline():
    """Stick below atan(mu), slide above with g (sin - mu cos), from the first step on."""
    slope = torch.tensor([0.1, 0.29, 0.3, 0.6], dtype=torch.float64)  # atan(0.3) = 0.2915
    model = sled(slope, 0.3)
    state = model.initial_state()
    for _ in range(10):
        state, info = ImplicitEuler(5e-3).step(model, state, throw=True)
    speed = 0.05 * 9.81 * (torch.sin(slope) - 0.3 * torch.cos(slope)).clamp_min(0)
    # implicit Euler is exact for constant forces; what is left is the tolerance of the steps, 1e-8 of their forces
    assert torch.allclose(state.node_velocities[..., 0], speed[:, None].expand(-1, 6), atol=1e-7)
    assert float(state.positions[..., 2].min()) > 1e-3 - 1e-8
    assert int(info.iterations.max()) <= 2


def test_a_smooth_floor_carries_a_rod_that_sinks_by_less_than_the_tolerance():
    """Carry the weight in every step, also where a step without loads would break no law by more than allowed."""
    builder = RobotBuilder()
    builder.add_rod(straight((-0.1, 0, 5e-3), (0.1, 0, 5e-3), 5), Circle(5e-3), Material(1e7, 1000.0))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    shape, sizes = GROUND
    builder.add_contact(Obstacle(shape(*sizes), Complementarity(tolerance=1e-6), name="floor"))
    model = builder.finalize()
    state, weight = model.initial_state(), 9.81 * float(model.body.node_mass().sum())
    for _ in range(10):  # a free fall of 1e-7 m in each
        state, info = ImplicitEuler(1e-4).step(model, state, throw=True)
        assert float(info.contact["load/floor"].sum()) == pytest.approx(weight, rel=1e-6)


def test_fluid_beside_contact():
    """Converge where drag makes the matrix unsymmetric: a sled reaches the speed at which drag carries its thrust."""
    slope = torch.tensor([0.5], dtype=torch.float64)
    model = sled(slope, 0.2, viscosity=2.0)
    state = model.initial_state()
    for _ in range(60):
        state, info = ImplicitEuler(5e-3).step(model, state, throw=True)
        assert int(info.iterations[0]) <= 5
    weight = 9.81 * model.body.node_mass().sum()
    final = weight * (torch.sin(slope) - 0.2 * torch.cos(slope)) / (0.3 * 2.0 * 0.05)
    # what is left of its approach after 60 steps: 1e-10
    assert float(state.node_velocities[..., 0].mean()) == pytest.approx(float(final), rel=1e-8)


@pytest.mark.parametrize("thick_first", [False, True])
def test_looks_as_far_as_the_thickest_parts_need(thick_first):
    """Look for contacts within the largest mean radius, whichever constraint is added first; a penalty has no say."""
    radii, builder = {"thin": 1e-3, "thick": 5e-3, "soft": 8e-3}, RobotBuilder()
    for k, (name, radius) in enumerate(radii.items()):
        line = np.linspace([0, 0.1 * k, 0], [0.2, 0.1 * k, 0], 6)
        builder.add_rod(line, Circle(radius), Material(1e6, 1e3), name=name)
    names = ("thick", "thin") if thick_first else ("thin", "thick")
    builder.add_contact(SelfContact(Penalty(10.0, 1e-4), between=("soft", "soft")))
    for name in names:
        builder.add_contact(SelfContact(Complementarity(), between=(name, name)))
    model, euler = builder.finalize(), ImplicitEuler(1e-3)
    running = torch.ones(1, dtype=torch.bool)
    candidates = ContactCandidates(StepProblem(model, euler, model.initial_state(), Control(), euler.dt, running))
    assert candidates.search_distance.tolist() == pytest.approx([5e-3], rel=1e-12)  # nothing moves


def test_lies_on_a_ball():
    """Carry a held rod's weight by a ball at its middle, symmetrically, with no overlap."""
    builder = RobotBuilder()
    builder.add_rod(np.linspace([-0.1, 0, 0.022], [0.1, 0, 0.022], 21), Circle(2e-3), Material(1e6, 1100.0))
    builder.clamp(nodes=[10], axes="xy")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_force(forces.MassDamping(30.0))
    builder.add_contact(Obstacle(Sphere((0, 0, 0), 0.02), Complementarity(), name="ball"))
    model = builder.finalize()
    state = model.initial_state()
    for _ in range(40):
        state, info = ImplicitEuler(5e-2).step(model, state, throw=True)
    weight = 9.81 * float(model.body.node_mass().sum())
    force = info.contact["force/ball"][0]
    # its swings are damped to less than 1e-4 of the weight
    assert float(force[2]) == pytest.approx(weight, rel=1e-4)
    x = state.positions[0]
    # rounding of a bent rod whose balance is solved to 1e-8 of its forces
    assert torch.allclose(x[:, 2], x.flip(0)[:, 2], atol=1e-8)
    assert float(info.contact["penetration"]) < 1e-8


@pytest.mark.parametrize("factor", [0.98, 1.02])
@pytest.mark.parametrize("angle", [1.0, 2.0])
def test_capstan(angle, factor):
    """Slide faster and faster around a post under a pull above exp(mu angle) times the other, slower below."""
    mu, radius, last = 0.3, 0.02, 30
    around = np.linspace(-angle / 2, angle / 2, last + 1)
    arc = np.stack([np.sin(around), 0 * around, np.cos(around)], axis=1) * (radius + 5e-4)
    builder = RobotBuilder()
    # a heavy rope: a pull of 1 N does not tear it around the post at once
    builder.add_rod(arc, Circle(5e-4), Material(1e8, 1e5), stiffness={"EI1": 1e-9, "EI2": 1e-9})
    tangent = np.array([np.cos(angle / 2), 0, -np.sin(angle / 2)])
    builder.add_force(forces.PointForce([last], factor * np.exp(mu * angle) * tangent))
    builder.add_force(forces.PointForce([0], tangent * [-1, 0, 1]))
    post = Capsule((0, -1, 0), (0, 1, 0), radius)
    builder.add_contact(Obstacle(post, Complementarity(), Friction(mu), name="post"))
    model = builder.finalize()
    state, speeds = model.initial_state(), []
    for _ in range(9):
        state, info = ImplicitEuler(1e-3).step(model, state, throw=True)
        speeds.append(float(state.node_velocities[0, 5:-5].norm(dim=-1).mean()))
    assert int(info.contact["active"][0]) > 20
    assert (speeds[-1] > speeds[-4]) is (factor > 1)


def test_shell_falls_flat():
    """Stop a falling sheet on a floor in one step, without bounce, and keep it there."""
    sheet = meshes.rectangle(0.06, 0.06, spacing=0.02)
    builder = RobotBuilder()
    builder.add_shell(sheet.nodes + [0, 0, 6e-4], sheet.triangles, 1e-3, Material(1e6, 1000.0, 0.3))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    shape, sizes = GROUND
    builder.add_contact(Obstacle(shape(*sizes), Complementarity(), Friction(0.5), name="floor"))
    model = builder.finalize()
    state = model.initial_state()
    heights = []
    for _ in range(12):
        state, info = ImplicitEuler(2e-3).step(model, state, throw=True)
        heights.append(state.positions[0, :, 2].clone())
    assert float(heights[-1].max()) == pytest.approx(5e-4, abs=1e-8)
    assert float(state.velocity.abs().max()) < 1e-12  # nothing moves any more
    weight = 9.81 * float(model.body.node_mass().sum())
    # steps are solved to this part of their forces
    assert float(info.contact["force/floor"][0, 2]) == pytest.approx(weight, rel=1e-8)


def test_momentum_in_self_contact():
    """Keep the momentum of a robot whose two free parts hit each other and rub."""
    builder = RobotBuilder()
    line = np.linspace([-0.05, 0, 0], [0.05, 0, 0], 8)
    builder.add_rod(line, Circle(2e-3), Material(1e6, 1000.0))
    builder.add_rod(line[:, [1, 0, 2]] + [0.011, 0.003, 0.02], Circle(2e-3), Material(1e6, 1000.0))
    builder.add_contact(SelfContact(Complementarity(), Friction(0.4)))
    model = builder.finalize()
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    nodes = velocity[:, : 3 * 16].view(1, 16, 3)
    nodes[:, 8:] = torch.tensor([0.5, 0.1, -2.0])
    state = model.initial_state(velocity=velocity)
    mass = model.body.node_mass()[:, None]
    before = (mass * state.node_velocities[0]).sum(0)
    energy, touched = float(model.energies(state)["kinetic"]), False
    for _ in range(20):
        state, info = ImplicitEuler(1e-3).step(model, state, throw=True)
        touched |= bool(info.contact["active"][0])
        now = sum(float(e) for e in model.energies(state).values())
        assert now <= energy * (1 + 1e-9)  # constraints and implicit Euler only take energy
        energy = now
    assert touched
    # steps are solved to 1e-8 of their forces
    assert torch.allclose((mass * state.node_velocities[0]).sum(0), before, atol=1e-7 * float(before.norm()))


@pytest.mark.parametrize("make", [constrained_on_obstacles, constrained_between_nodes, constrained_crossing])
def test_converges_quadratically(make):
    """Take few iterations a step, loads that turn included."""
    model = make(0.3)
    state = model.initial_state()
    for _ in range(10):
        state, info = ImplicitEuler(5e-3).step(model, state, throw=True)
        # 6 where contacts lie still; rounds of semismooth steps also find which contacts between nodes are closed
        assert int(info.iterations.max()) <= 9
    assert float(info.contact["penetration"].max()) < 1e-8


def test_a_row_is_the_robot_alone():
    """Match each robot stepped alone: one in the air, one that sticks, one that slides, one that fails."""
    slope = torch.tensor([0.0, 0.1, 0.6, 0.2], dtype=torch.float64)
    mu = numbers(0.3, 0.5, 0.2, 0.4)
    together = sled(slope, mu)
    velocity = torch.zeros(4, together.n_dofs, dtype=torch.float64)
    velocity[0, 2:18:3] = 1.0  # the first one is thrown up
    state = together.initial_state(velocity=velocity)
    force = torch.zeros(4, together.n_dofs, dtype=torch.float64)
    force[3, 4] = torch.nan
    alone = [sled(slope, mu[[i]], [i]) for i in range(3)]
    states = [model.initial_state(velocity=velocity[[i]]) for i, model in enumerate(alone)]
    running = torch.ones(4, dtype=torch.bool)
    for _ in range(15):
        state, info = ImplicitEuler(5e-3).step(together, state, Control(force=force), running)
        assert info.converged[:3].all()
        if running[3]:
            assert info.status[3] == Status.NOT_FINITE
            running[3] = False
        for i, model in enumerate(alone):
            states[i], own = ImplicitEuler(5e-3).step(model, states[i], throw=True)
            assert (state.q[i] - states[i].q[0]).abs().max() < 1e-9  # steps are solved to 1e-8 of their forces
            assert int(info.contact["active"][i]) == int(own.contact["active"][0])
    assert info.contact["active"].tolist()[:3] == [0, 6, 6]


@pytest.mark.parametrize("method", CONTACT_METHODS)
def test_methods(method):
    """Find the same motion by each method for the contact problems."""
    ends = []
    for chosen in (method, "interior_point"):
        builder = RobotBuilder()
        builder.add_rod(np.linspace([0, 0, 2e-3], [0.1, 0, 2e-3], 5), Circle(2e-3), Material(1e5, 1000.0))
        builder.add_force(forces.Gravity((4.0, 0.0, -9.81)))
        shape, sizes = GROUND
        builder.add_contact(Obstacle(shape(*sizes), Complementarity(method=chosen), Friction(0.3), name="floor"))
        model = builder.finalize()
        state = model.initial_state()
        for _ in range(3):
            state, _ = ImplicitEuler(1e-3).step(model, state, throw=True)
        ends.append(state.velocity)
    assert torch.allclose(ends[0], ends[1], atol=1e-8)  # the tolerance of steps, 1e-8 of their forces


@pytest.mark.parametrize("integrator", [ImplicitMidpoint(1e-3), Newmark(1e-3)])
def test_other_integrators_are_refused(integrator):
    """Say which integrator goes with constraints."""
    model = constrained_crossing(0.3)
    with pytest.raises(InputError, match="ImplicitEuler"):
        integrator.step(model, model.initial_state())


def test_single_precision_is_refused():
    """Say which dtype goes with constraints, before a step."""
    model = constrained_crossing(0.3).float()
    with pytest.raises(InputError, match="Complementarity needs a model in torch.float64, .* model.double"):
        ImplicitEuler(1e-3).step(model, model.initial_state())


def test_options_without_meaning_are_refused():
    """Refuse a slip velocity where friction is not smoothed, its absence where it is, and unknown or mixed methods."""
    floor = HalfSpace((0, 0, 0), (0, 0, 1))
    with pytest.raises(InputError, match="slip_velocity"):
        Obstacle(floor, Complementarity(), Friction(0.3, 1e-3))
    with pytest.raises(InputError, match="slip_velocity"):
        Obstacle(floor, Penalty(1.0, 1e-3), Friction(0.3))
    with pytest.raises(InputError, match="method"):
        Complementarity(method="newton")
    builder = RobotBuilder()
    builder.add_rod(np.linspace([0, 0, 0.1], [0.1, 0, 0.1], 4), Circle(1e-3), Material(1e6, 1000.0))
    builder.add_contact(Obstacle(floor, Complementarity(), name="floor"))
    builder.add_contact(Obstacle(Sphere((0, 0, -1), 0.1), Complementarity(method="gauss_seidel"), name="ball"))
    with pytest.raises(InputError, match="gauss_seidel"):
        builder.finalize()


def leaning(mu: float, batch: int = 2):
    """Return a rod clamped above a floor, and another one that lies on its first edge, so that the clamp feels that."""
    builder = RobotBuilder()
    section, material = Circle(2e-3), Material(1e6, 1100.0)
    low = builder.add_rod(np.linspace([0, 0, 0.004], [0.1, 0, 0.002], 9), section, material)
    high = builder.add_rod(np.linspace([0.005, -0.05, 0.0095], [0.005, 0.05, 0.0065], 8), section, material)
    for node in (low[0], high[0]):
        builder.clamp(nodes=[int(node)], direction="rest")
    gravity = torch.tensor([[0.5, 0.2, -9.81], [0.0, -1.0, -7.0]], dtype=torch.float64)[:batch]
    builder.add_force(forces.Gravity(gravity))
    floor = HalfSpace((0, 0, 0), (0, 0, 1))
    builder.add_contact(Obstacle(floor, Complementarity(), Friction(mu) if mu else None, name="floor"))
    builder.add_contact(SelfContact(Complementarity(), Friction(mu) if mu else None, themselves=False))
    return builder.finalize(compile=False)


@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_reactions_of_clamps(mu):
    """Carry, with what the floor does, weight and the change of momentum; rods press on each other in between."""
    model, steps = leaning(mu), ImplicitEuler(5e-3, force_tolerance=1e-13, relative_tolerance=0.0)
    state, nodes, pressed = model.initial_state(2), 3 * model.body.n_nodes, 0
    for _ in range(12):
        before = state
        state, info = steps.step(model, before, throw=True)
        wrench = steps.reactions(model, before, state)
        gained = model.body.mass * (state.velocity - before.velocity) / steps.dt
        weight = sum(force(before, Control()) for force in model.forces)
        missing = (gained - weight)[:, :nodes].unflatten(1, (-1, 3)).sum(1) - info.contact["force/floor"]
        # 1e-9: a residual of 1e-13 N on each node, and rounding of stiffnesses of 1e3 N/m times 1e-16 m
        torch.testing.assert_close(wrench[:, :, :3].sum(1), missing, rtol=0, atol=1e-9)
        lifted = info.contact["force/part1"].abs().amax(1) > 0
        pressed += int(((info.contact["force/floor"][:, 2] > 0) & lifted).sum())
    assert pressed > 10  # of 24 robot-steps, with both contacts


def test_gradients_of_reactions():
    """Differentiate a reaction by gravity through a step with contacts, as differences do."""
    model, steps = leaning(0.4, 1), ImplicitEuler(5e-3, force_tolerance=1e-13, relative_tolerance=0.0)
    state = model.initial_state()
    for _ in range(8):
        state, _ = steps.step(model, state, throw=True)
    acceleration = model.forces[0].acceleration

    def reaction():
        after, info = steps.step(model, state, throw=True)
        assert int(info.contact["active"][0]) > 1
        return steps.reactions(model, state, after)[0, 0, 2]

    h, ends = 1e-4, []
    for change in (h, -2 * h):
        acceleration[..., 2] += change
        ends.append(float(reaction()))
    acceleration[..., 2] += h
    acceleration.requires_grad_()
    (gradient,) = torch.autograd.grad(reaction(), acceleration)
    # rounding of forces, 1e-11 N over the step
    assert float(gradient[..., 2]) == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5)


@pytest.mark.parametrize("mu", [None, 0.3])
@pytest.mark.parametrize("depth", [1e-7, 1e-3])
@pytest.mark.parametrize("integrator", [ImplicitEuler(2e-3), Static()], ids=["step", "static"])
def test_clamped_nodes_in_an_obstacle_are_left_there(integrator, depth, mu):
    """Solve steps of a rod whose clamped nodes overlap a floor, which no load can change; report how deep they are."""
    if mu is not None and isinstance(integrator, Static):
        pytest.skip("equilibria feel no friction")
    found = []
    for nodes in (None, range(2, 11)):
        builder = RobotBuilder()
        line = straight((0, 0, 2e-3), (0.2, 0, 2e-3), 11)
        line[:2, 2] -= depth
        builder.add_rod(line, Circle(2e-3), Material(1e6, 1100.0))
        builder.clamp([0, 1])
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        friction = None if mu is None else Friction(mu)
        builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Complementarity(), friction, nodes=nodes))
        model = builder.finalize()
        state, info = integrator.step(model, model.initial_state(), throw=True)
        found.append((state, info))
    (state, info), (other, expected) = found
    # both solve the same equations, each with a residual of 1e-12 N or so and gaps within 1e-8 m
    assert (state.q - other.q).abs().max() < 2e-8
    assert int(info.iterations) == int(expected.iterations)
    assert float(info.contact["penetration"]) == pytest.approx(depth, rel=1e-6)
    assert float(expected.contact["penetration"]) < 1e-8


def test_how_far_contacts_are_looked_for_is_each_robots_own():
    """Look for constraints as far from a thin robot as it does alone, whatever radii others of its batch have."""
    radii, found = torch.tensor([[1e-3], [8e-3], [2e-3]], dtype=torch.float64), []
    for rows in ([0, 1, 2], [0], [1], [2]):
        builder = RobotBuilder()
        line = straight((0, 0, 0.1), (0.2, 0, 0.1), 11)
        builder.add_rod(line, Circle(1e-3), Material(1e6, 1100.0), contact_radius=radii[rows])
        builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Complementarity()))
        model, euler = builder.finalize(), ImplicitEuler(1e-3)
        state, running = model.initial_state(len(rows)), torch.ones(len(rows), dtype=torch.bool)
        found.append(ContactCandidates(StepProblem(model, euler, state, Control(), euler.dt, running)).search_distance)
    assert torch.equal(found[0], torch.cat(found[1:]))
    # they do not move, so it is the mean of equal radii, to rounding
    torch.testing.assert_close(found[0], radii[:, 0], rtol=1e-15, atol=0)


@pytest.mark.parametrize(("spacing", "friction"), [(8e-3, None), (1e-2, 0.3)])
def test_sheets_that_lie_flat_on_each_other(spacing, friction):
    """Solve for contacts of which most are redundant: what they press with together is what stops the sheets."""
    mesh, builder = meshes.rectangle(0.04, 0.04, spacing), RobotBuilder()
    for k in range(2):
        shift = np.array([3e-3 * k, 2e-3 * k, 5.5e-4 + 1.05e-3 * k])
        builder.add_shell(mesh.nodes + shift, mesh.triangles, 1e-3, Material(1e6, 1000.0, 0.3), bending="midedge")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    floor, law = HalfSpace((0.0, 0.0, 0.0), (0.0, 0.0, 1.0)), Complementarity()
    rubs = None if friction is None else Friction(friction)
    builder.add_contact(Obstacle(floor, law, rubs, name="floor"))
    builder.add_contact(SelfContact(law, rubs))
    model = builder.finalize(compile=False)
    state, info = ImplicitEuler(5e-3).step(model, model.initial_state(), throw=True)
    assert int(info.contact["active"]) > 50
    assert float(info.contact["penetration"]) < 1e-8  # m, the law's tolerance
    mass = model.body.mass[: 3 * state.n_nodes : 3]
    stopping = float(mass @ (state.node_velocities[0, :, 2] / 5e-3 + 9.81))
    assert abs(float(info.contact["force/floor"][0, 2]) - stopping) < 1e-8 * stopping  # the step's relative tolerance


def test_robots_that_fail_are_not_searched_again_beside_others():
    """Let a robot fail as it does alone where another of its batch has overlooked a contact, and is solved again."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), nodes=9), Circle(3e-3), Material(7e5, 1100.0))
    builder.add_rod(straight((0.1, -0.08, 0.012), (0.1, 0.08, 0.012), nodes=10), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.clamp(nodes=[8], axes="yz")
    builder.add_force(forces.Gravity((0, 1.0, -9.81)))
    builder.add_contact(SelfContact(Penalty(200.0, 5e-4)))
    builder.add_contact(Obstacle(Sphere((0.08, 0, -0.034), 0.03), Complementarity(), name="ball"))
    model = builder.finalize()
    nodes, velocity = 3 * model.body.n_nodes, torch.zeros(12, model.n_dofs, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    velocity[:, :nodes] = 0.05 * torch.randn(12, nodes, generator=generator, dtype=torch.float64)
    state = model.initial_state(12, velocity=velocity * model.free)
    integrator = ImplicitEuler(2e-2, max_iterations=7)  # few: some searches fail
    for _ in range(2):
        state, _ = integrator.step(model, state)
    _, info = integrator.step(model, state)
    alone = [integrator.step(model, state.rows(slice(k, k + 1)))[1] for k in range(4)]
    assert not bool(info.converged.all()) and bool(info.converged.any())
    assert info.status[:4].tolist() == [int(own.status) for own in alone]


def test_redundant_contacts_at_the_limit_of_friction():
    """A rough rod is pushed along a rough floor by a clamped one: their edges touch at more places than rods can tell.

    The contact problem of an iterate was not solved to a hundredth of the contacts' tolerance, and the step failed.
    """
    builder, section = RobotBuilder(), Circle(3e-3)
    pusher = builder.add_rod(straight((0, -0.05, 1e-3), (0, 0.05, -1e-3), 3), section, Material(1e7, 1100.0))
    rod = builder.add_rod(straight((6.2e-3, -0.03, 0), (6.2e-3, 0.04, 5e-4), 5), section, Material(1e6, 1100.0))
    builder.clamp(nodes=pusher)
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_contact(SelfContact(Complementarity(), Friction(0.4)))
    floor, belt = (
        HalfSpace((0, 0, -3.1e-3), (0, 0, 1)),
        Path([0, 0.02, 0.1], [(0, 0, 0), (1e-3, 5e-4, 0), (4e-3, 3e-3, 0)]),
    )
    builder.add_contact(Obstacle(floor, Complementarity(), Friction(0.4), path=belt, nodes=rod))
    model = builder.finalize()
    state = model.initial_state()
    along_x = torch.zeros_like(state.q)
    along_x[:, 3 * torch.as_tensor(pusher)] = 1.0
    for step in range(1, 6):
        pushed = Control(clamped_q=model.initial_state().q + 6e-4 * step * along_x)
        state, info = ImplicitEuler(dt=4e-3).step(model, state, pushed, throw=True)
    assert info.contact["penetration"].max() < 1e-7
    assert (state.positions[0, 3:, 0] > state.positions[0, :3, 0].max() + 5.9e-3).all(), "the rod is ahead of the clamp"
