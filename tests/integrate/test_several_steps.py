"""Several steps at once: to the bit what single steps do, whichever of them recordings take."""

import dataclasses
import functools
import inspect

import pytest
import torch

from tests.integrate.recordings import LOADS, rods_on_cpu
from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Model,
    Newmark,
    SeveralSteps,
    Static,
    Status,
    forces,
    rollout,
    straight,
    trainable,
    unroll,
)
from torchdismech.errors import InputError, SimulationError
from torchdismech.integrate import integrator as integrator_module
from torchdismech.integrate.recorded.series import RecordedSeries
from torchdismech.runs.rollout import frames
from torchdismech.trajectory import Recorder

STEPS = 30
EULER = functools.partial(ImplicitEuler, 2e-3)


def one_by_one(integrator, model, state, control=None, running=None, steps=STEPS):
    """Return the states after some steps, with a control or one for each, and how each of these went."""
    running, infos = torch.ones(state.batch, dtype=torch.bool) if running is None else running, []
    for own in control if isinstance(control, list) else [control] * steps:
        state, info = integrator.step(model, state, own, running)
        infos.append((info, running))
        running = running & info.converged
    return state, infos


def assert_same(found, expected):
    """Check that states and reports are the same to the bit."""
    (state, went), (stepped, infos) = found, expected
    assert all(map(torch.equal, state.fields(), stepped.fields()))
    status = torch.zeros_like(went.status)
    for info, running in infos:
        status = torch.where(running, info.status, status)
    residuals = torch.stack([torch.where(running, info.residual, 0.0) for info, running in infos])
    iterations = torch.stack([info.iterations for info, _ in infos])
    assert went.count == len(infos) and torch.equal(went.status, status)
    assert torch.equal(went.iterations, iterations.sum(0)) and torch.equal(went.residual, residuals.amax(0))
    assert torch.equal(went.iterations_max, iterations.amax(0))
    last = infos[-1][0].contact
    assert went.contact.keys() == last.keys()
    for name, value in went.contact.items():
        deepest = (
            torch.stack([info.contact[name] for info, _ in infos]).amax(0) if name == "penetration" else last[name]
        )
        assert torch.equal(value, deepest)


@pytest.fixture
def looks(monkeypatch):
    """Return how many steps recordings took, and in how many turns."""
    counted = []
    take = RecordedSeries.take

    def counting(self, controls, *rest):
        counted.append(len(controls))
        return take(self, controls, *rest)

    monkeypatch.setattr(RecordedSeries, "take", counting)
    return counted


@pytest.mark.parametrize("load", [None, "resistive", "rough floor", "floor that moves", "magnet"])
@pytest.mark.parametrize("method", [EULER, functools.partial(Newmark, 2e-3), functools.partial(BDF2, 2e-3)])
def test_robots_go_the_same_way(load, method, looks):
    """Take many at once, of one robot, after those that come before a recording."""
    model = rods_on_cpu(1, None if load is None else LOADS[load]())
    state, integrator = model.initial_state(), method()
    expected = one_by_one(integrator, model, state)
    model.recordings.clear()
    assert_same(integrator.steps(model, state, STEPS), expected)
    assert looks and looks[0] == STEPS - 12  # 12 steps come before a recording


@pytest.mark.parametrize("chunk", [1, 2, 3, "auto"])
def test_parts_of_a_batch(chunk, looks):
    """Take all steps of a part before those of the next; of five robots one is in two parts.

    Robots that are stepped alone have a recording from the thirteenth of their steps on, in the middle of one of all.
    """
    model = rods_on_cpu(5)
    control = Control(force=1e-3 * torch.ones(5, model.n_dofs, dtype=torch.float64))
    state, integrator = model.initial_state(), EULER(chunk=chunk)
    running = torch.tensor([True, True, False, True, True])
    expected = one_by_one(integrator, model, state, control, running)
    model.recordings.clear()
    assert_same(integrator.steps(model, state, STEPS, control, running), expected)
    assert len(looks) == {1: 5, 2: 3, 3: 2, "auto": 1}[chunk]


