"""Parts of a batch by several threads: to the bit what one thread does."""

import functools
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.integrate.recordings import LOADS, plates, rods_on_cpu
from torchdismech import BDF2, Control, ImplicitEuler, ImplicitMidpoint, Newmark, rollout, trainable, unroll
from torchdismech.integrate import forward
from torchdismech.integrate.gradients import sums
from torchdismech.integrate.recorded import for_threads, recording
from torchdismech.integrate.recorded import gradients as recorded_gradients
from torchdismech.integrate.recorded.adjoint import RecordedAdjoint
from torchdismech.integrate.recorded.rounds import RecordedRounds
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.model import step_memory
from torchdismech.system import workers
from torchdismech.system.workers import shared_out
from torchdismech.values import per_robot

ROBOTS, AT_A_TIME, STEPS = 21, 4, 12  # six parts; the last has three robots of the one before
INTEGRATORS = {
    "euler": functools.partial(ImplicitEuler, 2e-3, chunk=AT_A_TIME),
    "midpoint": functools.partial(ImplicitMidpoint, 2e-3, chunk=AT_A_TIME),
    "newmark": functools.partial(Newmark, 2e-3, chunk=AT_A_TIME),
    "bdf2": functools.partial(BDF2, 2e-3, chunk=AT_A_TIME),
}


@pytest.fixture(autouse=True)
def recorded_at_once(monkeypatch):
    """Record the first step of a kind, and as many recordings as there are threads at the next, of robots so small."""
    monkeypatch.setattr(step_memory, "BYTES_A_THREAD", 0)
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
    monkeypatch.setattr(for_threads, "STEPS_A_RECORDING", 1)


@pytest.fixture
def threads():
    """Return a function that sets the number of torch's threads; it is as before afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def threads_that_share_in(module, monkeypatch):
    """Return the threads that take some of the work that a module shares out; each first waits for another to begin."""
    found = set()

    def noted(work, tools, pieces):
        begun, two = set(), threading.Event()

        def take(tool, piece):
            begun.add(threading.get_ident())
            if len(begun) > 1:
                two.set()
            assert two.wait(60)
            found.update(begun)
            return work(tool, piece)

        return shared_out(take, tools, pieces)

    monkeypatch.setattr(module, "shared_out", noted)
    return found


@pytest.fixture
def seen(monkeypatch):
    """Return the threads that take steps of parts of a batch, where several do."""
    return threads_that_share_in(forward, monkeypatch)


def moving(model, integrator):
    """Return a state in motion, no two robots of which move alike."""
    velocity = torch.randn(ROBOTS, model.n_dofs, dtype=model.dtype, generator=torch.Generator().manual_seed(1)) * 0.1
    return integrator.started(model.initial_state(ROBOTS, velocity=model.free * velocity))


def by(threads, count, model, integrator, run):
    """Return what a run gives on `count` threads."""
    threads(count)
    return run(model, integrator, moving(model, integrator))


def singly(model, integrator, state):
    """Return the fields of the states after some single steps, and whether the robots converged in each."""
    told = []
    for _ in range(STEPS):
        state, info = integrator.step(model, state)
        told.append(info.converged)
    return [*state.fields(), *told, info.residual, info.iterations]


def together(model, integrator, state, control=None):
    """Return the fields of the states after some steps that are taken at once, and how they went."""
    state, info = integrator.steps(model, state, 2, control and control[:2])
    state, info = integrator.steps(model, state, STEPS, control and control[2:])
    return [*state.fields(), info.status, info.residual, info.iterations]


RUNS = {"single steps": singly, "many at once": together}
MODELS = {
    "rods": lambda: rods_on_cpu(ROBOTS),
    "rough floor": lambda: rods_on_cpu(ROBOTS, LOADS["rough floor"]()),
    "box": lambda: rods_on_cpu(ROBOTS, LOADS["box"]()),
    "drag": lambda: rods_on_cpu(ROBOTS, LOADS["resistive"]()),
    "plates": lambda: plates(LOADS["viscous"]()),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", MODELS)
def test_threads_take_the_same_steps(name, run, threads, seen):
    """Several threads take part, and every bit is the same."""
    one, two = (by(threads, count, MODELS[name](), INTEGRATORS["euler"](), RUNS[run]) for count in (1, 3))
    assert all(map(torch.equal, one, two))
    assert len(seen) > 1


@pytest.mark.parametrize("scheme", ["midpoint", "newmark", "bdf2"])
def test_every_integrator(scheme, threads, seen):
    """Rules with a history, and with forces in the middle of a step."""
    one, two = (by(threads, count, rods_on_cpu(ROBOTS), INTEGRATORS[scheme](), together) for count in (1, 2))
    assert all(map(torch.equal, one, two))
    assert len(seen) > 1


def test_controls_of_each_step(threads):
    """Each part has its robots' rows of the controls."""
    force = torch.randn(STEPS + 2, ROBOTS, rods_on_cpu(1).n_dofs, dtype=torch.float64) * 1e-3
    run = functools.partial(together, control=[Control(force=own) for own in force])
    one, two = (by(threads, count, rods_on_cpu(ROBOTS), INTEGRATORS["euler"](), run) for count in (1, 3))
    assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("substeps", [0, 4])
