"""Recordings on a CPU: which steps are recorded, loads and contact that change in a step, and every bit kept."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import trimesh
from torch.utils._python_dispatch import TorchDispatchMode

from tests.integrate.recordings import LOADS, rods, rods_on_cpu, steps
from torchdismech import Control, ImplicitEuler, Static, Status, contact, forces, magnetics
from torchdismech.elastic import LinearElastic
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded import recording
from torchdismech.integrate.recorded import step as recorded_step
from torchdismech.integrate.recorded.recordable import why_steps_unrecorded
from torchdismech.native.graphs import Unrecordable


def test_what_is_not_recorded(graphs):
    """Take the other path where nothing has inertia, by iterative solvers, and for odd integrators."""
    steps(rods(), Static(2), 1)
    steps(rods(solver="pcg"), ImplicitEuler(1e-2), 1)
    integrator = ImplicitEuler(1e-2)
    integrator.table = torch.zeros(3)
    steps(rods(), integrator, 1)
    assert not graphs.made
    assert why_steps_unrecorded(rods(solver="pcg")) == "the solver pcg, which reads numbers"


def test_loads_that_change_in_a_step():
    """Record them on a CPU and on a GPU, and none that calls a function of a user's in a step."""
    drag = rods(load=forces.Viscous(0.1))
    assert why_steps_unrecorded(drag) is None
    assert why_steps_unrecorded(drag.to("meta")) is None
    field = magnetics.Timed(lambda time: torch.ones(len(time), 3, dtype=time.dtype))
    magnet = rods(load=magnetics.Magnetic((0.0, 0.0, 1e4), field))
    assert why_steps_unrecorded(magnet) is None  # it is called before the step
    magnet.forces[-1].read_back = lambda values: values
    assert why_steps_unrecorded(magnet) == "forces that call a function of the user's"


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


class TestOnCPU:
    """Which steps are recorded on a CPU, and that they keep every bit."""

    @pytest.mark.parametrize("robots", [1, 3])
    def test_every_bit_is_kept(self, robots, monkeypatch):
        """Record after some steps of a kind, and give the same numbers before and after."""
        found = []
        for seen in (3, 10**9):
            monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
            model = rods_on_cpu(robots)
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
            monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
            model = rods_on_cpu(load=LOADS[name]())
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
        """Report what the others touch, and of these nothing, as a step without a recording does."""
        found = []
        for seen in (0, 10**9):
            monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
            model = rods_on_cpu(2, load=LOADS["rough floor"]())
            state = model.initial_state(batch=2)
            state = state.replace(q=state.q - 0.01 * (torch.arange(state.q.shape[1]) % 3 == 2))
            _, info = ImplicitEuler(5e-3).step(model, state, running=torch.tensor([True, False]))
            found.append([info.status, *info.contact.values()])
            assert (info.contact["active"] > 0).tolist() == [True, False]
        for a, b in zip(*found, strict=True):
            assert torch.equal(a, b)

    def test_a_node_that_passes_through_is_seen(self, monkeypatch):
        """Fail the step of a robot that goes through a thin plate, recorded or not, and leave it where it was."""
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
        plate = contact.Obstacle(contact.Box((0.1, 0, -0.05), (0.5, 0.5, 0.004)), contact.Penalty(10.0, 1e-4))
        model = rods_on_cpu(load=plate)
        state = model.initial_state(batch=1)
        fast = torch.zeros_like(state.velocity)
        fast[:, 5:27:3] = -30.0
        state, integrator = state.replace(velocity=fast), ImplicitEuler(1e-2)
        after, info = integrator.step(model, state)
        assert model.recordings[0].recording is not None
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
        model.recordings.clear()
        expected, expected_info = integrator.step(model, state)
        assert info.status.tolist() == expected_info.status.tolist() == [Status.PASSED_THROUGH]
        assert torch.equal(after.q, expected.q) and torch.equal(after.q, state.q)

    def test_meshes_are_recorded(self, monkeypatch):
        """Press rods on a mesh, recorded or not: the search of the nearest triangles is part of a tape."""
        block, found = trimesh.creation.box((0.5, 0.5, 0.1)).subdivide(), []
        for seen in (0, 10**9):
            monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
            mesh = contact.Mesh(block.vertices - (0, 0, 0.0525), block.faces)
            model = rods_on_cpu(load=contact.Obstacle(mesh, contact.Penalty(100.0, 1e-3), spacing=0.01))
            found.append(steps(model, ImplicitEuler(5e-3), 20))
            assert any(kind.recording is not None for kind in model.recordings) == (seen == 0)
        last = model.initial_state().replace(q=found[0][-12][:1])
        assert (model.obstacles[0].gap(last.q, last.time) < 1e-3).sum() > 3
        assert all(map(torch.equal, *found))

    def test_who_looks_sees_every_operation(self, monkeypatch):
        """Replay nothing where a mode watches operations, or a transform has tensors of its own."""
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
        model = rods_on_cpu()
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

        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
        monkeypatch.setattr(recorded_step, "recorded", refused)
        model = rods_on_cpu()
        assert (steps(model, ImplicitEuler(1e-2), 3)[6] == Status.CONVERGED).all()
        assert len(tries) == 1

    def test_what_is_left_alone(self, monkeypatch):
        """Record neither compiled steps, nor many robots, nor what users wrote."""
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
        for model, robots in ((rods_on_cpu(compile=True), 1), (rods_on_cpu(), recording.MAX_NUMBERS)):
            state, running = model.initial_state(batch=robots), torch.ones(robots, dtype=torch.bool)
            problem = StepProblem(model, ImplicitEuler(1e-2), state, Control(), 1e-2, running)
            assert recording.kind_of(problem) is None
        model = rods_on_cpu()
        model.term("stretch").energy.__class__ = Springy
        steps(model, ImplicitEuler(1e-2), 2)
        assert not model.recordings


def test_threads_do_not_hear_each_other(monkeypatch):
    """Record and step two models in two threads: each moves as it does alone."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 3)

    def moved(viscosity):
        return steps(rods(load=forces.Viscous(viscosity)), ImplicitEuler(1e-2), 12)

    drags = (0.1, 0.3)
    alone = [moved(drag) for drag in drags]
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(moved, drags))
        for one, other in zip(alone, together, strict=True):
            assert all(map(torch.equal, one, other))


def test_inference_mode_records_nothing(monkeypatch):
    """Step in inference mode and out of it: what is made there could not be written to later."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 1)
    model, integrator = rods(), ImplicitEuler(1e-2)
    with torch.inference_mode():
        steps(model, integrator, 4)
    assert model.recordings[0].recording is None
    recorded = steps(model, integrator, 4)
    assert model.recordings[0].recording is not None
    with torch.inference_mode():
        assert all(map(torch.equal, steps(model, integrator, 4), recorded))
