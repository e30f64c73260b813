"""Steps that compiled code takes in turn: what Python would take, wherever they are handed back to it."""

import ctypes
import dataclasses
import signal
import sys
import warnings

import pytest
import torch

from tests.integrate.recordings import LOADS, Wind, plates, rods_on_cpu, surface_loads
from torchdismech import BDF2, Control, ImplicitEuler, Newmark, forces, trainable, unroll
from torchdismech.errors import FailureWarning
from torchdismech.integrate.gradients import course_backward
from torchdismech.integrate.recorded import adjoint, series
from torchdismech.native import calls
from torchdismech.native.calls import CallTable, CompiledCall
from torchdismech.native.compiled import library
from torchdismech.native.instructions import NoInstruction
from torchdismech.native.step_loop import PerStep, PerStepInstructions, StepCalls, StepLoop, StopReason
from torchdismech.system.interrupts import held_back

STEPS = 24
INTERRUPTED = (3, 4, 9, 20)  # steps that are for Python
# of gradients that are summed over steps in another order
ROUNDING = 1e-12


class Interrupted(StepLoop):
    """Steps of which some are handed back to Python: at a check, or as a call returns what is not expected."""

    how, ended = StopReason.CHECK, None

    def __init__(self, calls, given, kept, checks):
        self._flags, self._flag = torch.zeros(STEPS, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)
        self._flags[[*INTERRUPTED]] = True
        self._calm = ~self._flags
        each = PerStep.along(self._flags if self.how is StopReason.CHECK else self._calm)
        given.add("copy", self._flag, each)
        if self.how is StopReason.UNEXPECTED:
            call = CompiledCall(library().code.all_hold, (1, self._flag.data_ptr()), 1)
            calls = dataclasses.replace(calls, set_up=CallTable([call, *calls.set_up.calls]))
        super().__init__(calls, given, kept, [*checks, self._flag] if self.how is StopReason.CHECK else checks)

    def run(self, first, count):
        """Take steps, and keep why they ended."""
        reached, why = super().run(first, count)
        self.ended.append(why)
        return reached, why


def run(model, weights, schedule=None, method=ImplicitEuler):
    """Return where steps lead from a moving state, how they went, and gradients by its velocity and by weights."""
    torch.manual_seed(0)
    start = model.initial_state(batch=2).detach()
    velocity = (0.05 * torch.rand_like(start.velocity)).requires_grad_()
    taken = unroll(model, start.replace(velocity=velocity), method(2e-3), STEPS, schedule)
    loss = taken.q.square().sum() + 1e-3 * taken.velocity[5::7].sum() + taken.state.director.square().sum()
    by = torch.autograd.grad(loss, [velocity, *weights])
    return [taken.q.detach(), *(f.detach() for f in taken.state.fields()), taken.iterations, taken.status], by


def by_python(monkeypatch, *given, **options):
    """Return what `run` does without compiled code between steps."""
    with monkeypatch.context() as patch:
        patch.setattr(series.RecordedSeries, "_loop", lambda *_: None)
        patch.setattr(course_backward, "STEPS_BEFORE_A_LOOP", STEPS + 1)
        for _ in range(2):  # until steps and gradients are recorded
            found = run(*given, **options)
    return found


def assert_same(found, expected):
    """Hold states to the last bit, and gradients but for rounding."""
    assert all(map(torch.equal, found[0], expected[0]))
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert bool((theirs != 0).any())
        assert (ours - theirs).abs().max() <= ROUNDING * theirs.abs().max()


class Swaying:
    """A schedule that may be asked ahead: a force that is another in each step."""

    ahead = True

    def __call__(self, time, model):
        """Return a force that grows with time."""
        return Control(force=1e-2 * time[:, None] * model.nodes.new_ones(len(time), model.n_dofs))


