"""Recordings on a GPU agree with eager steps, and nothing in them makes the host wait, which a CPU can tell, too."""

import contextlib
import functools
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode

from models.drag_law import DragLaw
from models.message_passing import MessagePassingForce
from models.residual_force import ResidualForce
from tests.integrate.recordings import (
    BATCH,
    INTEGRATORS,
    LOADS,
    ON_GPU,
    ROBOTS,
    Wind,
    assert_same,
    plates,
    recording_of,
    rods,
    rods_on_cpu,
    rough,
    steps,
    surface_loads,
    thrown,
    trained,
)
from tests.solve.stand_in import RecordedCalls
from tests.solve.waiting import DEVICE, nothing_to_wait_for
from torchdismech import (
    Control,
    ImplicitEuler,
    InputError,
    Status,
    contact,
    forces,
    trainable,
)
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.integrate import forward
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded import adjoint as recorded_adjoint
from torchdismech.integrate.recorded import gradients as recorded_gradient
from torchdismech.integrate.recorded import recording, rounds, static_problem
from torchdismech.integrate.recorded import step as recorded_step
from torchdismech.solve.linear.triton_band import TritonBand

# Robots with forces that change in a step, and with obstacles: of each kind what `LOADS` have, and others.
FORCES = {
    **LOADS,
    "learned": Wind,
    "perceptron": ResidualForce,
    "messages": MessagePassingForce,
    "learned drag": DragLaw,
    "quadratic": lambda: forces.QuadraticResistive(1.0, 1.0, 1.0),
    "tendon that rubs": lambda: Tendons([AtNodes(range(9), (0, 0, 0.005))], pull=1e-3, stiffness=10.0, friction=0.2),
    "sphere": lambda: rough(contact.Sphere((0.15, 0, 0), 0.02)),
    "cylinder": lambda: rough(
        contact.Cylinder((0.15, -0.1, 0.01), (0.15, 0.1, 0.01), 0.01), contact.Barrier(1e2, 1e-3)
    ),
    "points on edges": lambda: contact.Obstacle(
        contact.Capsule((0.15, -0.1, 0.01), (0.15, 0.1, 0.01), 0.01), contact.Penalty(1e3, 1e-3), spacing=5e-3
    ),
}
FORCED = {name: functools.partial(lambda force, **options: rods_on_cpu(BATCH, force(), **options), force)
          for name, force in FORCES.items()}  # fmt: skip
FORCED |= {f"plates, {name}": functools.partial(lambda force, **options: plates(force(), **options), force)
           for name, force in surface_loads().items()}  # fmt: skip


# those that are compared on a device, as to compile each takes up to a minute
ON_DEVICE = ["resistive", "magnet", "rough floor", "floor that moves", "points on edges", "learned", "messages"]


def generator():
    """Return random numbers that are the same each time."""
    return torch.Generator().manual_seed(0)