@pytest.mark.parametrize("chunk", [2, "auto"])
def test_a_robot_that_fails_stays(chunk, looks):
    """Leave a robot where it was before the step that failed; the others go on."""
    model = rods_on_cpu(3)
    integrator = EULER(chunk=chunk, max_iterations=3)
    one_by_one(integrator, model, model.initial_state(batch=3))  # records
    velocity = torch.zeros(3, model.n_dofs, dtype=torch.float64)
    velocity[1, -8:] = 1e9  # a twist that grows until a step is not solved, the 25th
    state = model.initial_state(velocity=velocity)
    expected = one_by_one(integrator, model, state)
    found = integrator.steps(model, state, STEPS)
    assert_same(found, expected)
    assert looks and (found[1].status == Status.CONVERGED).tolist() == [True, False, True]


@pytest.mark.parametrize("chunk", [2, "auto"])
def test_steps_that_fail_are_taken_again(chunk, looks):
    """Go on after a step that was taken in smaller parts, again and again."""
    model = rods_on_cpu(3)
    velocity = torch.zeros(3, model.n_dofs, dtype=torch.float64)
    velocity[1, 6:27] = torch.linspace(10, -10, 21, dtype=torch.float64)
    state, integrator = model.initial_state(velocity=velocity), EULER(chunk=chunk, max_iterations=3, max_substeps=64)
    expected = one_by_one(integrator, model, state)
    found = integrator.steps(model, state, STEPS)
    assert_same(found, expected)
    parted = [int(info.substeps[1]) > 1 for info, _ in expected[1]]
    assert looks and 2 < sum(parted) < 8 and not parted[-1] and bool(found[1].converged.all())


def pulls(model, batch, name="force"):
    """Return a control for each step, of forces on free nodes or of where the clamp goes, other ones for each robot."""
    generator, controls, start = torch.Generator().manual_seed(1), [], model.initial_state(batch=batch).q
    for step in range(STEPS):
        shift = torch.rand(batch, model.n_dofs, generator=generator, dtype=torch.float64)
        controls.append(Control(**{name: 1e-5 * shift if name == "force" else start + 1e-5 * step * shift}))
    return controls


@pytest.mark.parametrize("name", ["force", "clamped_q"])
@pytest.mark.parametrize("chunk", [2, "auto"])
def test_a_control_for_each_step(name, chunk, looks):
    """Set another control in each step, of all robots and of parts of a batch."""
    model = rods_on_cpu(5)
    state, integrator, controls = model.initial_state(), EULER(chunk=chunk), pulls(model, 5, name)
    expected = one_by_one(integrator, model, state, controls)
    assert_same(integrator.steps(model, state, STEPS, controls), expected)
    assert looks == [STEPS] * {2: 3, "auto": 1}[chunk]


@pytest.mark.parametrize("chunk", [2, "auto"])
def test_controls_of_steps_that_are_taken_again(chunk, looks):
    """Go on with the control of the step that comes after one that was taken in smaller parts."""
    model = rods_on_cpu(3)
    velocity = torch.zeros(3, model.n_dofs, dtype=torch.float64)
    velocity[1, 6:27] = torch.linspace(10, -10, 21, dtype=torch.float64)
    state, controls = model.initial_state(velocity=velocity), pulls(model, 3)
    integrator = EULER(chunk=chunk, max_iterations=3, max_substeps=64)
    expected = one_by_one(integrator, model, state, controls)
    assert_same(integrator.steps(model, state, STEPS, controls), expected)
    parted = [int(info.substeps[1]) > 1 for info, _ in expected[1]]
    assert looks and 2 < sum(parted) < 8 and not parted[-1]


def test_controls_that_set_unlike_things():
    """Take steps whose controls set other fields, poses and values, too."""
    model = rods_on_cpu(2)
    state, integrator, controls = model.initial_state(), EULER(), pulls(model, 2)
    controls[5] = Control(rest_length=1.001 * model.natural_strains(2).rest_length)
    controls[14] = Control()
    controls[15] = Control(pose=model.rest_poses.expand(2, -1, -1))
    controls[20] = Control(values={"bend_twist.EI1": torch.tensor(1e-5, dtype=torch.float64)})
    expected = one_by_one(integrator, model, state, controls)
    assert_same(integrator.steps(model, state, STEPS, controls), expected)