@pytest.mark.parametrize("how", [None, StopReason.CHECK, StopReason.UNEXPECTED])
@pytest.mark.parametrize("schedule", [None, Swaying()])
def test_steps_are_handed_back(how, schedule, monkeypatch):
    """Go on where Python has taken a step, forward and back, also with a control for each step."""
    ended = []
    model = rods_on_cpu(2, forces.Viscous(0.1))
    weights = list(trainable.scaled(model, ["bend_twist.EI1", "Viscous.viscosity"]).parameters())
    expected = by_python(monkeypatch, model, weights, schedule)
    if how is not None:
        own = type("Own", (Interrupted,), {"how": how, "ended": ended})
        monkeypatch.setattr(series, "StepLoop", own)
        monkeypatch.setattr(adjoint, "StepLoop", own)
    assert_same(run(model, weights, schedule), expected)
    # forward after each of them and at the end; back as well, but the second comes when Python still takes steps
    number = len(INTERRUPTED)
    turns = [[how] * count + [StopReason.ALL_TAKEN] for count in (number, number - 1)]
    assert ended == ([] if how is None else turns[0] + turns[1])


@pytest.fixture
def tables(monkeypatch):
    """Return how many tables of steps forward, and back, were made."""
    made = []
    for room in (series, adjoint):

        def kept(*given, room=room):
            made.append(room)
            return StepLoop(*given)

        monkeypatch.setattr(room, "StepLoop", kept)
    return made


@pytest.mark.parametrize("load", ["rough floor", "capsule", "resistive", "learned"])
@pytest.mark.parametrize("method", [ImplicitEuler, BDF2])
def test_loads(load, method, monkeypatch, tables):
    """Take the same steps with contact and forces, whose tapes have operations of torch."""
    model = rods_on_cpu(2, Wind() if load == "learned" else LOADS[load]())
    weights = list(trainable.scaled(model, ["bend_twist.EI1"]).parameters())
    expected = by_python(monkeypatch, model, weights, method=method)
    assert not tables
    assert_same(run(model, weights, method=method), expected)
    assert {*tables} == {series, adjoint}


@pytest.mark.parametrize(("bending", "constant"), [("midedge", "midedge.stiffness"), ("hinge", "hinge.hinge")])
def test_shells(bending, constant, monkeypatch, tables):
    """Take the same steps with plates on a rough floor, also where they have no normals to carry along."""
    model = plates(surface_loads()["rough floor"](), bending)
    weights = list(trainable.scaled(model, [constant]).parameters())
    expected = by_python(monkeypatch, model, weights)
    assert_same(run(model, weights), expected)
    assert {*tables} == {series, adjoint}


@pytest.mark.parametrize("load", ["box", "rough floor"])
def test_single_steps_before_a_run_that_begins_in_python(load, monkeypatch):
    """Begin where the first step has led, not where the last single step had."""

    def led():
        model, found = rods_on_cpu(2, LOADS[load]()), []
        integrator = ImplicitEuler(2e-3, max_iterations=2 if load == "rough floor" else 50)
        after = model.initial_state(batch=2).detach()
        for _ in range(20):
            after, _ = integrator.step(model, after)
        start = model.initial_state(batch=2).detach()
        velocity = torch.zeros_like(start.velocity)
        velocity[1, 5:27:3] = 100.0 if load == "rough floor" else -40.0  # it fails, or passes through the box
        for _ in range(2):
            after, info = integrator.steps(model, start.replace(velocity=velocity), STEPS)
            found += [*after.fields(), info.iterations, info.status]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FailureWarning)
                taken = unroll(model, start.replace(velocity=velocity), integrator, STEPS)
            found += [taken.q, *taken.state.fields(), taken.iterations]
        return found

    with monkeypatch.context() as patch:
        patch.setattr(series.RecordedSeries, "_loop", lambda *_: None)
        expected = led()
    assert all(map(torch.equal, led(), expected))


def test_a_search_that_stops_goes_on_in_python(monkeypatch):
    """Make another attempt where whole Newton steps are none to take, and return to compiled code afterwards."""
    ended = []
    monkeypatch.setattr(Interrupted, "how", StopReason.BAD_STEP)  # none is handed back without need
    own = type("Own", (Interrupted,), {"ended": ended})

    def thrown():
        model = rods_on_cpu(2, LOADS["rough floor"]())
        start = model.initial_state(batch=2).detach()
        velocity = torch.zeros_like(start.velocity)
        velocity[1, 5:27:3] = -5.0
        for _ in range(2):
            after, info = ImplicitEuler(2e-3).steps(model, start.replace(velocity=velocity), STEPS)
        return [*after.fields(), info.iterations, info.iterations_max, info.status, info.residual]

    with monkeypatch.context() as patch:
        patch.setattr(series.RecordedSeries, "_loop", lambda *_: None)
        expected = thrown()
    monkeypatch.setattr(series, "StepLoop", own)
    assert all(map(torch.equal, thrown(), expected))
    assert StopReason.LOST_ROWS in ended and ended[-1] is StopReason.ALL_TAKEN


