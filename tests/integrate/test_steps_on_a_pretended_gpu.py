"""Steps as a GPU takes them, in graphs with all kernels, against those of a CPU: on a GPU that is pretended."""

import contextlib
import functools

import pytest
import torch

from tests.constant_curvature.arms import REST, paper_arm
from tests.control import robots as control_robots
from tests.environments import arms
from tests.integrate.recordings import BATCH, LOADS, plates, rods, rods_on_cpu, rough, shells, thrown
from tests.integrate.test_recorded_extensions import Cubic
from tests.integrate.test_recording_on_gpu import FORCED
from tests.pretended.gpu import pretended_gpu
from tests.rigid.chains import cable
from tests.test_device import crossed
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    contact,
    forces,
    straight,
    unroll,
)
from torchdismech.constant_curvature import ArmIntegrator
from torchdismech.control import PI, Fixed, Strains
from torchdismech.integrate.recorded import gradients as recorded_gradient
from torchdismech.integrate.recorded import recording
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.rigid import Sdirk2

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")

# A CPU factors bands without exchanges of rows, LAPACK with: rounding, amplified by stiff robots over some steps.
WITHIN = 1e-9


def with_fixed_inertia(mass):
    """Return rods that carry inertia and masses, in a fluid."""
    builder = RobotBuilder(mass=mass)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 7), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_inertia([2, 4], 1e-6, 1e-6)
    builder.add_mass([6], 1e-3)
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.Resistive(0.1, 0.2))
    return builder.finalize(compile=False)


def in_a_plane():
    """Return rods of two dimensions whose ends slide."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 7), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.clamp(nodes=[6], axes="z")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    return builder.finalize(compile=False)


def on(shape, response=None):
    """Return rods on an obstacle with friction."""
    return rods_on_cpu(BATCH, rough(shape, response))


EULER = ImplicitEuler(5e-3)
BALL = (0.1, 0, -0.02), 0.045
CASES = {
    "rods": (functools.partial(rods, solver="auto"), ImplicitEuler(1e-2)),
    "rods in two parts": (functools.partial(rods, solver="auto"), ImplicitEuler(1e-2, chunk=4)),
    "inertia": (functools.partial(with_fixed_inertia, "lumped"), EULER),
    "inertia, BDF2": (functools.partial(with_fixed_inertia, "consistent"), BDF2(5e-3)),
    "in a plane": (in_a_plane, EULER),
    "hinges, Newmark": (functools.partial(shells, solver="auto"), Newmark(2e-3)),
    "mid-edges, midpoint": (functools.partial(shells, "midedge", solver="auto"), ImplicitMidpoint(2e-3)),
    "drag on plates": (lambda: plates(forces.Drag(1000.0, 1.2)), EULER),
    "magnet": (lambda: rods_on_cpu(BATCH, LOADS["magnet"]()), EULER),
    "tendon that rubs": (FORCED["tendon that rubs"], EULER),
    "floor to roll on": (FORCED["floor to roll on"], EULER),
    "network": (FORCED["perceptron"], EULER),
    "messages": (FORCED["messages"], EULER),
    "users' force": (FORCED["learned"], EULER),
    "users' law": (lambda: on(contact.Sphere(*BALL), Cubic(1e2, 2e-3)), EULER),
    "penalty": (lambda: on(contact.HalfSpace((0, 0, -0.003), (0, 0, 1))), EULER),
    "barrier": (lambda: on(contact.HalfSpace((0, 0, -0.003), (0, 0, 1)), contact.Barrier(1e2, 1e-3)), EULER),
}


def stepped(make, integrator, start, steps, gpu):
    """Return what some steps lead to."""
    model = built(make, gpu)
    state = start(model)
    for _ in range(steps):
        state, _ = integrator.step(model, state, throw=True)
    return state.fields()


def touching_themselves(gpu, response="penalty"):
    """Return where robots fall whose parts may touch, on a floor."""
    options = {"max_substeps": 8} if response == "complementarity" else {}
    make = functools.partial(crossed, response)
    return stepped(make, ImplicitEuler(1e-2, **options), lambda model: model.initial_state(), 2, gpu)


def at_rest(gpu):
    """Return where rods hang."""
    start = lambda model: model.initial_state(BATCH)  # noqa: E731
    return stepped(lambda: rods_on_cpu(BATCH), Static(force_tolerance=1e-9), start, 1, gpu)


def in_a_closed_loop(gpu):
    """Return a run of rods that are led along a wave, noisily and late, with the controller's memory."""
    model = built(lambda: control_robots.rod(), gpu)
    strains = Strains(model, ["curvature"])
    shape = strains.of_shape(model, control_robots.wave(model.body.n_nodes, 0.004))
    controller = PI(model, strains, Fixed(shape), 0.01, 0.5, 5.0, True, delay=1, noise=0.3, seed=4)
    last = unroll(model, model.initial_state(), ImplicitEuler(0.01), 3, controller=controller)
    return [last.q.detach(), *last.memory.values()]


