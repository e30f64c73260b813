"""Steps recorded as graphs: the same steps and gradients as without."""

import contextlib
import copy
import functools

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.solve.replays import Replays, replayable
from tests.solve.waiting import DEVICE, nothing_to_wait_for
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    Status,
    contact,
    forces,
    magnetics,
    meshes,
    straight,
    trainable,
    unroll,
)
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.elastic import LinearElastic
from torchdismech.integrate import recording
from torchdismech.integrate.problem import StepProblem
from torchdismech.model import Model
from torchdismech.native.graphs import Unrecordable, recorded
from torchdismech.solve.linear.base import DirectSolver
from torchdismech.solve.linear.triton_band import TritonBand

BATCH = 6
INTEGRATORS = {
    "euler": functools.partial(ImplicitEuler, 1e-2),
    "midpoint": functools.partial(ImplicitMidpoint, 2e-3),
    "newmark": functools.partial(Newmark, 2e-3),
}
# On a CPU springs are found by torch where a recorded step holds a constant that requires gradients, else by compiled
# code, which rounds differently in the last place; a GPU compiles all of a step, which reorders products.
ON_CPU, ON_GPU = 1e-13, 1e-9


def per_robot(low: float, high: float) -> torch.Tensor:
    """Return one number of each robot, (B, 1)."""
    return torch.linspace(low, high, BATCH, dtype=torch.float64)[:, None]


def rods(load=None, **options) -> Model:
    """Return damped rods, no two robots of a batch alike, on which constant forces act, and a load."""
    builder = RobotBuilder()
    material = Material(per_robot(1e6, 2e6), per_robot(900, 1100), relaxation_time=1e-3)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 5), Circle(per_robot(2e-3, 3e-3)), material)
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity(per_robot(-9.81, -5.0) * torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)))
    builder.add_force(forces.PointForce([4], (0.0, 1e-3, 0.0), stop=0.05))
    if load is not None:
        builder.add_force(load)
    return builder.finalize(**{"solver": "dense", **options})


def shells(bending: str = "hinge", **options) -> Model:
    """Return small plates that differ in stiffness."""
    builder = RobotBuilder()
    sheet = meshes.rectangle(0.06, 0.04, 0.02)
    builder.add_shell(sheet.nodes, sheet.triangles, 2e-3, Material(per_robot(1e6, 2e6), 1000.0, 0.3), bending)
    builder.clamp(nodes=[0, 1, 2])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    return builder.finalize(**{"solver": "dense", **options})


ROBOTS = {"rods": rods, "hinges": shells, "mid-edges": functools.partial(shells, "midedge")}


class Counted:
    """A tape, with the number of its replays."""

    def __init__(self, *given):
        self.tape, self.count = recorded(*given), 0

    def replay(self):
        """Replay the tape."""
        self.count += 1
        return self.tape.replay()


class Graphs:
    """Switches recordings on and off, and keeps what was recorded: by the stand-in for CUDA graphs, or by tapes."""

    def __init__(self, patch, kind):
        self.patch, self.kind = patch, kind
        self.made: list = []

        def kept(*given):
            made = (replayable if kind == "graphs" else Counted)(*given)
            if not isinstance(given[0], functools.partial):  # those are trials of steps that are not taken whole
                self.made.append(made)
            return made

        patch.setattr(recording, "recorded", kept)
        patch.setattr(recording, "memory_pool", lambda device: None)
        if kind == "graphs":
            self._factor_all_rows()
        self.switch(True)

    def _factor_all_rows(self):
        plain = DirectSolver.factor

        def factor(solver, values, rows=None, indefinite=False):
            """Factor all rows, as a GPU does."""
            found = plain(solver, values, None, indefinite)
            found.ok = found.ok if rows is None else found.ok & rows
            return found

        self.patch.setattr(DirectSolver, "factor", factor)

    def switch(self, on: bool) -> None:
        """Record steps from now on, or do not."""
        self.patch.setattr(recording, "_on_a_gpu", lambda model, q: on and self.kind == "graphs")
        self.patch.setattr(recording, "_eager_on_a_cpu", lambda model, q: on and self.kind == "tapes")
        self.patch.setattr(recording, "SEEN", 0)

    @property
    def replays(self) -> int:
        """How often anything was replayed, but for once in each recording of a set-up."""
        return sum(made.count for made in self.made) - len(self.made) // 4


