"""Several steps as one function to autograd: the states and gradients of single steps, whichever loads act."""

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from models import ResidualEnergy
from tests.integrate.recordings import INTEGRATORS, LOADS, Wind, plates, rods_on_cpu, surface_loads
from tests.rods import rod_through
from torchdismech import BDF2, Circle, Control, ImplicitEuler, Material, forces, magnetics, rollout, trainable, unroll
from torchdismech.errors import FailureWarning
from torchdismech.integrate.recorded.series import RecordedSeries

STEPS = 20
METHODS = {**INTEGRATORS, "bdf2": functools.partial(BDF2, 2e-3)}
# Gradients of a constant are summed over the steps of a part of the batch and then over its parts, or over the parts of
# a step and then over steps: some hundred terms, each rounded to 1e-16.
ROUNDING = 1e-12


def one_by_one(model, state, integrator, control=None):
    """Return q and velocity (T, B, n) after single steps, and the state after all."""
    q, velocity = [], []
    for step in range(STEPS):
        state, _ = integrator.step(model, state, None if control is None else control(step))
        q.append(state.q)
        velocity.append(state.velocity)
    return torch.stack(q), torch.stack(velocity), state


def loss(q, velocity, state):
    """Return a number that depends on all steps, and on all that can be differentiated of the last state."""
    weight = torch.linspace(-1, 1, q.shape[-1], dtype=q.dtype)
    last = [f.square().sum() for f in (state.q, state.acceleration, state.director, state.tangent)]
    return (q * weight).square().sum() + 1e-3 * (velocity * weight).sum() + 1e-6 * torch.stack(last).sum()


def assert_same(model, integrator, trained, rows, courses, control=None, schedule=None):
    """Hold a rollout as one function against single steps: states to the bit, gradients but for rounding."""
    torch.manual_seed(0)
    state = model.initial_state(batch=rows).detach()
    velocity = (0.05 * torch.rand_like(state.velocity)).requires_grad_()
    start = state.replace(velocity=velocity)
    one_by_one(model, start, integrator, control)  # records steps
    q, last_velocity, after = one_by_one(model, start, integrator, control)
    expected = torch.autograd.grad(loss(q, last_velocity, after), [velocity, *trained])
    assert not courses
    for _ in range(2):  # before there is a recording of the gradients, and with it
        run = unroll(model, start, integrator, STEPS, schedule)
        found = torch.autograd.grad(loss(run.q[1:], run.velocity[1:], run.state), [velocity, *trained])
        assert torch.equal(run.q[1:], q) and torch.equal(run.velocity[1:], last_velocity)
        assert all(map(torch.equal, run.state.fields(), after.fields()))
        for ours, theirs in zip(found, expected, strict=True):
            assert (theirs != 0).any()
            assert (ours - theirs).abs().max() <= ROUNDING * theirs.abs().max()
    assert courses == [STEPS, STEPS]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("chunk", [2, "auto"])
def test_rods_with_trained_constants(method, chunk, courses):
    """Differentiate by a stiffness of each robot and a number for all, in parts of which two share a robot."""
    model = rods_on_cpu(5, forces.Viscous(0.1))
    factor = trainable.scaled(model, ["bend_twist.EI1"])
    shared = next(p for name, p in model.named_parameters() if "viscosity" in name or "coefficient" in name)
    trained = [*factor.parameters(), shared.requires_grad_()]
    assert_same(model, METHODS[method](chunk=chunk), trained, 5, courses)


@pytest.mark.parametrize("load", [name for name in LOADS if name != "explicit"])
def test_loads_and_obstacles(load, courses):
    """Differentiate steps with loads that change within them, and with contact with obstacles."""
    assert_same(rods_on_cpu(2, LOADS[load]()), ImplicitEuler(2e-3), [], 2, courses)