def test_tensors_of_each_step():
    """Know where those along a dimension stand, from either end, and refuse those that lie in unlike ways."""
    of = torch.arange(24.0, dtype=torch.float64).reshape(4, 2, 3)
    assert PerStep.along(of).addresses.tolist() == [of[k].data_ptr() for k in range(4)]
    backward = PerStep.along(of[1:], backward=True)
    assert backward.addresses.tolist() == [of[k].data_ptr() for k in (3, 2, 1)] and torch.equal(backward.first, of[3])
    assert PerStep.of([of[2], of[0]]).addresses.tolist() == [of[2].data_ptr(), of[0].data_ptr()]
    with pytest.raises(NoInstruction):
        PerStep.of([of[0], of[1].t().contiguous().t()])


def test_errors_of_what_is_called_back_are_raised():
    """Raise in Python what Python raised between calls of compiled code."""

    def fails():
        raise ZeroDivisionError("once")

    steps = StepLoop(StepCalls(CallTable([fails])), PerStepInstructions(), PerStepInstructions(), [])
    with pytest.raises(ZeroDivisionError, match="once"):
        steps.run(0, 2)


RAISE = ctypes.CDLL(None)["raise"]


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGALRM, TimeoutError),  # a user's time limit
        (signal.SIGUSR1, SystemExit),  # what a cluster sends before it ends a job
        (signal.SIGCHLD, RuntimeError),  # what torch's DataLoader raises when a worker dies
    ],
)
def test_signals_before_what_is_called_back_has_begun_are_raised(number, error, monkeypatch):
    """Raise what the handler of a signal does that comes while compiled code is about to call Python; print nothing."""

    def raises(number, frame):
        raise error

    printed, worked = [], []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    signalled = CompiledCall(RAISE, (number,))
    steps = StepLoop(
        StepCalls(CallTable([signalled, lambda: worked.append(1)])), PerStepInstructions(), PerStepInstructions(), []
    )
    before = signal.signal(number, raises)
    try:
        with pytest.raises(error):
            steps.run(0, 2)
        assert not printed and not worked
        heard = []
        signal.signal(number, lambda number, frame: heard.append(number if frame.f_code else None))
        assert steps.run(0, 3) == (3, StopReason.ALL_TAKEN)  # a handler that raises nothing ends nothing
        assert heard == [number] * 3 and len(worked) == 3 and not printed
    finally:
        signal.signal(number, before)


def test_all_signals_that_were_held_back_are_answered():
    """Call both handlers though the first raises, but none where the block does; leave no error to the next run."""
    heard = []

    def raises(number, frame):
        heard.append(number)
        raise {signal.SIGUSR1: ZeroDivisionError, signal.SIGALRM: TimeoutError}[number]

    numbers = (signal.SIGUSR1, signal.SIGALRM)  # in the order in which Python answers signals that came together
    signalled = [CompiledCall(RAISE, (number,)) for number in numbers]
    steps = StepLoop(StepCalls(CallTable([*signalled, lambda: None])), PerStepInstructions(), PerStepInstructions(), [])
    before = [signal.signal(number, raises) for number in numbers]
    try:
        with pytest.raises(ZeroDivisionError) as raised:
            steps.run(0, 1)
        assert isinstance(raised.value.__context__, TimeoutError)
        with pytest.raises(TimeoutError), held_back():
            for number in numbers:
                signal.raise_signal(number)
        with pytest.raises(OSError, match="the block's own"), held_back():
            signal.raise_signal(signal.SIGUSR1)
            raise OSError("the block's own")
        assert heard == [*numbers, *numbers]
        for number in numbers:
            signal.signal(number, lambda number, frame: None)
        assert steps.run(0, 2) == (2, StopReason.ALL_TAKEN)
    finally:
        for number, own in zip(numbers, before, strict=True):
            signal.signal(number, own)