def test_steps_that_leave_their_recordings(substeps, threads, monkeypatch):
    """Too few iterations for the fastest robots: searches go on in Python, and some robots fail."""
    lost, outcome = [], RecordedRounds.replay
    monkeypatch.setattr(RecordedRounds, "replay", lambda self, *first: lost.append(outcome(self, *first)) or lost[-1])
    integrator = functools.partial(ImplicitEuler, 0.05, chunk=AT_A_TIME, max_iterations=4, max_substeps=substeps)

    def run(model, stepper, state):
        state = state.replace(velocity=state.velocity * torch.linspace(0, 300, ROBOTS, dtype=model.dtype)[:, None])
        return together(model, stepper, state)

    one, two = (by(threads, count, rods_on_cpu(ROBOTS), integrator(), run) for count in (1, 3))
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, two, strict=True))
    assert len({own.name for own in lost}) > 1 and (substeps or one[-3].any())


def test_values_of_single_robots_follow_them(threads):
    """A recording of another thread has the constants of the robots that it is given, and those that all share."""

    def run(model, integrator, state):
        state, _ = integrator.steps(model, state, STEPS)
        with torch.no_grad():
            model.terms[0].stencil.rest_length.mul_(1.01)  # of all robots
            next(iter(per_robot(model).tensors.values())).mul_(1.5)  # of each
        return together(model, integrator, state)

    one, two = (by(threads, count, rods_on_cpu(ROBOTS), INTEGRATORS["euler"](), run) for count in (1, 3))
    assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_without_gradients(mode, threads, seen):
    """Threads have the caller's mode, in which no recordings are made if it is inference mode."""
    model, integrator = rods_on_cpu(ROBOTS), INTEGRATORS["euler"]()
    one = by(threads, 1, model, integrator, together)
    by(threads, 3, model, integrator, singly)  # recordings are made outside of inference mode
    with mode():
        two = by(threads, 3, model, integrator, together)
    three = by(threads, 3, model, integrator, together)
    assert all(map(torch.equal, one, two)) and all(map(torch.equal, one, three))
    assert len(seen) > 1


def test_rollouts(threads):
    """Frames and the last state are the same."""
    model, integrator = rods_on_cpu(ROBOTS), INTEGRATORS["euler"]()
    one, two = (
        by(threads, count, model, integrator, lambda *given: rollout(given[0], given[2], given[1], 30, every=5))
        for count in (1, 3)
    )
    assert torch.equal(one.positions, two.positions) and torch.equal(one.state.velocity, two.state.velocity)


def trained_rods(load=None):
    """Return rods with a stiffness that all robots share, one of each robot, and their trained factors."""
    model = rods_on_cpu(ROBOTS, load)
    factors = trainable.scaled(model, ["bend_twist.EI1", "stretch.EA"])
    each = torch.linspace(0.9, 1.1, ROBOTS, dtype=torch.float64)[:, None].requires_grad_()
    return model, [*factors.parameters(), each]


def gradients_of_single_steps(model, integrator, state, trained):
    """Return gradients through steps that are a node of autograd each."""
    start = state.replace(velocity=trained[-1] * state.velocity)
    for _ in range(4):
        start, _ = integrator.step(model, start)
    return torch.autograd.grad((start.q.square().sum(1) * torch.arange(ROBOTS)).sum(), trained)