class TestWaiting:
    """What a host waits for in a recorded step: the flags of each round, nothing else."""

    @pytest.fixture
    def pieces(self, monkeypatch):
        """Return a list of all that a graph is to hold; each runs once, with nothing to wait for."""
        found = []

        @torch.no_grad()
        def run(function, device, pool):
            function()  # tables come to the device
            with nothing_to_wait_for():
                outputs = function()
            found.append(function.__name__)
            return RecordedCalls([], outputs)

        monkeypatch.setattr(recorded_step, "recorded", run)
        monkeypatch.setattr(rounds, "recorded", run)
        monkeypatch.setattr(recorded_adjoint, "recorded", run)
        monkeypatch.setattr(static_problem, "memory_pool", lambda device: None)
        monkeypatch.setattr(recording, "_compiled_on_a_gpu", lambda model, q: True)
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
        first = recording_of(given)
        assert pieces == ["_set_up", "_round_with_matrix", "_round_without_matrix", "_end"]
        with nothing_to_wait_for():
            step = recording_of(given)
            step.set_up.replay()
            after, info = step.replayed_end()
        assert step is first
        assert after.q.shape == state.q.shape
        assert info.status.shape == info.force_scale.shape == (BATCH,)

    @pytest.mark.parametrize("robot", [*ROBOTS, *FORCED])
    def test_whole_steps(self, pieces, robot, monkeypatch):
        """Find nothing to wait for in steps and their backward passes.

        Beside the graphs one flag is read at the end of a step with obstacles, one where users wrote something, as a
        step that fails is looked at, and one in a backward pass.
        """
        make = {**ROBOTS, **FORCED}[robot]
        model, state = make(solver="auto").to(DEVICE), make().initial_state(batch=BATCH).detach().to(DEVICE)
        monkeypatch.setattr(rounds.RecordedRounds, "replay", lambda self: rounds.RoundsOutcome.ROOTS)
        monkeypatch.setattr(recorded_gradient, "PASSES_BEFORE_RECORDING", 1)
        monkeypatch.setattr(recorded_gradient, "traced", lambda: False)
        flags = len(model.obstacles) + model.has_user_hooks
        for watched in (contextlib.nullcontext, nothing_to_wait_for):  # tables come to the device first
            velocity, asked = torch.zeros_like(state.velocity).requires_grad_(), []
            with monkeypatch.context() as patch, watched():
                # no: nothing is suspected, and nothing has failed
                patch.setattr(torch.Tensor, "__bool__", lambda self, asked=asked: bool(asked.append(self)))
                after, _ = ImplicitEuler(1e-2, chunk=None).step(model, state.replace(velocity=velocity))
                assert len(asked) == flags
                # no: none is lost
                after.q.sum().backward()
            assert len(asked) == flags + 1
            assert velocity.grad.shape == velocity.shape
        assert pieces == ["_set_up", "_round_with_matrix", "_round_without_matrix", "_end", "_at_root"]

    @pytest.mark.parametrize("robot", ROBOTS)
    def test_backward(self, robot, monkeypatch):
        """Find one wait in a backward pass, whether all matrices could be factored, and none to copy anything."""
        monkeypatch.setattr(TritonBand, "_launch", lambda self, kernel, *arguments, **constants: None)
        start = ROBOTS[robot]().initial_state(batch=BATCH).to(DEVICE)
        model = ROBOTS[robot](solver="auto")
        stiffness = {"rods": "stretch.EA", "hinges": "membrane.membrane", "mid-edges": "membrane.stiffness"}
        trainable.scaled(model, [stiffness[robot]])
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