@pytest.fixture(params=["graphs", "tapes"])
def graphs(request, monkeypatch):
    """Return recordings, switched on."""
    return Graphs(monkeypatch, request.param)


def compare(graphs, run, *models):
    """Return what `run` gives with and without graphs, each on copies of the models."""
    found = []
    for on in (True, False):
        graphs.switch(on)
        found.append(run(*copy.deepcopy(models)))
    return found


def assert_same(found, expected, within=ON_CPU):
    """Compare tensors, one by one."""
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=within, atol=within, equal_nan=True)


def steps(model, integrator, count=4, control=None, state=None, running=None):
    """Return all that the steps give."""
    found = []
    state = model.initial_state(batch=BATCH) if state is None else state
    for _ in range(count):
        state, info = integrator.step(model, state, control, running)
        found += [state.q, state.velocity, state.acceleration, state.director, state.reference_twist, state.time]
        found += [info.status, info.iterations, info.residual, info.tolerance, info.force_scale, info.substeps]
    return found


def trained(model, robot, chunk):
    """Return gradients and states over steps of an optimiser."""
    names = ["bend_twist.EI1", "bend_twist.EI2"] if robot == "rods" else ["hinge.hinge"]
    factor, found = trainable.scaled(model, names), []
    optimizer = torch.optim.SGD(factor.parameters(), lr=0.1)
    for _ in range(3):
        state = model.initial_state(batch=BATCH).detach()
        velocity = torch.full_like(state.velocity, 1e-3).requires_grad_()
        run = unroll(model, state.replace(velocity=velocity), ImplicitEuler(1e-2, chunk=chunk), 3)
        optimizer.zero_grad()
        (run.q[-1] ** 2).sum().backward()
        found += [velocity.grad, factor.log_factor.grad.clone(), run.q.detach()]
        optimizer.step()
    return found


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_steps_are_the_same(graphs, integrator, robot):
    """Give what steps without graphs give, bit by bit, and really replay."""
    found, expected = compare(graphs, lambda model: steps(model, INTEGRATORS[integrator]()), ROBOTS[robot]())
    assert_same(found, expected)
    assert len(graphs.made) == 4  # set-up, two kinds of rounds, end
    assert graphs.replays >= 4 * 3


def test_results_are_kept(graphs):
    """Return tensors that later steps do not write to."""
    model, integrator = rods(), ImplicitEuler(1e-2)
    state, info = integrator.step(model, model.initial_state())
    before = [t.clone() for t in (*state.fields(), info.status, info.residual, info.tolerance)]
    integrator.step(model, state)
    assert_same([*state.fields(), info.status, info.residual, info.tolerance], before)


def test_dt_is_given(graphs):
    """Take steps of other lengths by the same graphs, also where damping knows them."""

    def run(model):
        found = steps(model, ImplicitEuler(1e-2), 2)
        return found + steps(model, ImplicitEuler(3e-3), 2) + steps(model, ImplicitEuler(1e-2), 1)

    assert_same(*compare(graphs, run, rods()))
    assert len(graphs.made) == 4


def test_options_are_known(graphs):
    """Record anew for another tolerance, number of iterations or method."""
    options = [{}, {"relative_tolerance": 1e-3}, {"max_iterations": 2}, {"line_search": False}]

    def run(model):
        return [x for given in options for x in steps(model, ImplicitEuler(1e-2, **given), 2)]

    assert_same(*compare(graphs, run, rods()))
    assert len(graphs.made) == 4 * len(options)


def test_controls_are_given(graphs):
    """Follow controls that change, and know which of their fields are set."""
    base = rods()
    own = base.natural_strains(BATCH)
    rest = base.initial_state().q

    def run(model):
        found, state, integrator = [], model.initial_state(), ImplicitEuler(1e-2)
        for k in range(5):
            control = Control(
                natural_curvature=own.natural_curvature + 0.01 * k,
                rest_length=own.rest_length * (1 + 1e-3 * k),
                clamped_q=rest + 1e-4 * k,
                force=1e-3 * k * torch.ones_like(rest) * (torch.arange(rest.shape[1]) < 15),
            )
            control = control if k < 4 else Control(natural_twist=own.natural_twist + 0.1)
            state, info = integrator.step(model, state, control)
            found += [state.q, state.velocity, info.iterations]
        return found

    assert_same(*compare(graphs, run, base))
    assert len(graphs.made) == 8


