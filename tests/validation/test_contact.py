"""What contact does, against mechanics: inclines, weights, presses, capstans, collisions."""

import math

import numpy as np
import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Model,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    straight,
)
from torchdismech.contact import (
    Barrier,
    Capsule,
    Complementarity,
    Friction,
    HalfSpace,
    Obstacle,
    Penalty,
    SelfContact,
    Sphere,
)

GRAVITY = 9.81
TIGHT = {"force_tolerance": 1e-12, "relative_tolerance": 1e-10}
INTEGRATORS = {"euler": ImplicitEuler, "midpoint": ImplicitMidpoint, "newmark": Newmark}
TOLERANCE, SLIP = 1e-3, 1e-3
# what keeps a body of some grams some tenths of a millimetre off
POTENTIALS = {"penalty": lambda: Penalty(2e3, TOLERANCE), "barrier": lambda: Barrier(2e2, TOLERANCE)}
RESPONSES = {**POTENTIALS, "complementarity": lambda: Complementarity()}


def friction(kind: str, coefficient, slip: float = SLIP) -> Friction:
    """Return the friction that goes with a response."""
    return Friction(coefficient) if kind == "complementarity" else Friction(coefficient, slip)


def resting_gap(kind: str, load: float) -> float:
    """Return the gap [m] at which a response pushes with a load [N], by bisection."""
    if kind == "complementarity":
        return 0.0
    response = POTENTIALS[kind]()
    low, high = (-1.0 if kind == "penalty" else 0.0), TOLERANCE
    for _ in range(80):
        middle = torch.tensor(0.5 * (low + high), dtype=torch.float64)
        slope, _ = response.derivatives(middle, response.stiffness, response.tolerance)
        low, high = (float(middle), high) if -float(slope) > load else (low, float(middle))
    return 0.5 * (low + high)


def block(kind: str, gravity, mu=None, gap: float | None = None, slip: float = SLIP) -> tuple[Model, float]:
    """Return a stiff rod of four equal masses on the floor z = 0 (or a gap above it), and the weight on each node."""
    radius, length, count = 5e-3, 0.06, 4
    builder, material = RobotBuilder(), Material(1e9, 1000.0)
    share = 1000.0 * math.pi * radius**2 * length / (count - 1)
    # in equilibrium with the part of gravity that presses it on
    gravity = torch.as_tensor(gravity, dtype=torch.float64)
    load = share * float(gravity[..., 2].abs().max())
    height = radius + (resting_gap(kind, load) if gap is None else gap)
    index = builder.add_rod(straight((0, 0, height), (length, 0, height), count), Circle(radius), material)
    builder.add_mass([int(index[0]), int(index[-1])], 0.5 * share)
    builder.add_force(forces.Gravity(gravity))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), RESPONSES[kind](), mu and friction(kind, mu, slip)))
    return builder.finalize(), load


def stepped(model: Model, state, integrator, steps: int):
    """Return the state after some steps, all of which have to succeed."""
    for _ in range(steps):
        state, _ = integrator.step(model, state, throw=True)
    return state


@pytest.mark.parametrize("kind", RESPONSES)
def test_sticking_on_an_incline(kind):
    """Creep below the cone's angle: as the law says, below the slip velocity; not at all where it is a constraint."""
    mu, share = 0.5, 0.8  # of the steepest angle's tangent
    down = 0.4 * GRAVITY
    gravity = (share * mu * down, 0.0, -down)
    model, _ = block(kind, gravity, mu)
    state = stepped(model, model.initial_state(), ImplicitEuler(1e-2, **TIGHT), 15)
    speed = float(state.node_velocities[..., 0].mean())
    # mu N gamma(v) = m g sin(a)
    creep = {
        "penalty": SLIP / 7.5 * math.atanh(share),
        "barrier": SLIP * (1 - math.sqrt(1 - share)),
        "complementarity": 0.0,
    }[kind]
    # the steps have come to it within their tolerance: 1e-13
    assert speed == pytest.approx(creep, rel=1e-9, abs=1e-12)
    assert speed < SLIP