def gradients_of_a_course(model, integrator, state, trained):
    """Return gradients through many steps that are one node, with a loss of all of them."""
    run = unroll(model, state.replace(velocity=trained[-1] * state.velocity), integrator, STEPS)
    return torch.autograd.grad((run.q.square().sum((0, 2)) * torch.arange(ROBOTS)).sum(), trained)


@pytest.mark.parametrize("load", [None, "rough floor"])
@pytest.mark.parametrize("gradients", [gradients_of_single_steps, gradients_of_a_course])
def test_gradients(gradients, load, threads, monkeypatch):
    """Threads go back through the steps of several parts, and every bit of the gradients is the same."""
    monkeypatch.setattr(recorded_gradients, "PASSES_BEFORE_RECORDING", 1)
    found, seen = [], threads_that_share_in(sums, monkeypatch)
    for count in (1, 3):
        model, trained = trained_rods(None if load is None else LOADS[load]())
        threads(count)
        integrator = INTEGRATORS["euler"]()
        for _ in range(3):
            found.append(gradients(model, integrator, moving(model, integrator), trained))
    unrecorded, one, *_ = found  # the first pass is by torch, which rounds otherwise
    others = [*found[2:3], *found[4:]]
    assert all((own != 0).any() for own in one) and all(map(torch.equal, unrecorded, found[3]))
    assert all(torch.equal(a, b) for own in others for a, b in zip(own, one, strict=True))
    assert len(seen) > 1


@pytest.mark.parametrize("gradients", [gradients_of_single_steps, gradients_of_a_course])
@pytest.mark.parametrize("count", [1, 3])
def test_gradients_follow_what_an_optimiser_changed(count, gradients, threads, monkeypatch):
    """Parts of a batch have the present value of a constant that all robots share, not that of an earlier pass."""
    monkeypatch.setattr(recorded_gradients, "PASSES_BEFORE_RECORDING", 1)
    threads(count)
    integrator = INTEGRATORS["euler"]()
    model, trained = trained_rods()
    for _ in range(3):
        gradients(model, integrator, moving(model, integrator), trained)
    other, other_trained = trained_rods()
    with torch.no_grad():
        for own, others in zip(trained, other_trained, strict=True):
            own.add_(0.5)
            others.add_(0.5)
    whole = ImplicitEuler(2e-3, chunk=None)
    found = gradients(model, integrator, moving(model, integrator), trained)
    expected = gradients(other, whole, moving(other, whole), other_trained)
    for ours, theirs in zip(found, expected, strict=True):  # sums over robots in another order
        assert (ours - theirs).abs().max() <= 1e-11 * theirs.abs().max()


@pytest.mark.parametrize("gradients", [gradients_of_single_steps, gradients_of_a_course])
def test_a_step_that_recordings_refuse_is_differentiated_without_them(gradients, threads, monkeypatch):
    """As where a matrix is singular. No thread takes the recording of another, which may be in use."""
    monkeypatch.setattr(recorded_gradients, "PASSES_BEFORE_RECORDING", 1)
    seen = threads_that_share_in(sums, monkeypatch)
    integrator, found, in_use, shared, replayed = INTEGRATORS["euler"](), [], [], [], RecordedAdjoint.replayed

    def refused(self, *given):
        shared.append(self in in_use)
        in_use.append(self)
        replayed(self, *given)
        in_use.remove(self)

    for count in (1, 3):
        threads(count)
        model, trained = trained_rods()
        for _ in range(3):
            gradients(model, integrator, moving(model, integrator), trained)
        with monkeypatch.context() as patch:
            patch.setattr(RecordedAdjoint, "replayed", refused)
            found.append(gradients(model, integrator, moving(model, integrator), trained))
    assert len(seen) > 1 and not any(shared)
    assert all(map(torch.equal, *found))


def test_recordings_are_made_by_and_by(threads, monkeypatch):
    """There is one more recording for so many steps that others took."""
    monkeypatch.setattr(for_threads, "STEPS_A_RECORDING", 10)
    threads(3)
    model, integrator = rods_on_cpu(ROBOTS), INTEGRATORS["euler"]()
    state, counts = moving(model, integrator), []
    for _ in range(7):
        state, _ = integrator.step(model, state)
        counts.append(len(model.recordings[0].more_recordings))
    assert counts == [0, 0, 1, 1, 2, 2, 2]  # 5 steps of parts in the first step, 6 in each later one