def test_fields_of_a_control_are_told_apart(graphs):
    """Know the natural twists of a star from its rest lengths: there are as many."""
    builder = RobotBuilder()
    for end in ((0.1, 0, 0), (0, 0.1, 0), (-0.1, -0.1, 0)):
        builder.add_rod(straight((0, 0, 0), end, 2), Circle(2e-3), Material(1e6, 1000.0))
    star = builder.finalize(solver="dense")
    own = star.natural_strains(BATCH)
    assert own.natural_twist.shape == own.rest_length.shape

    def run(model):
        twisted = steps(model, ImplicitEuler(1e-3), 1, Control(natural_twist=own.natural_twist + 0.1))
        return twisted + steps(model, ImplicitEuler(1e-3), 1, Control(rest_length=1.01 * own.rest_length))

    assert_same(*compare(graphs, run, star))


def test_rows_that_do_not_run(graphs):
    """Leave them alone, others from step to step."""

    def run(model):
        found, state = [], model.initial_state()
        for k in range(3):
            state, info = ImplicitEuler(1e-2).step(model, state, running=torch.arange(BATCH) % 3 != k)
            found += [state.q, state.time, info.status, info.iterations]
        return found

    assert_same(*compare(graphs, run, rods()))


def test_constants_may_change(graphs):
    """Read a model's tensors as they are: written in place, exchanged, or made anew by training."""

    def changes(model):
        yield
        model.term("stretch").energy.EA.data *= 0.5  # an optimiser's step
        yield
        model.term("bend_twist").energy.EI1.data = 2 * model.term("bend_twist").energy.EI1.data
        yield
        model.term("bend_twist").natural_kappa1 = model.term("bend_twist").natural_kappa1 + 0.02
        yield
        model.body.mass = 1.5 * model.body.mass
        yield
        model.term("bend_twist").stencil.alignment = model.term("bend_twist").stencil.alignment + 0.1  # settled
        yield
        model.forces[0].acceleration.data *= 0.5
        yield
        factor = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])
        yield
        with torch.no_grad():
            factor.log_factor += 0.3
        yield

    def run(model):
        found, state = [], model.initial_state()
        for _ in changes(model):
            state, info = ImplicitEuler(1e-2).step(model, state)
            found += [state.q, info.iterations, info.force_scale]
        return found

    assert_same(*compare(graphs, run, rods()))


def test_numbers_of_modules_are_known(graphs):
    """Record anew where a plain number in a module changes."""

    class Stiffer(type(rods().term("stretch").energy)):
        factor = 1.0

        def derivatives(self, strain):
            first, second = super().derivatives(strain)
            scaled = [[None if k is None else self.factor * k for k in row] for row in second]
            return [self.factor * s for s in first], scaled

    def run(model):
        energy, found, state = model.term("stretch").energy, [], model.initial_state()
        energy.__class__ = Stiffer
        for factor in (1.0, 0.1, 1.0):
            energy.factor = factor
            state, info = ImplicitEuler(1e-2).step(model, state)
            found += [state.q, info.force_scale]
        return found

    assert_same(*compare(graphs, run, rods()))
    assert len(graphs.made) == 4 * 2


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_parts_of_a_batch(graphs, integrator):
    """Serve all parts by the same graphs, each with its own constants."""
    make = INTEGRATORS[integrator]
    found, expected = compare(graphs, lambda model: steps(model, make(chunk=4)), rods())
    assert_same(found, expected)
    assert len(graphs.made) == 4
    whole = steps(rods(), make(chunk=None))
    assert_same([x for x in found if x.is_floating_point()], [x for x in whole if x.is_floating_point()], within=1e-11)


def test_memory_is_bounded(graphs, monkeypatch):
    """Keep the recordings that served last."""
    monkeypatch.setattr(recording, "KEPT", 2)
    model = rods()
    make = [functools.partial(ImplicitEuler, 1e-2, max_iterations=20 + k) for k in range(3)]
    for k, recordings in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        steps(model, make[k](), 1)
        assert (len(graphs.made), len(model.recordings)) == (4 * recordings, min(recordings, 2))