@pytest.mark.parametrize("chunk", [2, "auto"])
def test_values_of_one_control_for_all_steps(chunk, looks):
    """Take steps at once where each has the same values; where others come, look again."""
    model = rods_on_cpu(5)
    state, integrator = model.initial_state(), EULER(chunk=chunk)
    soft, stiff = (
        Control(values={"bend_twist.EI1": factor * torch.linspace(1e-5, 2e-5, 5, dtype=torch.float64)[:, None]})
        for factor in (1.0, 2.0)
    )
    controls = [soft] * 10 + [stiff] * (STEPS - 10)
    expected = one_by_one(integrator, model, state, controls)
    assert_same(integrator.steps(model, state, STEPS, controls), expected)
    assert looks == [count for count in (10, STEPS - 10) for _ in range({2: 3, "auto": 1}[chunk])]


def test_gradients_by_a_control_for_each_step():
    """Give each control its own gradient, also where the first one needs none."""
    model, integrator = rods_on_cpu(2), EULER()
    state, controls = model.initial_state(), pulls(model, 2)
    integrator.steps(model, state, STEPS, controls)  # records
    for control in controls[1:4]:
        control.force.requires_grad_()

    def gradients(take):
        after, _ = take(integrator, model, state, controls[:4])
        return torch.autograd.grad(after.q.square().sum(), [control.force for control in controls[1:4]])

    at_once = gradients(lambda integrator, *given: integrator.steps(*given[:2], 4, given[2]))
    assert all(map(torch.equal, at_once, gradients(one_by_one)))


def test_controls_that_do_not_fit_are_named():
    """Refuse too few controls, what is none, and one that does not fit, before it would be given to a recording."""
    model = rods_on_cpu(2)
    state, integrator, controls = model.initial_state(), EULER(), pulls(model, 2)
    with pytest.raises(InputError, match="expected a Control, or one for each of 31 steps, got 30 of them"):
        integrator.steps(model, state, STEPS + 1, controls)
    with pytest.raises(InputError, match=r"steps: control\[1\]: expected a Control"):
        integrator.steps(model, state, 2, [Control(), None])
    controls[7] = Control(force=controls[7].force[:1])
    with pytest.raises(InputError, match="Control.force: expected shape"):
        integrator.steps(model, state, STEPS, controls)


OTHERS = {
    "smaller parts": (rods_on_cpu, EULER(max_substeps=4), None),
    "a user's force": (lambda: rods_on_cpu(1, Spring()), EULER(), None),
    "values": (rods_on_cpu, EULER(), Control(values={"bend_twist.EI1": torch.tensor([[1e-5]], dtype=torch.float64)})),
    "trained": (lambda: trained(), EULER(), None),
}


class Spring(forces.Force):
    """A force of a user's own."""

    def __init__(self):
        super().__init__()
        self.stiffness = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

    def forward(self, state, control):
        """Return a pull to where the robot is at rest."""
        at_rest = torch.cat([self.body.nodes.flatten(), state.q.new_zeros(state.q.shape[1] - 3 * state.n_nodes)])
        return -self.stiffness * (state.q - at_rest)


class RecordedSpring(Spring):
    """A force of a user's own that recordings may hold, so that courses may begin."""

    records = True


def trained():
    """Return a rod of which a stiffness is trained."""
    model = rods_on_cpu()
    trainable.scaled(model, ["bend_twist.EI1"])
    return model


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_looked_at_step_by_step(name, gradients):
    """Do the same where each step is taken alone, or numbers are made of others; gradients pass through all."""
    make, integrator, control = OTHERS[name]
    model = make()
    with torch.set_grad_enabled(gradients):
        start = model.initial_state().detach()
        expected = one_by_one(integrator, model, start, control, steps=20)
        found = integrator.steps(model, start, 20, control)
    assert_same(found, expected)
    assert found[0].q.requires_grad == (gradients and name in ("trained", "a user's force"))