@pytest.mark.gpu
class TestOnGPU:
    """Recorded and compiled against eager steps, on the device."""

    @staticmethod
    def both(robot, run, compile=False):
        """Return what `run` gives for recorded steps, compiled or not, and for eager ones."""
        models = [ROBOTS[robot](solver="auto", device="cuda", compile=compiled) for compiled in (compile, False)]
        return TestOnGPU.found_by(models, run)

    @staticmethod
    def found_by(models, run):
        """Return what `run` gives for a model whose steps are recorded, and for one whose steps are not."""
        with mock.patch.object(recording, "STEPS_BEFORE_RECORDING", 0):
            recorded = run(models[0])
        assert any(kind.recording is not None for kind in models[0].recordings)
        with mock.patch.object(forward, "kind_of", lambda problem: None):
            return recorded, run(models[1])

    @staticmethod
    def taken(model, integrator, chunk):
        """Return the states after steps of two lengths."""
        state = model.initial_state(batch=BATCH)
        for k in range(8):
            stepper = INTEGRATORS[integrator](chunk=chunk)
            stepper.dt *= 0.5 if k % 3 == 2 else 1.0
            state, _ = stepper.step(model, state, throw=True)
        return [state.q, state.director, state.reference_twist]

    @pytest.mark.parametrize("chunk", [None, 4])
    @pytest.mark.parametrize("robot", ROBOTS)
    @pytest.mark.parametrize("integrator", INTEGRATORS)
    def test_steps_agree(self, integrator, robot, chunk):
        """Take the same steps."""
        assert_same(*self.both(robot, lambda model: self.taken(model, integrator, chunk)), within=ON_GPU)

    @pytest.mark.parametrize("robot", ROBOTS)
    def test_compiled_steps_agree(self, robot):
        """Take the same steps where all of a step is compiled."""
        found = self.both(robot, lambda model: self.taken(model, "euler", None), compile=True)
        assert_same(*found, within=ON_GPU)

    @pytest.mark.parametrize(
        ("robot", "chunk", "compile"),
        [("rods", None, True), ("rods", 4, False), ("hinges", None, False), ("hinges", 4, False)],
    )
    def test_training_agrees(self, robot, chunk, compile):
        """Give the same gradients, and follow an optimiser."""
        run = functools.partial(trained, robot=robot, chunk=chunk)
        assert_same(*self.both(robot, run, compile), within=ON_GPU)

    @pytest.mark.parametrize("force", ON_DEVICE)
    def test_forces_agree(self, force):
        """Take the same steps with forces that change in them, and give the same gradients, by replays."""

        def run(model):
            velocity = 0.1 * torch.rand(model.initial_state(batch=BATCH).velocity.shape, generator=generator())
            velocity = velocity.to(model.nodes).requires_grad_()
            weights = [p for p in model.parameters() if p.requires_grad]
            state, found = model.initial_state(batch=BATCH).detach().replace(velocity=velocity), []
            for _ in range(recorded_gradient.PASSES_BEFORE_RECORDING + 4):
                state, info = ImplicitEuler(2e-3, chunk=None).step(model, state)
                found += [state.q, state.director, info.status, *info.contact.values()]
            loss = (state.q**2).sum() + state.velocity.sum()
            return [x.detach() for x in found] + list(torch.autograd.grad(loss, [velocity, *weights]))

        models = []
        for _ in range(2):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # networks of both begin alike
                models.append(FORCED[force](solver="auto", device="cuda"))
        found, expected = self.found_by(models, run)
        assert_same(found, expected, within=1e-7)  # a dozen steps, some in contact, amplify rounding
        taken = [passes.recording for kind in models[0].recordings for passes in kind.backward.values()]
        assert any(kept is not None for kept in taken)

    def test_a_backward_pass_waits_once(self, monkeypatch):
        """Launch a recorded backward pass with torch watching for waits, but for the one flag."""
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
        model, integrator = rods(solver="auto", device="cuda"), ImplicitEuler(1e-2, chunk=None)
        state = model.initial_state(batch=BATCH).detach()
        answered = []
        for watching in ("default", "error"):  # the first pass records
            velocity = torch.zeros_like(state.velocity).requires_grad_()
            after, _ = integrator.step(model, state.replace(velocity=velocity))
            loss = after.q.sum()
            with monkeypatch.context() as patch:
                if watching == "error":
                    patch.setattr(torch.Tensor, "__bool__", lambda self: not answered.append(self))
                torch.cuda.set_sync_debug_mode(watching)
                try:
                    (found,) = torch.autograd.grad(loss, velocity)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            assert bool(found.isfinite().all())
        assert len(answered) == 1

    def test_a_failed_capture_leaves_no_trace(self):
        """Say what cannot be captured, and go on stepping on the stream that was current."""
        here = torch.cuda.current_stream()

        class Looking(Wind):
            records = True

            def nodal_force(self, state, control):
                return super().nodal_force(state, control) * float(state.q.abs().max() < 1e3)

        model = rods_on_cpu(BATCH, Looking(), solver="auto", device="cuda", compile=True)
        with pytest.raises(InputError, match="cannot be captured in a CUDA graph"):
            ImplicitEuler(1e-2).step(model, model.initial_state(batch=BATCH))
        assert torch.cuda.current_stream() == here
        other = rods_on_cpu(BATCH, Looking(), solver="auto", device="cuda")
        _, info = ImplicitEuler(1e-2).step(other, other.initial_state(batch=BATCH))
        assert (info.status == Status.CONVERGED).all()

    def test_failing_rows_agree(self):
        """End likewise where some rows fail, and go on after it."""

        def run(model):
            state, integrator = thrown(model), ImplicitEuler(2e-2, max_substeps=4)
            found = steps(model, integrator, 3, state=state)
            return [found[k] for k in (0, 6, -6)]  # q and status of the first step, status of the last

        found, expected = self.both("rods", run)
        assert torch.equal(found[1], expected[1])
        good = expected[1] == Status.CONVERGED
        assert_same([found[0][good]], [expected[0][good]], within=1e-6)  # violent steps amplify rounding

    def test_a_round_does_not_wait_twice(self, monkeypatch):
        """Launch the set-up, a round and the end with torch watching for waits."""
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
        model, integrator = rods(solver="auto", device="cuda"), ImplicitEuler(1e-2)
        state, _ = integrator.step(model, model.initial_state(batch=BATCH))
        running = torch.ones(BATCH, dtype=torch.bool, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            step = recording_of(StepProblem(model, integrator, state, Control(), integrator.dt, running))
            step.set_up.replay()
            step.rounds.round.replay()
            step.replayed_end()
        finally:
            torch.cuda.set_sync_debug_mode("default")