class TestFailingRows:
    """What a graph does not hold."""

    @staticmethod
    def thrown(model):
        """Return a state whose last robots are too fast to be solved in one go, and one that is not finite."""
        state = model.initial_state()
        speed = torch.zeros_like(state.velocity)
        speed[3:, 8] = torch.tensor([2.0, 20.0, 200.0], dtype=torch.float64)
        speed[0] = torch.nan
        return state.replace(velocity=speed)

    @pytest.mark.parametrize("options", [{}, {"max_iterations": 3}, {"line_search": False}, {"max_substeps": 8}])
    def test_search_goes_on(self, graphs, options):
        """End where steps without graphs end: with line searches, other attempts, substeps; or give up likewise."""

        def run(model):
            integrator = ImplicitEuler(2e-2, **options)
            found = steps(model, integrator, 3, state=self.thrown(model))
            return found + steps(model, integrator, 1)  # and the graphs serve the next step

        found, expected = compare(graphs, run, rods())
        assert_same(found, expected)
        status = found[6]
        assert status[0] != Status.CONVERGED
        assert (status[1:3] == Status.CONVERGED).all()

    def test_a_surprise_in_the_last_round(self, graphs, monkeypatch):
        """Find the matrix that was left out where a round was not the last one after all."""
        plain, seen = recording.plain_round, []

        def hopeful(*given):
            """Expect each round to be the last."""
            progress, flags = plain(*given)
            seen.append(given[-1])
            flags = flags.clone()
            flags[3] = True
            return progress, flags

        expected = steps(rods(), ImplicitEuler(1e-2), 3)
        graphs.switch(True)
        monkeypatch.setattr(recording, "plain_round", hopeful)
        graphs.made.clear()
        assert_same(steps(rods(), ImplicitEuler(1e-2), 3), expected)
        assert False in seen


class TestGradients:
    """The backward pass knows nothing of graphs."""

    @pytest.mark.parametrize("chunk", [None, 4])
    @pytest.mark.parametrize("robot", ["rods", "hinges"])
    def test_they_are_the_same(self, graphs, robot, chunk):
        """Give the same gradients by states and constants, over steps of an optimiser."""
        run = functools.partial(trained, robot=robot, chunk=chunk)
        found, expected = compare(graphs, run, ROBOTS[robot]())
        assert_same(found, expected)
        assert (found[1] != 0).all()


class TestWaiting:
    """What a host waits for in a recorded step: the flags of each round, nothing else."""

    @pytest.fixture
    def pieces(self, monkeypatch):
        """Return a list of all that a graph is to hold; each runs once, with nothing to wait for."""
        found = []

        def run(function, device, pool):
            function()  # tables come to the device
            with nothing_to_wait_for():
                outputs = function()
            found.append(function.__name__)
            return Replays([], outputs)

        monkeypatch.setattr(recording, "recorded", run)
        monkeypatch.setattr(recording, "memory_pool", lambda device: None)
        monkeypatch.setattr(recording, "_on_a_gpu", lambda model, q: True)
        monkeypatch.setattr(TritonBand, "_launch", lambda self, kernel, *arguments, **constants: None)
        return found

    @pytest.mark.parametrize("robot", ROBOTS)
    @pytest.mark.parametrize(
        ("integrator", "solver"),
        [("euler", "banded"), ("euler", "multifrontal"), ("midpoint", "dense"), ("newmark", "auto")],
    )
    def test_pieces(self, pieces, integrator, robot, solver):
        """Find nothing to wait for in the graphs, nor in what a step does beside them."""
        state, integrator = ROBOTS[robot]().initial_state(batch=BATCH).to(DEVICE), INTEGRATORS[integrator]()
        model = ROBOTS[robot](solver=solver).to(DEVICE)
        control = Control(force=torch.zeros_like(state.q), clamped_q=state.q)
        running = torch.ones(BATCH, dtype=torch.bool, device=DEVICE)
        given = StepProblem(model, integrator, state, control, 1e-2, running)
        first = recording.recording_of(given)
        assert pieces == ["_set_up", "_round_with_matrix", "_round_without_matrix", "_state_after"]
        with nothing_to_wait_for():
            step = recording.recording_of(given)
            after, info = step.end()
        assert step is first
        assert after.q.shape == state.q.shape
        assert info.status.shape == info.force_scale.shape == (BATCH,)

    @pytest.mark.parametrize("robot", ROBOTS)
    def test_backward(self, robot, monkeypatch):
        """Find one wait in a backward pass, whether all matrices could be factored, and none to copy anything."""
        monkeypatch.setattr(TritonBand, "_launch", lambda self, kernel, *arguments, **constants: None)
        start = ROBOTS[robot]().initial_state(batch=BATCH).to(DEVICE)
        model = ROBOTS[robot](solver="auto")
        trainable.scaled(model, ["stretch.EA" if robot == "rods" else "membrane.membrane"])
        model = model.to(DEVICE)
        asked = []
        monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: bool(asked.append(self)))  # no: nothing failed
        for watched in (contextlib.nullcontext, nothing_to_wait_for):  # tables come to the device first
            velocity = torch.zeros_like(start.velocity).requires_grad_()
            with watched():
                after, _ = ImplicitEuler(1e-2).step(model, start.replace(velocity=velocity))
                asked.clear()
                after.q.sum().backward()
        assert velocity.grad.shape == velocity.shape
        assert len(asked) == 1

    def test_a_wait_a_round(self, graphs):
        """Read numbers once a round in a whole step."""
        model, integrator = rods(), ImplicitEuler(1e-2)
        state, _ = integrator.step(model, model.initial_state().detach())
        before = [made.count for made in graphs.made]
        reads = _Reads()
        with reads:
            _, info = integrator.step(model, state)
        rounds = [made.count - old for made, old in zip(graphs.made, before, strict=True)]
        assert rounds[0] == rounds[3] == 1
        assert reads.count == rounds[1] + rounds[2] == int(info.iterations.max())