def learning(gpu):
    """Return the state of arms in an environment, of which some begin anew."""
    model = built(arms.arm, gpu)
    environment = arms.environment(3, model=model)
    environment.reset()
    environment.step(arms.actions(3).to(model.nodes))
    environment.reset(torch.tensor([True, False, False], device=model.device))
    environment.step(arms.actions(3).to(model.nodes))
    return environment.current.state.fields()


def pneumatic(gpu):
    """Return where an arm swings."""
    start = lambda model: model.initial_state(2, q=REST.to(model.device))  # noqa: E731
    return stepped(paper_arm, ArmIntegrator(4e-3), start, 2, gpu)


def of_rigid_elements(gpu):
    """Return where a cable swings, and the gradient by its velocity."""
    chain = built(functools.partial(cable, 3, space=True), gpu)
    velocity = torch.full((2, chain.n_dofs), 0.1, dtype=torch.float64, device=chain.device).requires_grad_()
    state, _ = Sdirk2(1e-2).step(chain, chain.initial_state(2).replace(velocity=velocity))
    return [state.q.detach(), *torch.autograd.grad(state.q.sum(), velocity)]


OTHERS = {
    "rods on rods": touching_themselves,
    "rods on rods without overlap": functools.partial(touching_themselves, response="complementarity"),
    "equilibria": at_rest,
    "closed loop": in_a_closed_loop,
    "environment": learning,
    "pneumatic arm": pneumatic,
    "rigid elements": of_rigid_elements,
}


@pytest.fixture(autouse=True)
def _recorded_soon(monkeypatch):
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 1)
    monkeypatch.setattr(recorded_gradient, "PASSES_BEFORE_RECORDING", 1)


def built(make, gpu):
    """Return the same model each time, on the CPU or the pretended device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # networks begin alike
        model = make()
    return model.to("cuda") if gpu else model


def moved(model, integrator, steps=4):
    """Return what steps lead to, each with gradients."""
    state, found = model.initial_state(batch=BATCH).detach(), []
    weights = [p for p in model.parameters() if p.requires_grad]
    for _ in range(steps):
        velocity = state.velocity.detach().clone().requires_grad_()
        after, info = integrator.step(model, state.detach().replace(velocity=velocity))
        loss = (after.q**2).sum() + after.velocity.sum()
        found += torch.autograd.grad(loss, [velocity, *weights])
        state = after.detach()
        found += [*state.fields(), info.status, *info.contact.values()]
    return found


def assert_close(found, expected):
    """Compare tensors of the device with those of the CPU, as far as they go in their size."""
    for a, b in zip(found, expected, strict=True):
        size = float(b.double().abs().amax()) if b.numel() else 0.0
        torch.testing.assert_close(a.cpu(), b, rtol=0, atol=WITHIN * (1 + size))


@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_are_those_of_a_cpu(case):
    """Take steps and backward passes by graphs, with the numbers of a CPU."""
    make, integrator = CASES[case]
    expected = moved(built(make, gpu=False), integrator)
    with pretended_gpu():
        model = built(make, gpu=True)
        assert_close(moved(model, integrator), expected)
    assert any(isinstance(kind.recording, RecordedStep) for kind in model.recordings)
    assert any(passes.recording for kind in model.recordings for passes in kind.backward.values())


def test_rods_that_are_thrown_fail_as_on_a_cpu():
    """Sort out steps, shorten them and begin again by graphs; end likewise where a row fails."""
    found = []
    for gpu in (False, True):
        with pretended_gpu() if gpu else contextlib.nullcontext():
            model, status = built(functools.partial(rods, solver="auto"), gpu), []
            state = thrown(model)
            for _ in range(4):
                state, info = ImplicitEuler(2e-2, max_substeps=4).step(model, state)
                status.append(info.status.tolist())
        found.append(status)
    assert found[0] == found[1]


@pytest.mark.parametrize("what", OTHERS)
def test_what_graphs_do_not_hold_is_as_on_a_cpu(what):
    """Find the numbers of a CPU call by call, too: contact of a robot's parts, closed loops, equilibria and others."""
    expected = OTHERS[what](False)
    with pretended_gpu():
        found = OTHERS[what](True)
        assert all(tensor.is_cuda for tensor in found)
        assert_close(found, expected)


def test_a_recorded_step_waits_once_a_round():
    """Wait for the flags of each round of a step, and once in its backward pass."""
    with pretended_gpu() as device:
        model = rods_on_cpu(BATCH).to("cuda")
        state = model.initial_state(batch=BATCH).detach()
        for _ in range(3):
            velocity = torch.zeros_like(state.velocity).requires_grad_()
            device.waits.clear()
            after, info = ImplicitEuler(5e-3, chunk=None).step(model, state.replace(velocity=velocity), Control())
            rounds = len(device.waits)
            after.q.sum().backward()
            waits = [*device.waits]
        assert rounds == int(info.iterations.max()) and len(waits) == rounds + 1
