"""Steps in which parts of robots touch each other are recorded as a whole, for pairs that are watched."""

from types import SimpleNamespace

import pytest
import torch

from tests.integrate.touching_rods import STEPS, TIGHT, assert_same, course, dropped, unrecorded
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Status,
    forces,
    straight,
    unroll,
)
from torchdismech.contact import Barrier, Penalty, SelfContact
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.integrate import forward
from torchdismech.integrate.candidates import PairsOfStep
from torchdismech.integrate.recorded import recording, touching_steps
from torchdismech.integrate.recorded.series import UnaidedSeries
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.integrate.recorded.touching_steps import TouchingSteps


@pytest.fixture(autouse=True)
def recorded_soon(monkeypatch):
    """Record steps sooner than usual, so that tests need fewer of them."""
    monkeypatch.setattr(touching_steps, "FEWEST_STEPS", 3)


@pytest.fixture
def recordings(monkeypatch):
    """Count the steps that recordings with pairs take to their end."""
    taken, finish = [], RecordedStep.finish_with_pairs

    def counted(step):
        end = finish(step)
        taken.append(end is not None)
        return end

    monkeypatch.setattr(RecordedStep, "finish_with_pairs", counted)
    return taken


CONTACTS = {
    "penalty": dict,
    "barrier": lambda: {"law": Barrier(1e2, 1e-3)},
    "smooth lines": lambda: {"centre_line": "smooth"},
}


@pytest.mark.parametrize("contact", CONTACTS)
@pytest.mark.parametrize("friction", [0.0, 0.3])
@pytest.mark.parametrize("rule", [ImplicitEuler, ImplicitMidpoint, Newmark, BDF2])
def test_steps_are_those_without_a_recording(rule, friction, contact, recordings, monkeypatch):
    """Take the same steps as Python does, with the same reports, and most of them by a recording."""
    integrator = rule(2e-3, **TIGHT)
    steps = course(*dropped(friction, **CONTACTS[contact]()), integrator)
    assert sum(recordings) > STEPS // 3
    others = unrecorded(monkeypatch, *dropped(friction, **CONTACTS[contact]()), integrator)
    assert sum(bool(info.contact["active"].any()) for _, info in others) > STEPS // 2
    assert_same(steps, others)


def test_a_barrier_is_kept_at_the_end_of_a_step(recordings, monkeypatch):
    """Refuse a step whose end overlaps, as Python does, though in its middle, where forces are found, nothing does."""
    integrator = ImplicitMidpoint(2e-3)
    model, state = dropped(0.0, **CONTACTS["barrier"]())
    while sum(recordings) < 5:
        state, _ = integrator.step(model, state)
    velocity = state.velocity.clone()
    velocity[:, 29 : 3 * 19 : 3] -= 2.0
    fast = state.replace(velocity=velocity)
    recordings.clear()
    after, info = integrator.step(model, fast)
    assert recordings == [True]
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
    _, expected = integrator.step(dropped(0.0, **CONTACTS["barrier"]())[0], fast)
    assert info.status.tolist() == expected.status.tolist() == [Status.PASSED_THROUGH]
    assert torch.equal(after.q, fast.q)


def turning():
    """Return a rod that spins on one that is held, almost along it at first and then across, and its start."""
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    low = builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 9), Circle(4e-3), material)
    builder.add_rod(straight((-0.07, -0.027, 0.0085), (0.1, 0.034, 0.0085), 10), Circle(4e-3), material)  # 20 degrees
    builder.clamp(nodes=low.tolist())
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(SelfContact(Penalty(300.0, 1e-3), centre_line="smooth"))
    model = builder.finalize(compile=False)
    x = model.initial_state().positions[0, 9:]
    across = torch.linalg.cross(x.new_tensor([0, 0, 8.0]).expand_as(x), x - x.mean(0))  # 8 rad/s
    velocity = torch.zeros(1, model.n_dofs)
    velocity[0, 27:57] = across.flatten()
    return model, model.initial_state(velocity=velocity)


def test_lines_that_begin_to_cross_are_seen(recordings, monkeypatch):
    """Touch as straight edges and, from 30 degrees on, as smooth lines, in the same steps as Python does."""
    model, state = turning()
    other, _ = turning()
    integrator, crossing = ImplicitEuler(1e-3, **TIGHT), []
    for _ in range(100):
        after, info = integrator.step(model, state)
        with monkeypatch.context() as patch:
            patch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
            expected, _ = integrator.step(other, state)
        # one step from the same state: the same equations, solved to 1e-12 N
        assert float((after.q - expected.q).abs().max()) < 1e-11
        assert bool((info.contact["active"] > 0).all())
        edges, lines = model.self_contacts.pairs(state.positions, state.positions, torch.full((1,), 1e-3)).tables
        crossing.append((len(edges), len(lines)))
        state = after
    assert crossing[0][1] == 0 < crossing[0][0] and crossing[-1][0] == 0 < crossing[-1][1]
    assert sum(recordings) > 50


