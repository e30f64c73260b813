"""Semismooth Newton steps on obstacles that are constraints, and the recordings of whole steps by them."""

import pytest
import torch

from tests.integrate.recordings import course
from torchdismech import Circle, Control, ImplicitEuler, Material, RobotBuilder, Status, forces, straight
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, SelfContact, Shape, Sphere
from torchdismech.integrate import step as integrate_step
from torchdismech.integrate.candidates import constraints_of_points
from torchdismech.integrate.recorded import recording
from torchdismech.integrate.recorded.contact_step import RecordedContactStep
from torchdismech.integrate.search import attempts

NEVER = 10**9


def rods(mu=0.4, ball=False, spacing=None, self_contact=None, gravity=-9.81, planar=False):
    """Return rods of 9 nodes above a rough floor, or above a ball on it."""
    builder = RobotBuilder(planar=planar)
    builder.add_rod(straight((0, 0, 0.05), (0.2, 0, 0.05), 9), Circle(5e-3), Material(1e6, 1000.0, 0.5))
    builder.add_force(forces.Gravity((0.0, 0.0, gravity)))
    shapes = {"floor": HalfSpace((0, 0, 0), (0, 0, 1))} | ({"ball": Sphere((0.1, 0.002, 0.0), 0.03)} if ball else {})
    for name, shape in shapes.items():
        friction = Friction(mu) if mu else None
        between = None if name == "floor" else spacing  # what lies between nodes above a plane is above it, too
        builder.add_contact(Obstacle(shape, Complementarity(), friction, name=name, spacing=between))
    if self_contact is not None:
        builder.add_contact(SelfContact(self_contact))
    return builder.finalize(compile=False)


def thrown(model, batch, seed=0):
    """Return states of rods that are thrown at the floor, each in its own way."""
    generator = torch.Generator().manual_seed(seed)
    count = model.body.n_nodes
    along = torch.randn(batch, 1, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 1.0, 0.5])
    velocity = torch.zeros(batch, model.n_dofs, dtype=torch.float64)
    own = 0.3 * torch.randn(batch, count, 3, generator=generator, dtype=torch.float64)
    velocity[:, : 3 * count] = (own + along).flatten(1)
    velocity[:, ~model.free] = 0  # of planar robots
    return model.initial_state(batch, velocity=velocity)


@pytest.fixture
def taken(monkeypatch):
    """The steps that recordings of steps on obstacles have taken, None for those that they did not take."""
    steps, original = [], RecordedContactStep.taken
    monkeypatch.setattr(RecordedContactStep, "taken", lambda *given: steps.append(original(*given)) or steps[-1])
    return steps