def test_runs_take_steps_at_once(looks):
    """Give the same frames for each way to take the steps between two of them, with a schedule and without."""
    model = rods_on_cpu(2, LOADS["rough floor"]())
    state, integrator = model.initial_state(), EULER()
    alone = rollout(model, state, integrator, 30, schedule=lambda time, model: Control(), every=12)
    assert not looks
    at_once = rollout(model, state, integrator, 30, every=12)
    assert looks == [12, 12, 6]
    for name in ("positions", "velocities", "iterations", "iterations_max", "residual", "status", "step"):
        assert torch.equal(getattr(at_once, name), getattr(alone, name))
    assert all(torch.equal(at_once.contact[name], alone.contact[name]) for name in alone.contact)


class Pull:
    """A schedule that may be asked ahead, or not."""

    def __init__(self, ahead):
        self.ahead = ahead

    def __call__(self, time, model):
        """Return a force that grows with time."""
        return Control(force=1e-2 * time[:, None] * model.nodes.new_ones(len(time), model.n_dofs))


@pytest.mark.parametrize("method", [EULER, functools.partial(ImplicitMidpoint, 2e-3)])
def test_schedules_that_are_asked_ahead(method, looks):
    """Give the same frames for a schedule that is asked before each step, and before the steps up to a frame."""
    model = rods_on_cpu(2)
    state, integrator = model.initial_state(), method()
    alone = rollout(model, state, integrator, 30, schedule=Pull(False), every=12)
    assert not looks
    ahead = rollout(model, state, integrator, 30, schedule=Pull(True), every=12)
    assert looks == [12, 12, 6]
    assert torch.equal(ahead.positions, alone.positions) and torch.equal(ahead.iterations, alone.iterations)
    assert all(torch.equal(ahead.energies[name], alone.energies[name]) for name in alone.energies)


def test_a_schedule_says_whether_it_may_be_asked_ahead():
    """Refuse an answer that is neither yes nor no."""
    model = rods_on_cpu()
    with pytest.raises(InputError, match="Pull.ahead: expected True or False, got 'yes'"):
        rollout(model, model.initial_state(), EULER(), 3, schedule=Pull("yes"))


def test_a_run_that_fails_says_in_which_steps():
    """Name the steps that were taken at once."""
    model = rods_on_cpu()
    state = model.initial_state()
    state = state.replace(velocity=torch.full_like(state.velocity, 1e9))
    with pytest.raises(SimulationError, match="steps 1 to 5"):
        rollout(model, state, EULER(max_iterations=2), 10, every=5, throw=True)


def test_a_model_is_looked_at_in_one_way(monkeypatch):
    """Ask the same of a model and its users' code, in the same order, before a step, several, and a course."""
    model = rods_on_cpu(2, RecordedSpring())
    asked = []
    for name in ("refuse_transforms", "refuse_hidden_tensors", "chunk_size"):
        monkeypatch.setattr(integrator_module, name, noting(asked, name, getattr(integrator_module, name)))
    for kind, name in ((Model, "snapshot"), (ImplicitEuler, "check"), (Model, "try_hooks_in_other_modes")):
        monkeypatch.setattr(kind, name, noting(asked, name, getattr(kind, name)))
    state, integrator, looks = model.initial_state(), EULER(), []
    for take in (
        lambda: integrator.step(model, state),
        lambda: integrator.steps(model, state, 1),
        lambda: integrator.course(model, state, iter([Control(), Control()])),
    ):
        asked.clear()
        take()
        looks.append([*asked])
    tries = ["try_hooks_in_other_modes", "refuse_hidden_tensors"]
    assert looks[0] == ["refuse_transforms", "snapshot", "check", *tries, "chunk_size"]
    assert looks[1] == looks[2] == looks[0]


def noting(names, name, function):
    """Return a function that notes its name when it is called."""

    @functools.wraps(function)
    def noted(*args, **kwargs):
        names.append(name)
        return function(*args, **kwargs)

    return noted


def test_numbers_of_steps_are_whole():
    """Refuse what is no number of steps."""
    model = rods_on_cpu()
    with pytest.raises(InputError, match="steps: count"):
        EULER().steps(model, model.initial_state(), 0)