@pytest.mark.parametrize("kind", RESPONSES)
def test_sliding_down_an_incline(kind):
    """Slide with g (sin a - mu cos a), by gravity that leans and, the same, by a plane that does."""
    mu, angle, dt = 0.3, 0.5, 5e-3
    expected = GRAVITY * (math.sin(angle) - mu * math.cos(angle))
    model, _ = block(kind, (GRAVITY * math.sin(angle), 0.0, -GRAVITY * math.cos(angle)), mu)
    rule = ImplicitEuler(dt, **TIGHT)
    before = stepped(model, model.initial_state(), rule, 4)
    after = stepped(model, before, rule, 10)
    found = float((after.node_velocities - before.node_velocities)[..., 0].mean()) / (10 * dt)
    # the first steps slip slowly; after them friction is full: 1 % asked for, 1e-3 seen
    assert found == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("kind", RESPONSES)
def test_sliding_on_a_leaning_plane(kind):
    """Slide along the line of steepest descent of a plane that leans, whatever the rod's direction is."""
    mu, angle, dt = 0.3, 0.5, 5e-3
    normal = np.array([math.sin(angle) / math.sqrt(2), math.sin(angle) / math.sqrt(2), math.cos(angle)])
    down = np.array([0, 0, -1.0]) + normal * math.cos(angle)
    down /= np.linalg.norm(down)
    along = np.cross(normal, down)
    builder = RobotBuilder()
    radius, share = 5e-3, 1000.0 * math.pi * 25e-6 * 0.02
    gap = resting_gap(kind, share * GRAVITY * math.cos(angle))
    nodes = straight((0, 0, 0), 0.06 * along, 4) + (radius + gap) * normal
    builder.add_rod(nodes, Circle(radius), Material(1e9, 1000.0))
    builder.add_mass([0, 3], 0.5 * share)
    builder.add_force(forces.Gravity((0, 0, -GRAVITY)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), normal), RESPONSES[kind](), friction(kind, mu)))
    model = builder.finalize()
    rule = ImplicitEuler(dt, **TIGHT)
    before = stepped(model, model.initial_state(), rule, 4)
    after = stepped(model, before, rule, 10)
    gained = (after.node_velocities - before.node_velocities)[0].mean(0).numpy() / (10 * dt)
    expected = GRAVITY * (math.sin(angle) - mu * math.cos(angle))
    # friction is full after four steps, and implicit Euler exact for constant forces: 1e-11 seen
    assert np.abs(gained - expected * down).max() < 1e-8 * expected


@pytest.mark.parametrize("kind", POTENTIALS)
def test_resting_weight(kind):
    """Come to rest, after a fall, where the contact force is the weight, overlapping as the stiffness says."""
    model, load = block(kind, (0.0, 0.0, -GRAVITY), gap=2 * TOLERANCE)
    state = stepped(model, model.initial_state(), ImplicitEuler(2e-2, **TIGHT), 60)
    assert float(state.velocity.abs().max()) < 1e-8
    force = model.obstacles[0](state, Control())[0, : 3 * len(model.nodes)].view(-1, 3)
    weight = 4 * load
    assert float(force[:, 2].sum()) == pytest.approx(weight, rel=1e-8)
    gap = (state.positions[..., 2] - 5e-3).mean().item()
    assert gap == pytest.approx(resting_gap(kind, load), abs=1e-9)
    if kind == "barrier":
        assert gap > 0


def test_overlap_of_a_stiff_spring():
    """Overlap by weight / 2 k where that is deep against the tolerance."""
    model, load = block("penalty", (0.0, 0.0, -GRAVITY))
    model.obstacles[0].law.response.tolerance.fill_(1e-6)
    state = stepped(model, model.initial_state(), ImplicitEuler(2e-2, **TIGHT), 40)
    overlap = 5e-3 - state.positions[..., 2].mean().item()
    # 4e-6 m, four tolerances: linear to rounding; 2e-11 of the fall is left
    assert overlap == pytest.approx(load / (2 * 2e3), rel=1e-8)