CASES = {
    "smooth floor": lambda: rods(0.0),
    "rough floor": rods,
    "ball and floor": lambda: rods(ball=True),
    "points between nodes": lambda: rods(ball=True, spacing=0.01),
    "planar": lambda: rods(planar=True),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_search_that_finds_all_loads_of_an_iterate(case, monkeypatch):
    """Find the same motion and reports by both, within the tolerance of steps."""
    start = thrown(CASES[case](), 3)
    found = course(CASES[case](), start, ImplicitEuler(4e-3), 20)
    monkeypatch.setattr(attempts, "uses_active_sets", lambda *_: False)
    expected = course(CASES[case](), start, ImplicitEuler(4e-3), 20)
    assert sum(int(info.contact["active"].sum()) for _, info in found) > 30
    for (state, info), (other, other_info) in zip(found, expected, strict=True):
        assert bool(info.converged.all())
        # residuals of 1e-8 of the forces and gaps of 1e-6 m at most; found: 4e-9 m
        assert float((state.q - other.q).abs().max()) < 1e-7
        assert torch.equal(info.contact["active"], other_info.contact["active"])
        assert torch.equal(info.contact["sliding"], other_info.contact["sliding"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dt", "rounds"), [(2e-3, attempts.SEMISMOOTH_STEPS), (1e-2, 3)])
def test_recorded_steps_have_the_bits_of_others(case, dt, rounds, monkeypatch, taken):
    """Find the same states, iterations and reports by recordings, also where few rounds leave some robots to Python."""
    monkeypatch.setattr(attempts, "SEMISMOOTH_STEPS", rounds)
    found = []
    for before in (3, NEVER):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", before)
        model = CASES[case]()
        found.append(course(model, thrown(model, 4), ImplicitEuler(dt), 20 if dt < 5e-3 else 14))
    assert sum(step is not None and (step.unsolved is None or not bool(step.unsolved.all())) for step in taken) > 5
    for (state, info), (other, other_info) in zip(*found, strict=True):
        assert torch.equal(state.q, other.q) and torch.equal(state.velocity, other.velocity)
        assert torch.equal(info.iterations, other_info.iterations) and torch.equal(info.status, other_info.status)
        assert info.contact.keys() == other_info.contact.keys()
        assert all(torch.equal(value, other_info.contact[name]) for name, value in info.contact.items())


def test_recorded_steps_beside_self_contact(monkeypatch, taken):
    """Find the same motion where parts that do not touch could; pairs change the order of sums."""
    found = []
    for before in (3, NEVER):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", before)
        model = rods(self_contact=Complementarity())
        found.append(course(model, thrown(model, 3), ImplicitEuler(4e-3), 18))
    assert sum(step is not None for step in taken) > 5
    for (state, info), (other, other_info) in zip(*found, strict=True):
        assert float((state.q - other.q).abs().max()) < 1e-9  # rounding of 1e-16, in impacts of 18 steps
        assert torch.equal(info.contact["active"], other_info.contact["active"])


@pytest.mark.parametrize(("height", "gravity"), [(0.02, -9.81), (5e-3, 9.81)], ids=["lands", "takes off"])
def test_steps_after_inference_mode(height, gravity, monkeypatch):
    """Land, or take off, in inference mode first, with the same motion as outside of it afterwards."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
    model = rods(self_contact=Complementarity(), gravity=gravity)
    state, count = model.initial_state(), model.body.n_nodes
    state.q[:, 2 : 3 * count : 3] = height
    state, _ = course(model, state, ImplicitEuler(8e-3), 1)[-1]
    with torch.inference_mode():
        inside = course(model, state, ImplicitEuler(8e-3), 10)
    outside = course(model, state, ImplicitEuler(8e-3), 10)
    assert int(outside[-1][1].contact["active"]) == (9 if gravity < 0 else 0)
    for (there, _), (here, _) in zip(inside, outside, strict=True):
        assert torch.allclose(there.q, here.q, rtol=0, atol=1e-9)


def test_some_robots_are_left_to_python(monkeypatch, taken):
    """See that in steps of 10 ms there are robots that three rounds do not solve, beside others that they do."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 3)
    monkeypatch.setattr(attempts, "SEMISMOOTH_STEPS", 3)
    model = rods()
    infos = [info for _, info in course(model, thrown(model, 8), ImplicitEuler(1e-2), 20)]
    assert all(bool(info.converged.all()) for info in infos)
    unsolved = [step.unsolved for step in taken if step is not None and step.unsolved is not None]
    assert unsolved and all(not bool(rows.all()) for rows in unsolved)


def test_gradients_of_recorded_steps_are_those_of_others(monkeypatch, taken):
    """Differentiate the end of a throw by the velocities at its beginning, by recordings and without.

    Three rounds leave some robots to Python, which finds their loads.
    """
    monkeypatch.setattr(attempts, "SEMISMOOTH_STEPS", 3)
    found = []
    for before in (3, NEVER):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", before)
        model = rods()
        state = thrown(model, 4)
        state = state.replace(velocity=state.velocity.clone().requires_grad_())
        end, _ = course(model, state, ImplicitEuler(1e-2), 14)[-1]
        (gradient,) = torch.autograd.grad((end.q * torch.linspace(1, 2, end.q.shape[1])).sum(), state.velocity)
        found.append(gradient)
    assert any(step is not None and step.unsolved is not None for step in taken)
    assert float(found[0].abs().max()) > 1e-3
    # the adjoint equations of a recorded step are solved to 1e-9
    assert float((found[0] - found[1]).abs().max()) < 1e-7 * float(found[1].abs().max())


def test_rows_of_a_batch_are_robots_alone(taken):
    """Match robots alone in a batch, some of which fly while others slide."""
    model = rods()
    start = thrown(model, 3)
    together = course(model, start, ImplicitEuler(4e-3), 20)
    assert any(step is not None for step in taken)
    for k in (0, 2):
        alone = course(rods(), start.rows([k]), ImplicitEuler(4e-3), 20)
        for (state, _), (own, _) in zip(together, alone, strict=True):
            assert float((state.q[k] - own.q[0]).abs().max()) < 1e-12  # the order of sums, in parts of a metre


def test_numbers_that_change_between_steps(monkeypatch, taken):
    """Read each step's own dt, gravity and friction in recorded steps."""
    found = []
    for before in (3, NEVER):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", before)
        model = rods()
        state, rules = thrown(model, 2), [ImplicitEuler(dt) for dt in (2e-3, 1e-3)]
        states = []
        for k in range(24):
            model.forces[0].acceleration.data[..., 2] = -9.81 - k % 3
            model.obstacles[0].law.friction.coefficient.data.fill_(0.2 + 0.1 * (k % 4))
            state, info = rules[k % 2].step(model, state)
            assert bool(info.converged.all())
            states.append(state.q)
        found.append(states)
    assert sum(step is not None for step in taken) > 15
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


class Unrecorded(forces.Force):
    """A load of the user's that is constant in a step, so that its sum is given to recordings."""

    constant = True
    times_asked = 0

    def forward(self, state, control):
        """Return no force (B, n)."""
        Unrecorded.times_asked += 1
        return torch.zeros_like(state.q)


class Ground(Shape):
    """The space below a height, which is a plain number that the user may change."""

    endless = True

    def __init__(self):
        super().__init__()
        self.height = 0.0

    def distance_and_derivatives(self, points):
        """Return heights above the ground, and their derivatives."""
        normal = torch.zeros_like(points) + points.new_tensor([0, 0, 1])
        return points[..., 2] - self.height, normal, points.new_zeros(*points.shape, 3)

    @property
    def depth(self):
        """Return that it has no far side."""
        return torch.tensor(torch.inf, dtype=torch.float64)


def beside_a_load(shape, coefficient):
    """Return a rod on an obstacle, on which a load acts that recordings do not evaluate."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 5e-3), (0.2, 0, 5e-3), 9), Circle(5e-3), Material(1e6, 1000.0, 0.5))
    builder.add_force(forces.Gravity((1.0, 0.0, -9.81)))
    builder.add_force(Unrecorded())
    builder.add_contact(Obstacle(shape, Complementarity(), Friction(coefficient), name="floor"))
    return builder.finalize(compile=False)


@pytest.mark.parametrize("given", ["in the model", "by a control"])
def test_friction_of_each_robot_beside_a_load_of_the_users(given, taken):
    """Rub each robot by its own coefficient in all chunks of a batch, also where a control sets it in later steps."""
    coefficients = torch.tensor([[0.0], [0.02], [0.04], [0.2]], dtype=torch.float64)
    floor = HalfSpace((0, 0, 0), (0, 0, 1))
    model = beside_a_load(floor, coefficients if given == "in the model" else 0.3)
    control = None if given == "in the model" else Control(values={"floor.friction": coefficients})
    state = model.initial_state(4)
    for _ in range(0 if control is None else 16):
        state, _ = ImplicitEuler(4e-3, chunk=2).step(model, state)
    taken.clear()
    for _ in range(20):
        state, _ = ImplicitEuler(4e-3, chunk=2).step(model, state, control)
    assert any(step is not None for step in taken)
    speed = state.velocity[:, 0]
    assert speed[3] < 1e-6
    assert torch.allclose(speed[:3], 0.08 * (1 - 9.81 * coefficients[:3, 0]), rtol=0.02)


@pytest.mark.parametrize("height", [0.0, -1.0])
def test_loads_of_users_are_asked_for_once_a_step(height, taken):
    """Evaluate a user's load as often in a recorded step as in others, on the floor and far above it."""
    model = beside_a_load(HalfSpace((0, 0, height), (0, 0, 1)), 0.3)
    state = model.initial_state()
    for step in range(20):
        before = Unrecorded.times_asked
        state, _ = ImplicitEuler(1e-3).step(model, state)
        if 0 < step < 12 or step > 15:  # not those in which models are tried and recordings made
            assert Unrecorded.times_asked == before + 1
    assert taken and taken[-1] is not None


class SaidGround(Ground):
    """The same, which may be recorded."""

    records = True


@pytest.mark.parametrize("kind", [Ground, SaidGround])
def test_shapes_are_recorded_if_they_say_so(kind, taken):
    """Read the height of a user's shape in each step, and record the steps with it only if it says `records`."""
    model = beside_a_load(kind(), 0.3)
    (ground,) = (module for module in model.modules() if isinstance(module, Ground))
    state = model.initial_state()
    for _ in range(16):
        state, _ = ImplicitEuler(4e-3).step(model, state)
    assert any(step is not None for step in taken) == (kind is SaidGround)
    ground.height = 1e-3
    state, info = ImplicitEuler(4e-3).step(model, state)
    assert bool(info.converged)
    assert float((state.positions[..., 2] - 6e-3).abs().max()) < 1e-7


def test_a_robot_that_rounds_do_not_solve_goes_on_from_there(monkeypatch, taken):
    """Take rounds that have failed in a recording no second time in Python, also where the robot is alone."""
    monkeypatch.setattr(attempts, "SEMISMOOTH_STEPS", 2)
    in_python, original = [], integrate_step.semismooth_newton
    monkeypatch.setattr(integrate_step, "semismooth_newton", lambda *given: in_python.append(given) or original(*given))
    model = rods()
    infos = [info for _, info in course(model, thrown(model, 1), ImplicitEuler(1e-2), 24)]
    assert all(bool(info.converged.all()) for info in infos)
    assert any(step.unsolved is not None for step in taken)
    assert len(in_python) + len(taken) <= 24


def test_friction_that_is_nan_fails_steps_in_flight(taken):
    """Refuse a coefficient of NaN in recorded steps, too, while nothing touches."""
    model = rods()
    state = course(model, model.initial_state(2), ImplicitEuler(2e-3), 15)[-1][0]
    model.obstacles[0].law.friction.coefficient.data.fill_(torch.nan)
    after, info = ImplicitEuler(2e-3).step(model, state)
    assert taken and info.status.tolist() == [int(Status.NOT_FINITE)] * 2
    assert torch.equal(after.q, state.q)


@pytest.mark.parametrize("name", ["velocity", "time"])
def test_a_robot_that_is_not_finite_fails_alone(name, taken):
    """Leave a robot with NaN where it is, also where no force reads that, and step the other; tell both by status."""
    model = rods()
    state = thrown(model, 2)
    course(model, state, ImplicitEuler(2e-3), 15)
    getattr(state, name)[0] = torch.nan
    after, info = ImplicitEuler(2e-3).step(model, state)
    assert info.status.tolist() == [int(Status.NOT_FINITE), int(Status.CONVERGED)]
    assert torch.equal(after.q[0], state.q[0]) and not torch.equal(after.q[1], state.q[1])
    assert taken[-1].unsolved.tolist() == [True, False]


@pytest.mark.parametrize("planar", [False, True])
def test_a_rod_at_rest_takes_one_round(planar, taken):
    """Rest on the floor with its weight as the load, one round a step, by recordings."""
    model = rods(planar=planar)
    state, count = model.initial_state(), model.body.n_nodes
    state.q[:, 2 : 3 * count : 3] = 5e-3  # onto the floor: it is 5 mm thick
    infos = [info for _, info in course(model, state, ImplicitEuler(2e-3), 20)]
    weight = 9.81 * float(model.body.mass[: 3 * count].sum()) / 3
    assert float(infos[-1].contact["load/floor"]) == pytest.approx(weight, rel=1e-6)
    assert [int(info.iterations) for info in infos[-5:]] == [1] * 5
    assert taken[-1].unsolved is None


def test_rods_that_cross_need_few_rounds(monkeypatch):
    """Solve nearly all steps of a rough rod that slides over another, whose friction changes what presses it.

    Friction that follows its load from solve to solve alone goes round in circles there, or takes up to 20 rounds.
    """
    ends, original = [], integrate_step.semismooth_newton
    monkeypatch.setattr(integrate_step, "semismooth_newton", lambda *given: ends.append(original(*given)) or ends[-1])
    builder = RobotBuilder()
    held = builder.add_rod(straight((-0.3, 0, 0), (0.3, 0, 0), 13), Circle(1e-2), Material(1e6, 1000.0))
    builder.add_rod(straight((0.013, -0.3, 0.03), (0.01, 0.3, 0.03), 13), Circle(1e-2), Material(1e6, 1000.0))
    builder.clamp(nodes=[held[0], held[-1]], direction="rest")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_contact(SelfContact(Complementarity(), Friction(0.4)))
    model = builder.finalize(compile=False)
    course(model, model.initial_state(), ImplicitEuler(5e-3), 45)
    rounds = torch.cat([root.iterations for root in ends])
    failed = sum(int((root.status != Status.CONVERGED).sum()) for root in ends)
    assert len(ends) > 20 and failed <= len(ends) // 10
    assert float(rounds.double().quantile(0.8)) <= 8


def test_points_between_nodes_that_are_too_many_to_be_closed_at_once(monkeypatch):
    """Solve all steps of a rod that falls on a smooth ball, which more points touch at once than nodes could follow."""
    ends, original = [], integrate_step.semismooth_newton
    monkeypatch.setattr(integrate_step, "semismooth_newton", lambda *given: ends.append(original(*given)) or ends[-1])
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", NEVER)
    builder = RobotBuilder()
    rod = builder.add_rod(straight((0, 0, 0), (1, 0, 0), 41), Circle(1e-2), Material(1e6, 1000.0))
    builder.clamp(nodes=[rod[0]], direction="rest")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_force(forces.MassDamping(0.5))
    builder.add_contact(Obstacle(Sphere((0.6, 0.02, -0.25), 0.15), Complementarity(), spacing=0.01))
    model = builder.finalize(compile=False)
    found = course(model, model.initial_state(), ImplicitEuler(5e-3), 80)
    active = torch.stack([info.contact["active"] for _, info in found])
    assert len(ends) > 20 and int(active.max()) >= 3
    assert all(bool((root.status == Status.CONVERGED).all()) for root in ends)


def test_the_deepest_of_contacts_that_share_nodes():
    """Keep the contacts that no deeper one has a node in common with; those of single nodes all."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 3), Circle(1e-2), Material(1e6, 1000.0))
    builder.add_contact(Obstacle(HalfSpace((0, 0, -1), (0, 0, 1)), Complementarity()))
    builder.add_contact(Obstacle(Sphere((0, 0, -1), 0.5), Complementarity(), spacing=0.04, name="ball"))
    model = builder.finalize(compile=False)
    state = model.initial_state(2)
    constraints = constraints_of_points(model.contact, state, state.time)
    floor, ball = constraints.of_obstacles
    gap = torch.ones(len(constraints), dtype=torch.float64)
    nodes = constraints.nodes[ball][: len(gap[ball]) // 2]
    between = [k for k in range(len(nodes)) if len(set(nodes[k].tolist())) > 1]
    deep = torch.zeros(len(gap), dtype=torch.bool)
    deep[floor] = True  # at nodes, on another obstacle
    gap[floor] = -3.0
    chosen = torch.arange(ball.start, ball.start + len(nodes))[between]
    deep[chosen], gap[chosen] = True, torch.linspace(-1.0, -2.0, len(between), dtype=torch.float64)
    kept = constraints.deepest(deep, gap)
    assert bool(kept[floor][:3].all())  # nothing of the ball is deeper
    assert not bool(kept[chosen].any())
    gap[floor] = -1e-3
    kept = constraints.deepest(deep, gap)
    assert bool(kept[chosen[-1]]) and int(kept[chosen].sum()) < len(between)