def test_robots_of_a_batch_touch_one_after_the_other(recordings, monkeypatch):
    """Take steps of robots of which some touch and some do not."""
    integrator = ImplicitEuler(1e-3, **TIGHT)
    steps = course(*dropped(robots=3, drop=0.004), integrator, 90)
    active = torch.stack([info.contact["active"] for _, info in steps]) > 0
    assert bool((active.any(1) & ~active.all(1)).any()) and sum(recordings) > 10
    assert_same(steps, unrecorded(monkeypatch, *dropped(robots=3, drop=0.004), integrator, 90))


@pytest.mark.parametrize("friction", [0.0, 0.3])
def test_several_steps_are_single_ones(friction, monkeypatch):
    """Take a hundred steps in a few series of recorded ones."""
    model, start = dropped(friction)
    integrator = ImplicitEuler(2e-3)
    single = course(model, start, integrator, 100)
    made, take = [], UnaidedSeries.take_remaining
    monkeypatch.setattr(UnaidedSeries, "take_remaining", lambda *given: made.append(1) or take(*given))
    after, info = integrator.steps(model, start, 100)
    assert bool(info.converged.all()) and 0 < len(made) < 30
    # each of both ways may have recorded another pattern of the matrix, and so rounds otherwise
    assert float((after.q - single[-1][0].q).abs().max()) < 1e-9


def test_rods_that_slide_keep_their_recording(monkeypatch, recordings):
    """Take other pairs of the same nodes without a new recording."""
    made, record = [], touching_steps.TouchingSteps._record
    monkeypatch.setattr(
        touching_steps.TouchingSteps, "_record", lambda *given, **kept: made.append(1) or record(*given, **kept)
    )
    model, start = dropped(0.0)
    course(model, start, ImplicitEuler(2e-3), 200)
    found = model.recordings[0].recording._watch.found
    course(model, start, ImplicitEuler(2e-3), 100)
    assert model.recordings[0].recording._watch.found is not found
    assert sum(recordings) > 100 and len(made) < 8


def test_patterns_that_do_not_last_are_followed_by_pauses():
    """Look for no pairs in 1, 3, 7, 15 and 15 steps after patterns of one step, and in none after one that lasts."""
    watch = SimpleNamespace(robots=1, found=None)
    steps = TouchingSteps(SimpleNamespace(), watch)
    info = SimpleNamespace(iterations=torch.ones(1, dtype=torch.long))

    def pause_after_another_pattern():
        watch.found = SimpleNamespace(coupling=SimpleNamespace(pattern=object()))
        steps.recording_of(None)
        pause = 0
        while steps.waits:
            assert steps.recording_of(None) is None
            steps.count(info)
            pause += 1
        return pause

    assert [pause_after_another_pattern() for _ in range(5)] == [1, 3, 7, 15, 15]
    for _ in range(touching_steps.SHORT_LIVED):
        steps.steps = 0  # so that none is recorded
        steps.recording_of(None)
    assert [pause_after_another_pattern() for _ in range(2)] == [0, 1]


def test_changed_constants_are_seen(recordings, monkeypatch):
    """Step under a law that was changed between two steps."""
    integrator = ImplicitEuler(2e-3, **TIGHT)

    def harder(model, steps):
        model.self_contacts[0].law.response.stiffness.data.mul_(2.0)
        return [*steps, *course(model, steps[-1][0], integrator, 20)]

    model, start = dropped()
    steps = harder(model, course(model, start, integrator))
    assert all(recordings[-10:])
    with monkeypatch.context() as patch:
        patch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
        other, start = dropped()
        assert_same(steps, harder(other, course(other, start, integrator)))


class Wind(forces.Force):
    """A user's load, on all nodes alike."""

    constant = True

    def __init__(self):
        super().__init__()
        self.register_buffer("force", torch.tensor([1e-3, 0, -1e-3]))

    def forward(self, state, control):
        """Return the force (B, n)."""
        return self.body.on_nodes(self.force.expand_as(state.positions))


TRAINED = {
    "gravity": lambda model: model.forces[0].acceleration,
    "wind": lambda model: model.forces[1].force,
    "stiffness": lambda model: model.self_contacts[0].law.response.stiffness,
}