@pytest.mark.parametrize("kind", POTENTIALS)
def test_rod_pressed_on_a_ball(kind):
    """Press a rod that is held at both ends on a ball: as a beam with a load in its middle, symmetric."""
    length, radius, count = 0.2, 2e-3, 41
    builder = RobotBuilder()
    material = Material(1e7, 1000.0)
    gap = 5e-5
    builder.add_rod(
        straight((-length / 2, 0, radius + gap), (length / 2, 0, radius + gap), count), Circle(radius), material
    )
    builder.clamp(nodes=[0, count - 1], axes="yz")
    builder.clamp(nodes=[count // 2], axes="xy")
    tolerance = 1e-4
    response = {"penalty": Penalty(1e4, tolerance), "barrier": Barrier(1e4, tolerance)}[kind]
    ball = Obstacle(Sphere((0, 0, -0.05), 0.05), response)
    builder.add_contact(ball)
    model = builder.finalize()
    state = model.initial_state()
    depth = 2e-3
    for share in (0.02, 0.1, 0.3, 0.6, 1.0):
        target = model.initial_state().q.clone()
        target[:, [2, 3 * count - 1]] -= share * depth
        state, _ = Static(**TIGHT).step(model, state, Control(clamped_q=target), throw=True)
    x = state.positions[0]
    lowered = float(x[count // 2, 2] - x[0, 2])
    # the ends' reactions are what the rod's elasticity asks of the clamps
    pull = model.mechanics.elastic_force(model.start_step(state), state.q)[0, : 3 * count].view(-1, 3)
    expected = 48 * 1e7 * math.pi * radius**4 / 4 / length**3 * lowered
    assert float(pull[[0, -1], 2].sum()) == pytest.approx(expected, rel=2e-2)  # of the slender beam; slope 0.03
    assert float((pull[[0, -1], 2].sum() + pull[1:-1, 2].sum()).abs()) < 1e-9  # in balance as a whole
    pushed = ball(state, Control())[0, : 3 * count].view(-1, 3)
    assert float((pushed + pull)[1:-1].abs().max()) < 1e-8
    assert float(pushed[:, 2].sum()) == pytest.approx(float(pull[[0, -1], 2].sum()), rel=1e-7)
    mirrored = x.flip(0) * torch.tensor([-1.0, 1, 1])
    assert float((x - mirrored).abs().max()) < 1e-9


def wrapped(kind: str, mu: float, angle: float, pull: float) -> tuple[Model, torch.Tensor, float]:
    """Return a fine, limp and stiff rod wrapped by an angle around a post; the direction it is pulled in; h."""
    radius, own = 0.05, 5e-4
    count = round(angle / 0.08)
    bow = angle / count
    ring = radius + own + resting_gap(kind, pull * bow)
    turn = math.pi - bow * np.arange(count + 1)
    arc = ring * np.stack([np.cos(turn), 0 * turn, np.sin(turn)], 1)
    step = 2 * ring * math.sin(bow / 2)
    out = np.array([math.sin(turn[-1]), 0.0, -math.cos(turn[-1])])
    tail = np.arange(3, 0, -1)[:, None] * [0, 0, -step] + arc[0]
    lead = np.arange(1, 6)[:, None] * step * out + arc[-1]
    builder = RobotBuilder()
    stiffness = {"EA": 1e4, "EI1": 1e-9, "EI2": 1e-9, "GJ": 1e-9}
    index = builder.add_rod(
        np.concatenate([tail, arc, lead]), Circle(own), Material(1e6, 1000.0), "straight", stiffness
    )
    builder.add_force(forces.PointForce([0], (0.0, 0.0, -pull)))
    builder.clamp(nodes=[int(index[-1])])
    post = Capsule((0, -1.0, 0), (0, 1.0, 0), radius)
    builder.add_contact(Obstacle(post, RESPONSES[kind](), friction(kind, mu, 1e-3)))
    return builder.finalize(), torch.as_tensor(out), step


@pytest.mark.parametrize("angle", [math.pi / 2, math.pi])
@pytest.mark.parametrize("kind", RESPONSES)
def test_capstan(kind, angle):
    """Pull a rope around a post: T2 / T1 = exp(mu phi)."""
    mu, pull, speed, dt = 0.3, 0.5, 1e-2, 4e-2
    model, out, step = wrapped(kind, mu, angle, pull)
    state, ratios = model.initial_state(), []
    rule = ImplicitEuler(dt, force_tolerance=1e-9, relative_tolerance=1e-8)
    target = state.q.clone()
    count = round(
        step / (speed * dt)
    )  # it slides by one edge: the wrapped nodes' number, and with it phi, is the mean one
    for k in range(2 * count):
        target[:, 3 * len(model.nodes) - 3 : 3 * len(model.nodes)] += speed * dt * out
        state, _ = rule.step(model, state, Control(clamped_q=target), throw=True)
        if k >= count:
            tension = 1e4 * model.strains(state)["stretch"][0]
            ratios.append(float(tension[-1] / tension[0]))
    # nodes every .08 rad, whose number on the post is the mean of two while the rope slides by an edge: .3 % seen
    assert np.mean(ratios) == pytest.approx(math.exp(mu * angle), rel=0.01)


def sticks(rough: bool) -> Model:
    """Return three single edges that fly at each other: they stretch and touch, and have nothing to bend or twist."""
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    ends = [
        ((-0.05, 0, 0), (0.05, 0.01, 0)),
        ((0.01, -0.04, 0.012), (0.0, 0.06, 0.015)),
        ((-0.03, -0.04, -0.02), (-0.02, 0.05, -0.01)),
    ]
    for start, end in ends:
        builder.add_rod(straight(start, end, 2), Circle(4e-3), material)
    builder.add_contact(SelfContact(Penalty(2e3, 2e-3), Friction(0.4, 0.05) if rough else None))
    return builder.finalize()


def thrown(model: Model, seed: int = 0):
    """Return a state in which the sticks fly at each other, turning."""
    generator = torch.Generator().manual_seed(seed)
    velocity = 0.1 * torch.randn(6, 3, dtype=torch.float64, generator=generator)
    velocity[2:4, 2] -= 0.5
    velocity[4:6, 2] += 0.5
    return model.initial_state(velocity=torch.cat([velocity.flatten(), torch.zeros(3, dtype=torch.float64)]))


def momenta(model: Model, state) -> tuple[torch.Tensor, torch.Tensor]:
    """Return momentum and angular momentum (3,) of the nodes."""
    mass = model.body.mass[: 3 * len(model.nodes)].view(-1, 3)
    p = mass * state.node_velocities[0]
    return p.sum(0), torch.linalg.cross(state.positions[0], p).sum(0)


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_momentum(integrator, rough):
    """Keep the momentum when parts of a robot collide; in the midpoint rule, without friction, the angular one, too.

    Friction acts on centre lines, |r| apart: it leaves a couple to the nodes, which in truth the sections would take.
    """
    model = sticks(rough)
    state = thrown(model)
    (p0, l0), touched = momenta(model, state), 0.0
    # tolerance 1e-10 N over 1 ms and 60 steps: 6e-12 N s
    rule = INTEGRATORS[integrator](1e-3, force_tolerance=1e-10, relative_tolerance=0.0)
    for _ in range(60):
        state, _ = rule.step(model, state, throw=True)
        touched += float(model.energies(state)["self_contact"])
    p1, l1 = momenta(model, state)
    assert touched > 1e-4
    assert float((p1 - p0).abs().max()) < 6e-12
    if integrator == "midpoint" and not rough:
        assert float((l1 - l0).abs().max()) < 6e-13
    assert float(p0.norm()) > 1e-4 and float(l0.norm()) > 1e-6


def bouncing(kind: str, rough: bool) -> Model:
    """Return a soft rod that leans above a soft floor: steps of 0.5 ms resolve the contact."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.0095), (0.1, 0, 0.012), 6), Circle(4e-3), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -GRAVITY)))
    response = {"penalty": Penalty(50.0, 5e-3), "barrier": Barrier(20.0, 5e-3)}[kind]
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), response, Friction(0.4, 0.1) if rough else None))
    return builder.finalize()


def energy(model: Model, state) -> float:
    """Return kinetic, elastic, contact and gravity's energy [J]."""
    heights = (model.body.mass[: 3 * len(model.nodes)].view(-1, 3)[:, 2] * state.positions[..., 2]).sum()
    return float(sum(e.sum() for e in model.energies(state).values()) + GRAVITY * heights)


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("kind", POTENTIALS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_no_energy_from_a_bounce(integrator, kind, rough):
    """Never have more energy than at the start, but for the bound of each integrator, in drop and bounce."""
    model = bouncing(kind, rough)
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    velocity[:, 2:18:3] = -0.4
    state = model.initial_state(velocity=velocity)
    start, most, least = energy(model, state), -math.inf, math.inf
    bent = 0.0
    for _ in range(50):
        state, _ = INTEGRATORS[integrator](5e-4).step(model, state, throw=True)
        most, least = max(most, energy(model, state)), min(least, energy(model, state))
        bent = max(bent, float(model.energies(state)["obstacle"]))
    fallen = float(model.energies(model.initial_state(velocity=velocity))["kinetic"])
    assert bent > 0.05 * fallen  # it hit the floor
    # Euler only loses. The others keep a quadratic energy: of the potential they err by (dt / time in contact)^2
    bound = {"euler": 1e-9, "midpoint": 0.03, "newmark": 0.03}[integrator]
    assert most - start < bound * fallen
    if not rough and integrator != "euler":
        assert start - least < 0.02 * fallen  # Newmark's: .9 % seen


@pytest.mark.parametrize("integrator", ["euler", "newmark"])  # the midpoint rule sees gaps in the middle of steps
def test_barrier_keeps_gaps_open(integrator):
    """Keep every gap above zero, in every step, while a limp rod is thrown onto a floor, a ball and itself."""
    builder = RobotBuilder()
    t = np.linspace(0, 1, 16)
    coil = np.stack([0.03 * np.cos(9 * t), 0.03 * np.sin(9 * t), 0.03 + 0.04 * t], 1)
    builder.add_rod(coil, Circle(2e-3), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -GRAVITY)))
    barrier = lambda: Barrier(50.0, TOLERANCE)  # noqa: E731
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), barrier(), Friction(0.3, 0.01)))
    builder.add_contact(Obstacle(Sphere((0.03, 0, 0.0), 0.012), barrier(), name="ball"))
    builder.add_contact(SelfContact(barrier(), Friction(0.3, 0.01), ring=3))
    model = builder.finalize()
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    velocity[:, 2 : 3 * len(model.nodes) : 3] = -2.0
    state, smallest, touches = model.initial_state(velocity=velocity), math.inf, 0
    rule = INTEGRATORS[integrator](2e-3, max_substeps=8)
    for _ in range(25):
        state, _ = rule.step(model, state, throw=True)
        gaps = [o.gap(state.q, state.time).min() for o in model.obstacles]
        pairs = model.contact.may_touch(state.q, state.q, torch.full((1,), 1e-3, dtype=torch.float64)).listed
        found = model.self_contacts.touching(pairs, state.q, state.velocity)
        gaps += [f.gap.min() for f in found if len(f.gap)]
        touches += sum(len(f.gap) for f in found)
        smallest = min(smallest, float(min(gaps)))
    assert 0 < smallest < 0.5 * TOLERANCE
    assert touches > 10


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_order_of_convergence(integrator):
    """Converge with the integrator's order in a soft contact."""
    order = {"euler": 1, "midpoint": 2, "newmark": 2}[integrator]
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.0105), (0.1, 0, 0.012), 6), Circle(4e-3), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -GRAVITY)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0.1, 0, 1)), Penalty(5.0, 2e-2)))
    model = builder.finalize()
    ends = []
    for dt in (1e-3, 5e-4, 2.5e-4):
        rule = INTEGRATORS[integrator](dt, force_tolerance=1e-12, relative_tolerance=0.0)
        state = stepped(model, model.initial_state(), rule, round(0.03 / dt))
        ends.append(state.positions)
    seen = math.log2(float((ends[0] - ends[1]).norm() / (ends[1] - ends[2]).norm()))
    assert seen == pytest.approx(order, abs=0.1)  # terms of the next order: .015 seen