def test_small_parts_are_taken_by_one_thread(threads, seen, monkeypatch):
    """Threads would wait for each other, as one at a time runs Python."""
    monkeypatch.setattr(step_memory, "BYTES_A_THREAD", 5e6)
    threads(3)
    model, integrator = rods_on_cpu(ROBOTS), INTEGRATORS["euler"]()
    singly(model, integrator, moving(model, integrator))
    assert not seen and not model.recordings[0].more_recordings


def test_results_come_in_the_order_of_the_pieces():
    """Whichever thread found them, and in whichever order."""
    assert shared_out(lambda tool, piece: time.sleep(0.01 / piece) or piece, "abc", range(1, 20)) == [*range(1, 20)]


def test_an_error_of_a_thread_is_raised():
    """No further piece is begun after it."""
    done, both = [], threading.Barrier(2, timeout=60)

    def work(tool, piece):
        if len(done) < 2:
            done.append(tool)
            both.wait()
        if tool == "b":
            raise ValueError(f"piece {piece}")

    with pytest.raises(ValueError, match="piece"):
        shared_out(work, ["a", "b"], range(1000))
    assert sorted(done) == ["a", "b"]


def test_threads_that_are_busy_elsewhere_are_not_waited_for(monkeypatch):
    """As where another thread of the user shares out work of its own."""
    done, begin_late = [], threading.Event()
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(begin_late.wait, 20)
        monkeypatch.setattr(workers, "_pool", lambda: pool)
        shared_out(lambda tool, piece: done.append((tool, piece)), ["a", "b"], range(3))
        assert not busy.done()
        begin_late.set()
    assert done == [("a", 0), ("a", 1), ("a", 2)]


def test_the_caller_does_all_where_no_thread_can_begin(monkeypatch):
    """As on a thread that goes on while Python ends."""
    done, pool = [], ThreadPoolExecutor(1)
    pool.shutdown()
    monkeypatch.setattr(workers, "_pool", lambda: pool)
    shared_out(lambda tool, piece: done.append((tool, piece)), ["a", "b"], range(3))
    assert done == [("a", 0), ("a", 1), ("a", 2)]


def test_an_interrupt_waits_for_the_other_threads():
    """What they work on is at rest when the caller sees the interrupt."""
    both, ended = threading.Barrier(2, timeout=60), []

    def work(tool, piece):
        both.wait()
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)
            return
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # while the caller waits
        time.sleep(0.2)
        ended.append(piece)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            shared_out(work, ["a", "b"], range(2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(ended) == 1


def test_a_signal_handler_reads_the_models_own_numbers(threads, monkeypatch):
    """Not those of the part of the batch that another thread has put in their places for a search in Python."""
    threads(3)
    model, integrator = rods_on_cpu(ROBOTS), INTEGRATORS["euler"]()
    singly(model, integrator, moving(model, integrator))
    own, read = {name: tensor.clone() for name, tensor in model.state_dict().items()}, []
    before = signal.signal(signal.SIGUSR1, lambda *_: read.append(model.state_dict()))
    found = RecordedStep._root_without_rounds

    def interrupted(self, *given):
        if threading.current_thread() is not threading.main_thread():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            time.sleep(0.02)
        return found(self, *given)

    threads_that_share_in(forward, monkeypatch)  # so that not one thread takes all
    monkeypatch.setattr(RecordedStep, "_root_without_rounds", interrupted)
    monkeypatch.setattr(RecordedStep, "finish", lambda self: self.finish_without_rounds(1))
    monkeypatch.setattr(RecordedStep, "loops", lambda _: False)  # which would take steps at once
    try:
        integrator.step(model, moving(model, integrator))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert read and all(torch.equal(numbers[name], own[name]) for numbers in read for name in own)


def test_an_index_error_of_the_work_is_raised():
    """It is not taken for the end of the pieces."""
    with pytest.raises(IndexError, match="range"):
        shared_out(lambda rows, place: rows[place], [["own"]], [1])