@pytest.mark.parametrize(
    ("trained", "contact"),
    [*((trained, "penalty") for trained in TRAINED), ("gravity", "barrier"), ("gravity", "smooth lines")],
)
@pytest.mark.parametrize("friction", [0.0, 0.3])
def test_gradients_by_steps_that_touch(friction, trained, contact, monkeypatch):
    """Find the gradients that steps without a recording have, by a recording unless contact of parts is trained."""
    gradients, integrator = [], ImplicitEuler(2e-3, **TIGHT)
    for wait in (recording.STEPS_BEFORE_RECORDING, 10**9):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", wait)
        load = Wind() if trained == "wind" else None
        model, start = dropped(friction, robots=2, load=load, **CONTACTS[contact]())
        course(model, start, integrator)
        weight = TRAINED[trained](model).requires_grad_()
        velocity = start.velocity.clone().requires_grad_()
        run = unroll(model, start.replace(velocity=velocity), integrator, 40)
        run.positions[-1].square().sum().backward()
        gradients.append((velocity.grad, weight.grad))
        backward = [found for kind in model.recordings for found in kind.backward.items()]
        recorded = [passes for (contacts, _), passes in backward if contacts is PairsOfStep and passes.recording]
        assert bool(recorded) == (trained != "stiffness" and wait < 10**9)
    for found, expected in zip(*gradients, strict=True):
        # both solve the same adjoint equations, with patterns of their own
        assert float(expected.abs().max()) > 0
        assert float((found - expected).abs().max()) < 1e-9 * float(expected.abs().max())


def test_a_fast_rod_does_not_fly_through(recordings, monkeypatch):
    """See that parts passed through each other in a recorded step, and stop the rod as steps in Python do."""
    model, start = dropped(0.0)
    integrator = ImplicitEuler(2e-3, **TIGHT)
    rest = course(model, start, integrator)[-1][0]
    velocity = rest.velocity.clone()
    velocity[:, 29 : 3 * 19 : 3] = -20.0  # 40 mm in a step, through a rod 8 mm thick
    recordings.clear()
    after, info = integrator.step(model, rest.replace(velocity=velocity))
    assert recordings  # a recording took it first
    expected = unrecorded(monkeypatch, dropped(0.0)[0], rest.replace(velocity=velocity), integrator, 1)
    assert torch.equal(info.status, expected[0][1].status)
    assert float((after.q - expected[0][0].q).abs().max()) < 1e-10


def test_no_recording_is_made_in_inference_mode(recordings, monkeypatch):
    """Go on outside of inference mode after pairs for which a new recording is worth its cost were found in it."""
    monkeypatch.setattr(touching_steps, "STEPS_SERVED", -1)
    model, start = dropped(0.0)
    integrator = ImplicitEuler(2e-3)
    state = course(model, start, integrator)[-1][0]
    assert sum(recordings) > STEPS // 2
    monkeypatch.setattr(StepPairs, "joins_many", lambda *given: True)
    with torch.inference_mode():
        course(model, start, integrator)
    recordings.clear()
    steps = course(model, state, integrator)
    assert all(bool(info.converged.all()) for _, info in steps) and any(recordings)


def test_matrices_that_are_too_large_are_not_measured_in_each_step(monkeypatch):
    """Wait before recordings are thought of again for matrices that need too much memory."""
    monkeypatch.setattr(touching_steps, "MOST_NUMBERS", 0)
    asked, record = [], touching_steps.TouchingSteps._record
    monkeypatch.setattr(
        touching_steps.TouchingSteps, "_record", lambda *given, **kept: asked.append(1) or record(*given, **kept)
    )
    course(*dropped(0.5), ImplicitEuler(1e-2), 200)  # at rest after 100 steps, with one pattern of the matrix
    assert 1 <= len(asked) <= 2


def test_chunks_in_turn_are_not_looked_at_in_each_step(recordings):
    """Leave the chunks of a batch to Python, as each leaves the boxes of the one before."""
    model, start = dropped(0.0, robots=2)
    integrator = ImplicitEuler(2e-3, chunk=1)
    course(model, start, integrator)
    assert len(recordings) < STEPS // 4


def test_steps_before_a_touch_are_differentiated_by_recordings(monkeypatch):
    """Differentiate steps taken at once by recordings, up to one in which parts begin to touch."""
    solved, of_class = [], forward.SolvedChunk
    monkeypatch.setattr(forward, "SolvedChunk", lambda *given: solved.append(of_class(*given)) or solved[-1])
    model, start = dropped(drop=0.03)  # lands after 39 steps
    integrator = ImplicitEuler(2e-3)
    course(model, start, integrator, 20)
    solved.clear()
    unroll(model, start.replace(velocity=start.velocity.clone().requires_grad_()), integrator, 60)
    assert solved[0].recorded_as is not None