class _Reads(TorchFunctionMode):
    """Counts where Python asks a tensor for its numbers."""

    ASKING = (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.cpu)

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func in self.ASKING
        return func(*args, **(kwargs or {}))


def test_what_is_not_recorded(graphs):
    """Take the other path where nothing has inertia, by iterative solvers, and for odd integrators."""
    steps(rods(), Static(2), 1)
    steps(rods(solver="pcg"), ImplicitEuler(1e-2), 1)
    integrator = ImplicitEuler(1e-2)
    integrator.table = torch.zeros(3)
    steps(rods(), integrator, 1)
    assert not graphs.made
    assert recording.unrecorded(rods(solver="pcg")) == "the solver pcg, which reads numbers"


def test_loads_that_change_in_a_step():
    """Record them on a CPU alone, and none that calls a function of a user's."""
    drag = rods(load=forces.Viscous(0.1))
    assert recording.unrecorded(drag) is None
    assert recording.unrecorded(drag.to("meta")) == "forces that change within a step"
    field = magnetics.Timed(lambda time: torch.ones(len(time), 3, dtype=time.dtype))
    magnet = rods(load=magnetics.Magnetic((0.0, 0.0, 1e4), field))
    assert recording.unrecorded(magnet) == "forces that call a function of the user's"


def test_copies_record_for_themselves(graphs):
    """Share no recordings with a copy."""
    model = rods()
    steps(model, ImplicitEuler(1e-2), 1)
    assert model.recordings
    assert not copy.deepcopy(model).recordings