@pytest.mark.parametrize("load", ["drag", "rough floor"])
def test_shells(load, courses):
    """Differentiate steps of plates, whose normals are found anew in each."""
    model = plates(surface_loads()[load](), "midedge")
    constant = trainable.scaled(model, ["midedge.stiffness"])
    assert_same(model, ImplicitEuler(2e-3), list(constant.parameters()), 2, courses)


class Breeze(forces.Force):
    """A force of a user's that is the same throughout a step, and says that recordings may hold it."""

    constant = records = True

    def __init__(self):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.tensor(1e-4, dtype=torch.float64))

    def forward(self, state, control):
        """Return the force (B, n), which grows with time."""
        return self.strength * (1 + state.time[:, None]) * torch.ones_like(state.q)


def helix(*loads):
    """Return the builder of a curved rod that loads act on."""
    t = torch.linspace(0, 1, 9, dtype=torch.float64)
    points = torch.stack([0.2 * t, 0.03 * torch.cos(6 * t), 0.03 * torch.sin(6 * t)], dim=1)
    return rod_through(points.numpy(), Circle(2e-3), Material(1e6, 1000.0), list(loads), "end")


class Mute(Breeze):
    """A force that inherits from one that says `records`, and does not say so itself."""


USERS = {"in the step": Wind, "explicit": functools.partial(Wind, explicit=True), "constant": Breeze}


@pytest.mark.parametrize("method", ["euler", "bdf2"])
@pytest.mark.parametrize("force", USERS)
def test_users_forces_that_say_records(force, method, courses):
    """Hold learned forces, and their gradients by weights, which are others in a second course."""
    wind = USERS[force]()
    model = rods_on_cpu(2, wind)
    for _ in range(2):
        assert_same(model, METHODS[method](), list(wind.parameters()), 2, courses)
        courses.clear()
        with torch.no_grad():
            for weight in wind.parameters():
                weight.mul_(1.1)
    alone, _ = METHODS[method]().step(model, model.initial_state(batch=2))
    after, went = METHODS[method]().steps(model, model.initial_state(batch=2), 1)
    assert went.count == 1 and torch.equal(after.q, alone.q)


def test_a_learned_energy(courses):
    """Hold an energy that says `records`, and its gradients by weights."""
    energy = ResidualEnergy(hidden=(4,))
    with torch.no_grad():
        energy.network[-1].weight.add_(0.1)  # the energy is zero before it has learned something
    builder = helix(forces.Gravity((0, 0, -9.81)))
    builder.add_energy("bend_twist", energy)
    weights = [energy.network[0].weight, energy.network[-1].weight]
    assert_same(builder.finalize(compile=False), ImplicitEuler(2e-3), weights, 2, courses)


def test_fields_that_are_functions_of_time_go_one_by_one(courses):
    """Ask for the field of each step before it, as recordings are given its numbers."""
    field = magnetics.Magnetic((3e4, 0.0, 0.0), lambda time: 5e-3 * torch.stack([0 * time, time.cos(), time.sin()], -1))
    model, integrator = rods_on_cpu(2, field), ImplicitEuler(2e-3)
    for _ in range(2):
        run = unroll(model, model.initial_state(batch=2), integrator, STEPS)
    q, _, _ = one_by_one(model, model.initial_state(batch=2), integrator)
    assert not courses and torch.equal(run.q[1:], q)


def test_users_forces_that_say_nothing_go_one_by_one(courses):
    """Ask them in each step, also where others say that they need not be."""
    for silent in (Mute(), Wind()):
        model = helix(Wind(), silent).finalize(compile=False)
        one_by_one(model, model.initial_state(batch=2), ImplicitEuler(2e-3))
        unroll(model, model.initial_state(batch=2), ImplicitEuler(2e-3), 5)
        assert bool(courses) == isinstance(silent, Wind)


class Pull:
    """A schedule that may be asked ahead."""

    ahead = True

    def __call__(self, time, model):
        """Return a force that grows with time."""
        return Control(force=1e-2 * time[:, None] * model.nodes.new_ones(len(time), model.n_dofs))