def test_handlers_are_all_put_back(monkeypatch):
    """Interrupt the end of a block that holds signals back at each handler that it puts back: none stays behind."""
    numbers, put = (signal.SIGINT, signal.SIGUSR1, signal.SIGALRM), signal.signal

    def own(number, frame):
        """Stand for a user's handler."""

    def interrupted(number, handler):
        put(number, handler)
        if handler is own:
            raise KeyboardInterrupt

    before = [put(number, own) for number in numbers]
    try:
        monkeypatch.setattr(signal, "signal", interrupted)
        with pytest.raises(KeyboardInterrupt), held_back():
            pass
        assert all(signal.getsignal(number) is own for number in numbers)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            put(number, handler)


def test_interrupts_before_what_is_called_back_has_begun_are_raised(monkeypatch):
    """Raise an interrupt that only the function heard by which compiled code calls Python."""

    def interrupted(self):
        raise KeyboardInterrupt

    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    monkeypatch.setattr(calls._CalledBack, "_done", interrupted)
    steps = StepLoop(StepCalls(CallTable([lambda: None])), PerStepInstructions(), PerStepInstructions(), [])
    with pytest.raises(KeyboardInterrupt):
        steps.run(0, 2)
    assert len(printed) == 1


def test_compiled_code_takes_all_steps_of_a_recorded_rod(monkeypatch):
    """Call no operation of torch in any part of a step, and take the first step, too, once a run has been recorded."""
    begun, run_loop = [], StepLoop.run
    monkeypatch.setattr(
        StepLoop, "run", lambda self, first, count: begun.append((first, count)) or run_loop(self, first, count)
    )
    model, integrator = rods_on_cpu(2), ImplicitEuler(2e-3)
    for _ in range(3):
        begun.clear()
        integrator.steps(model, model.initial_state(batch=2), STEPS)
        integrator.steps(model, model.initial_state(batch=2), 2)
    assert begun == [(0, STEPS), (0, 2)]
    step = model.recordings[0].recorded_step
    parts = step.set_up, step.rounds.round, step.rounds.last_round, step.end_recording
    assert not any(tape.calls_torch for tape in parts)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_last_round_comes_no_earlier_than_in_the_step_before(compiled, monkeypatch):
    """Evaluate the matrix in each round if the step before took many; no number of a step is another for that."""
    if not compiled:
        monkeypatch.setattr(series.RecordedSeries, "_loop", lambda *_: None)
    model, integrator = rods_on_cpu(2), Newmark(2e-2, relative_tolerance=1e-6)
    start = model.initial_state(batch=2).detach()
    for _ in range(2):  # until steps are recorded
        expected, _ = integrator.steps(model, start, STEPS)
    step = model.recordings[0].recorded_step
    rounds = step.rounds
    for count, with_matrix in ((0, False), (50, True)):
        rounds.rounds_before[0] = count
        rounds.last_round.outputs.fill_(True)  # flags: each replay writes them
        step.series.take([Control()])  # from where the last step has led
        assert bool(rounds.last_round.outputs.all()) == with_matrix
        assert 1 <= rounds.rounds_before[0] < 10
        rounds.rounds_before[0] = count
        after, _ = integrator.steps(model, start, STEPS)
        assert all(map(torch.equal, after.fields(), expected.fields()))


def test_each_run_has_its_own_controls(monkeypatch):
    """Give the loop of the run before the controls of this one, each as long as its steps."""
    made = []
    monkeypatch.setattr(series, "StepLoop", lambda *given: made.append(given) or StepLoop(*given))
    model, integrator = rods_on_cpu(2), ImplicitEuler(2e-3)
    start = model.initial_state(batch=2).detach()
    plans = [[Control(force=size * k * torch.ones_like(start.q)) for k in range(STEPS)] for size in (1e-6, 2e-6)]
    plans.append(plans[0][5:9])
    for plan in (plans[0], *plans):  # until steps are recorded
        integrator.steps(model, start, len(plan), plan)
    made.clear()
    found = [integrator.steps(model, start, len(plan), plan)[0] for plan in plans]
    assert not made
    for after, plan in zip(found, plans, strict=True):
        state = start
        for control in plan:
            state, _ = integrator.step(model, state, control)
        assert all(map(torch.equal, after.fields(), state.fields()))