@pytest.mark.parametrize("every", [1, 3, 11])
@pytest.mark.parametrize("load", [None, "rough floor"])
def test_runs_with_frames_often(every, load, courses):
    """Give the frames of single steps where several are taken before their frames are made.

    Energies of several frames are found at once, and then sums round differently.
    """
    model = rods_on_cpu(3, None if load is None else LOADS[load]())
    state, method = model.initial_state(), EULER(chunk=2)
    one_by_one(method, model, state)  # records
    alone = rollout(model, state, method, 70, schedule=lambda time, model: Control(), every=every)
    assert not courses
    several = rollout(model, state, method, 70, every=every)
    assert courses == [50, 20]
    for name in ("time", "positions", "velocities", "twist", "iterations", "iterations_max", "residual", "status"):
        assert torch.equal(getattr(several, name), getattr(alone, name))
    assert several.contact.keys() == alone.contact.keys() and several.energies.keys() == alone.energies.keys()
    assert all(torch.equal(several.contact[name], alone.contact[name]) for name in alone.contact)
    largest = max(energy.max() for energy in alone.energies.values())
    for name, energy in alone.energies.items():
        assert (several.energies[name] - energy).abs().max() < 1e-14 * largest
    assert all(map(torch.equal, several.state.fields(), alone.state.fields()))


class Bend(Pull):
    """A schedule of natural curvatures that grow with time, in each robot by as much more as its number says."""

    def __call__(self, time, model):
        """Return them."""
        robots = torch.arange(1, len(time) + 1, dtype=time.dtype)
        curvature = 0.1 * (time * robots)[:, None, None] * model.nodes.new_ones(len(time), len(model.springs), 2)
        return Control(natural_curvature=curvature)


def test_energies_of_several_frames_by_constants_and_controls_of_each_robot(courses):
    """Find the energies of a frame by the stiffness of each robot, and by the curvature that its step was given."""
    material = Material(torch.tensor([[1e6], [2e6], [4e6]], dtype=torch.float64), 1000.0)
    builder = rod_through(straight((0, 0, 0), (0.2, 0, 0), 9), Circle(2e-3), material, [forces.Gravity((0, 0, -9.81))])
    model, method = builder.finalize(compile=False), EULER()
    state = model.initial_state()
    one_by_one(method, model, state)  # records
    alone, ahead = (rollout(model, state, method, 21, schedule=Bend(ahead), every=2) for ahead in (False, True))
    assert courses and sum(courses) == 21
    largest = max(energy.max() for energy in alone.energies.values())
    for name, energy in alone.energies.items():
        # sums of several frames at once round differently
        assert (ahead.energies[name] - energy).abs().max() < 1e-14 * largest
    assert len({float(energy) for energy in alone.energies["bend"][-1]}) == 3


class KeepingFrames(Recorder):
    """A writer that keeps the frames that it is given."""

    def __init__(self):
        super().__init__()
        self.frames = []

    def append(self, frame):
        """Keep a frame."""
        self.frames.append(frame)
        super().append(frame)


@pytest.mark.parametrize("every", [1, 4])
def test_frames_keep_no_states_between_them(every, courses):
    """Hold the numbers of frames alone in memory while a run goes on, those of no step between them."""
    model, method = rods_on_cpu(1), EULER()
    one_by_one(method, model, model.initial_state())  # records
    writer = KeepingFrames()
    rollout(model, model.initial_state(), method, 8, every=every, writer=writer)
    kept = [frame.state.q.untyped_storage() for frame in writer.frames][1:]
    assert courses == [8]
    held = sum({storage.data_ptr(): storage.nbytes() for storage in kept}.values())
    # all states of a course and the one before it stand in one tensor, where each is a frame
    assert held == {1: 9, 4: 2}[every] * 8 * model.n_dofs


def test_frames_take_the_arguments_of_runs():
    """Give both the same defaults; where frames go and how a run is shown is asked of runs alone."""
    of_frames, of_runs = (dict(inspect.signature(run).parameters) for run in (frames, rollout))
    assert of_runs.keys() - of_frames.keys() == {"writer", "progress"}
    assert all(of_runs[name] == given for name, given in of_frames.items())