def test_a_schedule_that_is_asked_ahead(courses):
    """Set another control in each step, and differentiate those steps."""
    model = rods_on_cpu(2)
    integrator, pull = ImplicitEuler(2e-3), Pull()
    start = model.initial_state(batch=2)

    def control(step):
        return pull(start.time + 2e-3 * torch.ones(2, dtype=torch.float64).cumsum(0)[:1] * (step + 1), model)

    times = [start.time]
    for _ in range(STEPS):
        times.append(times[-1] + 2e-3)
    assert_same(model, integrator, [], 2, courses, lambda step: pull(times[step + 1], model), pull)


def test_more_steps_than_one_course_has(courses):
    """Begin the next course where the last one ended, and pass gradients through all."""
    model, integrator = rods_on_cpu(2), ImplicitEuler(2e-3)
    velocity = torch.zeros(2, model.n_dofs, dtype=torch.float64).requires_grad_()
    start = model.initial_state(velocity=velocity)
    alone = unroll(model, start, integrator, 70, lambda time, model: Control())
    run = unroll(model, start, integrator, 70)
    assert courses == [50, 20] and torch.equal(run.q, alone.q)
    found, expected = (torch.autograd.grad(r.q[-1].sum(), velocity)[0] for r in (run, alone))
    assert (found - expected).abs().max() <= 10 * ROUNDING * expected.abs().max()


def test_a_loss_of_the_last_state_alone(courses):
    """Take gradients where nothing depends on the steps between."""
    model, integrator = rods_on_cpu(2), ImplicitEuler(2e-3)
    state = model.initial_state(batch=2).detach()
    velocity = torch.zeros_like(state.velocity).requires_grad_()
    start = state.replace(velocity=velocity)
    *_, after = one_by_one(model, start, integrator)
    (expected,) = torch.autograd.grad(after.tangent.square().sum() + after.q[:, 5].sum(), velocity)
    last = unroll(model, start, integrator, STEPS).state
    (found,) = torch.autograd.grad(last.tangent.square().sum() + last.q[:, 5].sum(), velocity)
    assert courses == [STEPS] and (found - expected).abs().max() <= ROUNDING * expected.abs().max()


@pytest.mark.filterwarnings("ignore::torchdismech.errors.FailureWarning")
def test_a_course_ends_before_a_step_that_fails(courses):
    """Leave a robot where it was before the step that failed, with gradients of all; the others go on one by one."""
    model, integrator = rods_on_cpu(3), ImplicitEuler(2e-3, max_iterations=3)
    one_by_one(model, model.initial_state(batch=3), integrator)  # records
    velocity = torch.zeros(3, model.n_dofs, dtype=torch.float64)
    velocity[1, -8:] = 1e9  # a twist that grows until a step is not solved
    velocity.requires_grad_()
    start = model.initial_state(velocity=velocity)
    run = unroll(model, start, integrator, 30)
    assert courses == [24] and run.status.tolist()[1] != 0
    alone = unroll(model, start, integrator, 30, lambda time, model: Control())
    assert courses == [24] and torch.equal(run.q, alone.q) and torch.equal(run.status, alone.status)
    found, expected = (torch.autograd.grad(r.q[-1, [0, 2]].sum() + r.q[20].sum(), velocity)[0] for r in (run, alone))
    assert (found - expected).abs().max() <= ROUNDING * expected.abs().max()


@pytest.mark.parametrize("chunk", [2, "auto"])
def test_steps_that_are_taken_in_smaller_parts(chunk, courses):
    """Take those alone that fail as a whole, and what comes between as courses."""
    model, integrator = rods_on_cpu(3), ImplicitEuler(2e-3, max_iterations=3, max_substeps=64, chunk=chunk)
    velocity = torch.zeros(3, model.n_dofs, dtype=torch.float64)
    velocity[1, 6:27] = torch.linspace(10, -10, 21, dtype=torch.float64)
    velocity.requires_grad_()
    start = model.initial_state(velocity=velocity)
    alone = unroll(model, start, integrator, 60, lambda time, model: Control())
    run = unroll(model, start, integrator, 60)
    assert len(courses) > 2 and 30 < sum(courses) < 60
    assert torch.equal(run.q, alone.q) and torch.equal(run.iterations, alone.iterations)
    found, expected = (torch.autograd.grad(r.q.square().sum(), velocity)[0] for r in (run, alone))
    assert (found - expected).abs().max() <= 10 * ROUNDING * expected.abs().max()