@pytest.mark.gpu
class TestOnGPU:
    """Recorded and compiled against eager steps, on the device."""

    @staticmethod
    def both(robot, run):
        """Return what `run` gives for a recorded model and for an eager one."""
        models = [ROBOTS[robot](solver="auto", device="cuda", compile=compile) for compile in (True, False)]
        found = [run(model) for model in models]
        assert models[0].recordings
        assert not models[1].recordings
        return found

    @pytest.mark.parametrize("chunk", [None, 4])
    @pytest.mark.parametrize("robot", ROBOTS)
    @pytest.mark.parametrize("integrator", INTEGRATORS)
    def test_steps_agree(self, integrator, robot, chunk):
        """Take the same steps, of two lengths."""

        def run(model):
            make = INTEGRATORS[integrator]
            state = model.initial_state(batch=BATCH)
            for k in range(8):
                stepper = make(chunk=chunk)
                stepper.dt *= 0.5 if k % 3 == 2 else 1.0
                state, _ = stepper.step(model, state, throw=True)
            return [state.q, state.director, state.reference_twist]

        assert_same(*self.both(robot, run), within=ON_GPU)

    @pytest.mark.parametrize("chunk", [None, 4])
    @pytest.mark.parametrize("robot", ["rods", "hinges"])
    def test_training_agrees(self, robot, chunk):
        """Give the same gradients, and follow an optimiser."""
        assert_same(*self.both(robot, functools.partial(trained, robot=robot, chunk=chunk)), within=ON_GPU)

    def test_failing_rows_agree(self):
        """End likewise where some rows fail, and go on after it."""

        def run(model):
            state, integrator = TestFailingRows.thrown(model), ImplicitEuler(2e-2, max_substeps=4)
            found = steps(model, integrator, 3, state=state)
            return [found[k] for k in (0, 6, -6)]  # q and status of the first step, status of the last

        found, expected = self.both("rods", run)
        assert torch.equal(found[1], expected[1])
        good = expected[1] == Status.CONVERGED
        assert_same([found[0][good]], [expected[0][good]], within=1e-6)  # violent steps amplify rounding

    def test_a_round_does_not_wait_twice(self):
        """Launch the set-up, a round and the end with torch watching for waits."""
        model, integrator = rods(solver="auto", device="cuda", compile=True), ImplicitEuler(1e-2)
        state, _ = integrator.step(model, model.initial_state(batch=BATCH))
        running = torch.ones(BATCH, dtype=torch.bool, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            step = recording.recording_of(StepProblem(model, integrator, state, Control(), integrator.dt, running))
            step._round.replay()
            step.end()
        finally:
            torch.cuda.set_sync_debug_mode("default")


class _Operations(TorchDispatchMode):
    """Counts operations of torch."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Springy(LinearElastic):
    """An energy of a user's own."""


def rough(shape, response=None) -> contact.Obstacle:
    """Return an obstacle with friction."""
    return contact.Obstacle(shape, response or contact.Penalty(1e3, 1e-3), contact.Friction(0.4, 1e-3))


LOADS = {
    "viscous": lambda: forces.Viscous(0.1),
    "resistive": lambda: forces.Resistive(0.5, 1.0),
    "explicit": lambda: forces.Viscous(0.01, explicit=True),
    "a moment that follows": lambda: forces.PointMoment((0.0, 1e-4, 0.0), edges=[7], frame="material"),
    "magnet": lambda: magnetics.Magnetic((3e4, 0.0, 0.0), magnetics.Rotating(5e-3, 3.0)),
    "tendon": lambda: Tendons([AtNodes(range(9), (0, 0, 0.005))], tension=2.0),
    "rough floor": lambda: rough(contact.HalfSpace((0, 0, -0.003), (0, 0, 1))),
    "floor that moves": lambda: contact.Obstacle(
        contact.HalfSpace((0, 0, -0.01), (0, 0, 1)), contact.Barrier(1e2, 1e-3), path=contact.Path.uniform((0, 0, 0.1))
    ),
    "capsule": lambda: rough(contact.Capsule((0.15, -0.1, 0.01), (0.15, 0.1, 0.01), 0.01)),
    "box": lambda: rough(contact.Box((0.15, 0, 0.0), (0.05, 0.05, 0.05))),
}


class TestOnCPU:
    """Which steps are recorded on a CPU, and that they keep every bit."""

    @staticmethod
    def rods(robots=1, load=None, **options):
        """Return rods of this many robots, factored as most are."""
        builder = RobotBuilder()
        stiffness = torch.linspace(1e6, 2e6, robots, dtype=torch.float64)[:, None]
        builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 9), Circle(2e-3), Material(stiffness, 1000.0))
        builder.clamp(nodes=[0], direction="rest")
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        if load is not None:
            builder.add_force(load)
        return builder.finalize(**{"compile": False, **options})

    @pytest.mark.parametrize("robots", [1, 3])
    def test_every_bit_is_kept(self, robots, monkeypatch):
        """Record after some steps of a kind, and give the same numbers before and after."""
        found = []
        for seen in (3, 10**9):
            monkeypatch.setattr(recording, "SEEN", seen)
            model = self.rods(robots)
            state = model.initial_state(batch=robots)
            torch.manual_seed(0)
            state = state.replace(velocity=0.3 * torch.rand_like(state.velocity))
            found.append(steps(model, ImplicitEuler(1e-2), 8, state=state))
            assert [kind.recording is not None for kind in model.recordings] == [seen == 3]
        for a, b in zip(*found, strict=True):
            assert torch.equal(a, b)

    @pytest.mark.parametrize("name", LOADS)
    def test_loads_keep_every_bit(self, name, monkeypatch):
        """Record loads that change in a step, and contact with obstacles: touching, sliding, missed steps, reports."""
        found = []
        for seen in (2, 10**9):
            monkeypatch.setattr(recording, "SEEN", seen)
            model = self.rods(load=LOADS[name]())
            state = model.initial_state(batch=1)
            along = torch.zeros_like(state.velocity)
            along[:, 1:24:3] = 0.3
            found.append([])
            for _ in range(14):
                state, info = ImplicitEuler(5e-3).step(model, state if found[-1] else state.replace(velocity=along))
                found[-1] += [*state.fields(), info.status, info.iterations, info.residual, *info.contact.values()]
            assert any(kind.recording is not None for kind in model.recordings) == (seen == 2)
        for a, b in zip(*found, strict=True):
            assert torch.equal(a, b)

    def test_contact_of_robots_that_do_not_run(self, monkeypatch):
        """Report what the others touch, as a step without a recording does."""
        found = []
        for seen in (0, 10**9):
            monkeypatch.setattr(recording, "SEEN", seen)
            model = self.rods(2, load=LOADS["rough floor"]())
            state = model.initial_state(batch=2)
            state = state.replace(q=state.q - 0.01 * (torch.arange(state.q.shape[1]) % 3 == 2))
            _, info = ImplicitEuler(5e-3).step(model, state, running=torch.tensor([True, False]))
            found.append([info.status, *info.contact.values()])
            assert (info.contact["active"] > 0).all()
        for a, b in zip(*found, strict=True):
            assert torch.equal(a, b)

    def test_a_node_that_passes_through_is_seen(self, monkeypatch):
        """Fail the step of a robot that goes through a thin plate, recorded or not, and leave it where it was."""
        monkeypatch.setattr(recording, "SEEN", 0)
        plate = contact.Obstacle(contact.Box((0.1, 0, -0.05), (0.5, 0.5, 0.004)), contact.Penalty(10.0, 1e-4))
        model = self.rods(load=plate)
        state = model.initial_state(batch=1)
        fast = torch.zeros_like(state.velocity)
        fast[:, 5:27:3] = -30.0
        state, integrator = state.replace(velocity=fast), ImplicitEuler(1e-2)
        after, info = integrator.step(model, state)
        assert model.recordings[0].recording is not None
        monkeypatch.setattr(recording, "SEEN", 10**9)
        model.recordings.clear()
        expected, expected_info = integrator.step(model, state)
        assert info.status.tolist() == expected_info.status.tolist() == [Status.PASSED_THROUGH]
        assert torch.equal(after.q, expected.q) and torch.equal(after.q, state.q)

    def test_who_looks_sees_every_operation(self, monkeypatch):
        """Replay nothing where a mode watches operations, or a transform has tensors of its own."""
        monkeypatch.setattr(recording, "SEEN", 0)
        model = self.rods()
        state, _ = ImplicitEuler(1e-2).step(model, model.initial_state(batch=1))
        assert model.recordings[0].recording is not None
        with _Operations() as seen:
            ImplicitEuler(1e-2).step(model, state)
        assert seen.count > 100

    def test_what_reads_numbers_is_left_alone(self, monkeypatch):
        """Step as ever where an operation turns out to read numbers, and try to record once."""
        tries = []

        def refused(*given):
            tries.append(given)
            raise Unrecordable("reads numbers")

        monkeypatch.setattr(recording, "SEEN", 0)
        monkeypatch.setattr(recording, "recorded", refused)
        model = self.rods()
        assert (steps(model, ImplicitEuler(1e-2), 3)[6] == Status.CONVERGED).all()
        assert len(tries) == 1

    def test_what_is_left_alone(self, monkeypatch):
        """Record neither compiled steps, nor many robots, nor what users wrote."""
        monkeypatch.setattr(recording, "SEEN", 0)
        for model, robots in ((self.rods(compile=True), 1), (self.rods(), recording.LARGEST)):
            state, running = model.initial_state(batch=robots), torch.ones(robots, dtype=torch.bool)
            problem = StepProblem(model, ImplicitEuler(1e-2), state, Control(), 1e-2, running)
            assert recording.recording_of(problem) is None
        model = self.rods()
        model.term("stretch").energy.__class__ = Springy
        steps(model, ImplicitEuler(1e-2), 2)
        assert not model.recordings