def test_frames_are_made_between_steps():
    """Let a loop over frames change what the next step is given."""
    model, method = rods_on_cpu(1), EULER()
    one_by_one(method, model, model.initial_state())  # records
    gravity = next(force for force in model.forces if isinstance(force, forces.Gravity))
    state = model.initial_state()
    for frame in frames(model, state, method, 5):
        assert torch.equal(frame.state.q, state.q)
        gravity.acceleration.neg_()
        state, _ = method.step(model, state)


@pytest.mark.parametrize("load", [None, "rough floor"])
def test_reports_of_steps_are_summed_in_one_way(load):
    """Say the same of steps whose reports stand in one, and of steps that are followed by one more again and again."""
    model = rods_on_cpu(2, None if load is None else LOADS[load]())
    _, infos = one_by_one(EULER(), model, model.initial_state(), steps=6)
    generator = torch.Generator().manual_seed(1)
    reports = [info.with_tensors(scrambled(info.tensors(), generator)) for info, _ in infos]
    reports = [dataclasses.replace(info, status=torch.zeros_like(info.status)) for info in reports]
    stacked = reports[0].with_tensors(map(torch.stack, zip(*(info.tensors() for info in reports), strict=True)))
    for first, last in ((0, 5), (1, 3), (2, 2)):
        expected = SeveralSteps.none(model.initial_state(2).q)
        for info in reports[first : last + 1]:
            expected = expected.followed_by(info, None)
        found = SeveralSteps.of_steps(stacked, slice(first, last + 1), reports[last])
        assert found.count == expected.count == last + 1 - first
        assert found.contact.keys() == expected.contact.keys() and bool(found.contact) == (load is not None)
        assert all(map(torch.equal, found.tensors(), expected.tensors()))


def scrambled(tensors, generator):
    """Return other numbers of the same kinds, from 0 to 9."""
    return [torch.randint(10, tensor.shape, generator=generator).to(tensor.dtype) for tensor in tensors]


def test_reports_of_several_steps_are_merged():
    """Replace how several steps went for some robots: the number of steps stays, what one of two lacks is not known."""
    model = rods_on_cpu(2)
    state, first = ImplicitEuler(2e-3).steps(model, model.initial_state(), 3)
    _, second = ImplicitEuler(2e-3).steps(model, state, 3)
    merged = first.merged(second, torch.tensor([True, False]))
    assert merged.count == 3
    assert merged.residual.tolist() == [second.residual[0].item(), first.residual[1].item()]
    known = dataclasses.replace(first, stable=torch.ones(2, dtype=torch.bool))
    assert known.merged(second, torch.tensor([True, False])).stable is None
    assert second.merged(known, torch.tensor([True, False])).stable is None


def test_reports_are_shown_in_a_line():
    """Print how steps went and what an unrolled run has without their tensors, for a batch of no robots, too."""
    model = rods_on_cpu(3)
    start = model.initial_state()
    _, info = ImplicitEuler(2e-3).step(model, start)
    failed = dataclasses.replace(info, status=torch.tensor([0, 0, int(Status.SINGULAR)]))
    took = f"{float(info.iterations.double().mean()):.3g} iterations on average, at most {int(info.iterations.max())}"
    assert repr(failed) == f"StepInfo(3 robots: 2 CONVERGED, 1 SINGULAR; {took})"
    assert repr(info.rows([])) == "StepInfo(0 robots)"
    _, several = ImplicitEuler(2e-3).steps(model, start, 3)
    assert repr(several).startswith("SeveralSteps(3 steps of 3 robots: 3 CONVERGED; ")
    assert repr(ImplicitEuler(2e-3)) == "ImplicitEuler(dt=0.002)"
    assert repr(Static(load_steps=3)) == "Static(load_steps=3)"
    control = Control(force=torch.zeros_like(start.q), values={"Gravity.acceleration": torch.zeros(3, 3)})
    assert repr(control) == f"Control(force={tuple(start.q.shape)}, values={{'Gravity.acceleration': (3, 3)}})"
    assert repr(Control()) == "Control()"
    run = unroll(model, start, ImplicitEuler(2e-3), 2, observe=lambda before, after, control: {"tip": after.q[:, :3]})
    assert repr(run) == "Unrolled(2 steps of 3 robots, with tip, 0 failed)"