def test_states_that_are_not_finite_fail(courses):
    """Say so of a robot that begins with such a number, and step the others."""
    model, integrator = rods_on_cpu(3), ImplicitEuler(2e-3)
    start = model.initial_state(batch=3).detach()
    one_by_one(model, start, integrator)  # records
    velocity = start.velocity.clone()
    velocity[1, 7] = torch.nan
    for bad in (start.replace(velocity=velocity), start.replace(acceleration=start.acceleration / 0.0)):
        with pytest.warns(FailureWarning, match="not_finite"):
            run = unroll(model, bad, integrator, 20)
        with pytest.warns(FailureWarning, match="not_finite"):
            alone = unroll(model, bad, integrator, 20, lambda time, model: Control())
        assert torch.equal(run.status, alone.status) and torch.equal(run.q.nan_to_num(), alone.q.nan_to_num())
        run, _ = integrator.steps(model, bad, 20)
        assert torch.equal(run.q.nan_to_num(), alone.q[-1].nan_to_num())
    assert not any(courses)


@pytest.mark.parametrize("load", [None, "rough floor"])
def test_steps_in_inference_mode_come_first(load, courses):
    """Take steps as one in inference mode, whole and not, and then with gradients."""
    model = rods_on_cpu(2, load and LOADS[load]())
    integrator = ImplicitEuler(2e-3, max_iterations=6, max_substeps=16)
    still = model.initial_state(batch=2).detach()
    one_by_one(model, still, integrator)  # records
    velocity = torch.zeros_like(still.velocity)
    velocity[1, 6:27] = torch.linspace(10, -10, 21, dtype=torch.float64)
    with torch.inference_mode():
        first = unroll(model, still.replace(velocity=velocity), integrator, 30)
    velocity.requires_grad_()
    run = unroll(model, still.replace(velocity=velocity), integrator, 30)
    run.q.sum().backward()
    assert any(courses) and torch.equal(run.q, first.q) and bool(velocity.grad.isfinite().all())


@pytest.mark.filterwarnings("ignore::torchdismech.errors.FailureWarning")
def test_no_part_takes_more_steps_than_those_before_it(monkeypatch):
    """Take no steps of robots in vain where those of others, before them, are known to end a course."""
    lengths, take = [], RecordedSeries.take

    def told(self, controls, *rest):
        lengths.append(len(controls))
        return take(self, controls, *rest)

    model, integrator = rods_on_cpu(3), ImplicitEuler(2e-3, max_iterations=3, max_substeps=64, chunk=1)
    still = model.initial_state(batch=3).detach()
    one_by_one(model, still, integrator)  # records
    velocity = torch.zeros_like(still.velocity)
    velocity[0, 6:27] = torch.linspace(10, -10, 21, dtype=torch.float64)
    monkeypatch.setattr(RecordedSeries, "take", told)
    unroll(model, still.replace(velocity=velocity), integrator, 2)
    assert lengths == [2]  # the first robot fails the first step
    lengths.clear()
    velocity[0], velocity[1, -8:] = 0.0, 1e9  # a twist that grows until a step is not solved
    unroll(model, still.replace(velocity=velocity), integrator, 30)
    assert lengths[:2] == [30, 30] and lengths[2] < 30


class TurnsOnAndOff:
    """A schedule that may be asked ahead: every second control is of another kind."""

    ahead, asked = True, 0

    def __call__(self, time, model):
        """Return a force, or nothing."""
        self.asked += 1
        force = model.nodes.new_zeros(len(time), model.n_dofs)
        return Control(force=force) if round(float(time[0]) / 2e-3) % 2 else Control()


def test_courses_that_end_early_are_tried_less_often_and_for_fewer_steps(courses):
    """Take steps alone where courses of one or two are all there is; go for longer ones where all steps were taken."""
    model, integrator, schedule = rods_on_cpu(2), ImplicitEuler(2e-3), TurnsOnAndOff()
    start = model.initial_state(batch=2)
    unroll(model, start, integrator, 60, schedule)  # records
    courses.clear()
    schedule.asked = 0
    unroll(model, start, integrator, 60, schedule)
    assert len(courses) < 12 and set(courses) == {1} and schedule.asked < 75
    courses.clear()
    integrator = ImplicitEuler(2e-3, max_iterations=3, max_substeps=64)
    velocity = torch.zeros(2, model.n_dofs, dtype=torch.float64)
    velocity[1, 6:27] = torch.linspace(10, -10, 21, dtype=torch.float64)
    for _ in range(2):
        courses.clear()
        unroll(model, model.initial_state(velocity=velocity), integrator, 200)
    assert courses[0] == 0 and max(courses) > 16 and sum(courses) > 100


def test_a_subclass_that_says_how_it_takes_a_step_takes_all(courses):
    """Call `step` for each where it is not the library's."""
    taken = []

    class Told(ImplicitEuler):
        def step(self, *given, **options):
            taken.append(given)
            return super().step(*given, **options)

    model, integrator = rods_on_cpu(2), Told(2e-3)
    for _ in range(2):
        unroll(model, model.initial_state(batch=2), integrator, STEPS)
        rollout(model, model.initial_state(batch=2), integrator, STEPS, every=10)
    assert len(taken) == 4 * STEPS and not courses


def test_what_is_changed_before_the_backward_pass_is_named(courses):
    """Refuse a constant, and a state, that are no longer what they were in the steps."""
    model, integrator = rods_on_cpu(2, forces.Viscous(0.1)), ImplicitEuler(2e-3)
    shared = next(p for name, p in model.named_parameters() if "viscosity" in name or "coefficient" in name)
    shared.requires_grad_()
    one_by_one(model, model.initial_state(batch=2), integrator)
    run = unroll(model, model.initial_state(batch=2), integrator, STEPS)
    with torch.no_grad():
        shared.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place between a step and its backward pass|inplace operation"):
        run.q.sum().backward()
    run = unroll(model, model.initial_state(batch=2), integrator, STEPS)
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(run.q.sum(), shared, create_graph=True)
    assert courses == [STEPS, STEPS]


def test_who_looks_at_steps_has_them_one_by_one(courses):
    """Take steps alone where something is asked between them."""
    model, integrator = rods_on_cpu(2), ImplicitEuler(2e-3)
    start = model.initial_state(batch=2)
    one_by_one(model, start, integrator)
    unroll(model, start, integrator, 5, schedule=lambda time, model: Control())
    unroll(model, start, integrator, 5, controller=lambda state, control, model: control)
    unroll(model, start, integrator, 5, observe=lambda before, after, control: {})
    unroll(model, start, integrator, 5, checkpoint_every=2)
    assert not courses


def test_a_checkpoint_of_users_own_around_steps(courses):
    """Take steps one by one within it, as it takes them once more when there may be a recording for more of them."""
    model, integrator = rods_on_cpu(2), ImplicitEuler(2e-3)
    start = model.initial_state(batch=2).detach()
    velocity = torch.full_like(start.velocity, 1e-3).requires_grad_()

    def last(velocity):
        return unroll(model, start.replace(velocity=velocity), integrator, STEPS).q[-1].sum()

    (within,) = torch.autograd.grad(checkpoint(last, velocity, use_reentrant=False), velocity)
    assert not courses
    (without,) = torch.autograd.grad(last(velocity), velocity)
    assert courses
    assert (within - without).norm() < ROUNDING * without.norm()
