"""Large batches, stepped some robots at a time: the same steps and gradients, with bounded memory."""

import copy
import functools
import gc
import warnings
import weakref

import numpy as np
import pytest
import torch

from tests.gradients.cases import EXACT, SmallEnergy, SmallForce
from tests.rods import rod_through
from tests.validation import test_contact_batch as contact
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    SimulationError,
    Static,
    Status,
    forces,
    straight,
    trainable,
    unroll,
)
from torchdismech.contact import Complementarity, HalfSpace, Obstacle
from torchdismech.integrate import chunks, problem
from torchdismech.integrate.recorded.chunk_loop import ChunkLoop
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.model import step_memory
from torchdismech.robot.state import tensor_fields
from torchdismech.values import split

BATCH = 7
# Robots do not know each other: parts differ from the whole by the rounding of sums that are grouped otherwise, and of
# a few robots that LAPACK factors in place of compiled code.
ROUNDING = 1e-11
INTEGRATORS = {
    "euler": functools.partial(ImplicitEuler, 1e-2),
    "midpoint": functools.partial(ImplicitMidpoint, 2e-3),
    "newmark": functools.partial(Newmark, 2e-3),
    "static": functools.partial(Static, 8),
}


def per_robot(low: float, high: float) -> torch.Tensor:
    """Return one number of each robot, (B, 1)."""
    return torch.linspace(low, high, BATCH, dtype=torch.float64)[:, None]


def robot(learned: bool = False, compile: bool = False):
    """Return clamped rods of five nodes, no two robots of a batch alike: stiffness, size, mass, loads."""
    material = Material(per_robot(1e6, 2e6), per_robot(900, 1100), relaxation_time=1e-3)
    down = per_robot(-9.81, -5.0) * torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    loads = [forces.Gravity(down), forces.Viscous(per_robot(0.0, 0.1))]
    builder = rod_through(straight((0, 0, 0), (0.2, 0, 0.05), 5), Circle(per_robot(2e-3, 3e-3)), material, loads)
    if learned:
        builder.add_force(SmallForce())
        builder.add_energy("bend_twist", SmallEnergy())
    return builder.finalize(compile=compile)


def controls(model) -> Control:
    """Return a control of every field, unlike for each robot."""
    generator = torch.Generator().manual_seed(1)
    own = model.natural_strains(BATCH)
    noise = {
        name: 1e-2 * torch.randn(getattr(own, name).shape, dtype=torch.float64, generator=generator)
        for name in ("natural_curvature", "natural_twist")
    }
    q = model.initial_state(batch=BATCH).q.detach()
    return own.replace(
        natural_curvature=own.natural_curvature + noise["natural_curvature"],
        natural_twist=own.natural_twist + noise["natural_twist"],
        rest_length=own.rest_length * (1 + per_robot(0, 1e-3)),
        clamped_q=q + 1e-4 * per_robot(0, 1),
        force=1e-3 * per_robot(0, 1) * (torch.arange(model.n_dofs) < 3 * len(model.nodes)),  # no torques
    )


def assert_same(one, other) -> None:
    """Compare two states and what steps report."""
    for (state, info), (second, report) in zip(one, other, strict=True):
        for name, value in zip(tensor_fields(type(state)), state.fields(), strict=True):
            difference = (value - getattr(second, name)).abs().max()
            assert difference <= ROUNDING * (1 + value.abs().max()), name
        assert torch.equal(info.status, report.status) and torch.equal(info.iterations, report.iterations)
        assert info.tolerance.shape == report.tolerance.shape == info.force_scale.shape
        assert info.contact.keys() == report.contact.keys()
        for name, value in info.contact.items():
            # by positions that are the same to rounding, times the stiffness of contact
            assert torch.allclose(value, report.contact[name], rtol=1e-9, atol=1e-9), name


def steps(model, integrator, state, control=None, count=2, **options):
    """Return states and infos of some steps."""
    found = []
    for _ in range(count):
        state, info = integrator.step(model, state, control, **options)
        found.append((state, info))
    return found


# ---- forward -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 4, 6])
def test_parts_of_a_tensor_have_one_size(size):
    """Split rows into equal parts, the last with rows of the part before, and sum their gradients."""
    rows = torch.arange(14.0, dtype=torch.float64).view(BATCH, 2).requires_grad_()
    parts = split(rows, size)
    assert {len(part) for part in parts} == {size}
    kept = [*parts[:-1], parts[-1][-BATCH % size :]]
    assert torch.equal(torch.cat(kept), rows)
    torch.cat(kept).square().sum().backward()
    assert torch.equal(rows.grad, 2 * rows)


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("name", INTEGRATORS)
def test_a_batch_in_parts_makes_the_same_steps(name, size):
    """Step robots that are alike in nothing, all at once and some at a time, with every field of a control."""
    model = robot()
    start, control = model.initial_state(batch=BATCH), controls(model)
    whole = steps(model, INTEGRATORS[name](chunk=None), start, control)
    assert all(bool(info.converged.all()) for _, info in whole)
    assert_same(steps(model, INTEGRATORS[name](chunk=size), start, control), whole)


def test_parameters_for_any_number_of_robots_need_no_parts():
    """Step a model whose parameters serve any batch with the model itself."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    model = builder.finalize()
    state = model.initial_state(batch=BATCH)
    assert not any(len(values) for values, _, _ in model.parts(state, Control(), 3))
    assert_same(*(steps(model, ImplicitEuler(1e-2, chunk=size), state) for size in (3, None)))


@pytest.mark.parametrize("kind", ["penalty", "barrier"])
def test_contact_in_parts(kind):
    """Step robots that touch nothing, floors, balls and themselves some at a time: steps and reports are the same."""
    model = contact.robot(kind)
    state = contact.started(model)
    found = [steps(model, ImplicitEuler(2e-3, relative_tolerance=1e-11, chunk=size), state) for size in (3, None)]
    assert found[0][0][1].contact
    for one, other in zip(*found, strict=True):
        # which pairs are looked at, and so the pattern, depends on all robots: solved to 1e-11 of the forces
        assert (one[0].q - other[0].q).abs().max() < 1e-10
        assert torch.equal(one[1].status, other[1].status) and one[1].contact.keys() == other[1].contact.keys()
        for name, value in one[1].contact.items():
            # forces by those positions; 1e-14 seen
            assert torch.allclose(value, other[1].contact[name], rtol=1e-8, atol=1e-8), name


def test_constraints_in_parts():
    """Drop rods onto a floor that is a constraint, some at a time, at heights of their own."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0.01), 5), Circle(2e-3), Material(per_robot(1e6, 2e6), 1000.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    floor = torch.cat([torch.zeros(BATCH, 2, dtype=torch.float64), per_robot(-4e-3, -2.1e-3)], dim=1)
    builder.add_contact(Obstacle(HalfSpace(floor, (0.0, 0.0, 1.0)), Complementarity(), name="floor"))
    model = builder.finalize()
    state = model.initial_state(batch=BATCH)
    found = [steps(model, ImplicitEuler(5e-3, chunk=size), state, count=4) for size in (3, None)]
    assert bool((found[0][-1][1].contact["active"] > 0).any())
    assert_same(*found)


def test_failed_and_stopped_rows_in_parts():
    """Keep the state of a robot that fails, that of one that is not asked for, and name the failed ones."""
    model = robot()
    state = model.initial_state(batch=BATCH)
    velocity = state.velocity.clone()
    velocity[4, 6:] = 1e3  # flung far: not solved in one iteration
    state, running = state.replace(velocity=velocity), torch.ones(BATCH, dtype=torch.bool)
    running[5] = False
    options = {"relative_tolerance": 1e-10, "max_iterations": 3}
    found = [steps(model, ImplicitEuler(1e-2, chunk=c, **options), state, count=1, running=running) for c in (3, None)]
    assert_same(*found)
    after, info = found[0][0]
    assert info.status[4] != Status.CONVERGED and bool(info.converged[running].sum() == BATCH - 2)
    assert torch.equal(after.q[4:6], state.q[4:6])
    with pytest.raises(SimulationError, match="robot 4"):
        ImplicitEuler(1e-2, chunk=3, **options).step(model, state, throw=True)


def test_substeps_in_parts():
    """Take a step again in smaller ones where it failed, in parts as in the whole."""
    model = robot()
    state = model.initial_state(batch=BATCH)
    velocity = state.velocity.clone()
    velocity[4, 6:] = 30.0
    options = {"max_iterations": 4, "max_substeps": 64}
    state = state.replace(velocity=velocity)
    found = [steps(model, ImplicitEuler(1e-2, chunk=size, **options), state, count=1) for size in (3, None)]
    assert found[0][0][1].substeps[4] > 1 and torch.equal(found[0][0][1].substeps, found[1][0][1].substeps)
    assert_same(*found)


# ---- gradients ---------------------------------------------------------------------------------------------------


def gradients(size, trained: bool):
    """Return the gradients of three steps by all that they depend on."""
    model = robot(learned=True)
    wanted = [p.requires_grad_() for name, p in model.named_parameters() if "network" in name]
    if trained:  # one factor of each robot, and one of all
        wanted.append(trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"], (BATCH, 1)).log_factor)
        wanted.append(trainable.scaled(model, ["mass"]).log_factor)
    else:
        wanted += [model.term("stretch").energy.EA.requires_grad_(), model.forces[0].acceleration.requires_grad_()]
    control = controls(model)
    fields = {name: value.detach().clone().requires_grad_() for name, value in control.tensors().items()}
    state = model.initial_state(batch=BATCH).detach()
    generator = torch.Generator().manual_seed(2)
    velocity = 1e-2 * torch.randn(state.q.shape, dtype=torch.float64, generator=generator)
    velocity.requires_grad_()
    integrator = ImplicitEuler(1e-2, chunk=size, **EXACT)
    rolled = unroll(model, state.replace(velocity=velocity), integrator, 3, lambda time, model: Control(**fields))
    weight = torch.randn(rolled.q.shape, dtype=torch.float64, generator=generator)
    loss = (weight * rolled.q).sum() + 1e-2 * (weight * rolled.velocity).sum()
    return torch.autograd.grad(loss, [velocity, *fields.values(), *wanted])


@pytest.mark.parametrize("way", ["along", "normal"])
def test_lines_of_each_robot_in_parts(way):
    """Let ends slide along lines, or in planes, of each robot's own: parts that are recorded know theirs."""
    lines = torch.tensor([[1.0, 0, 0], [1, 0.3, 0], [1, 0, 0.2], [1, 0.1, -0.1]], dtype=torch.float64)
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), nodes=9), Circle(3e-3), Material(7e5, 1100.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.clamp(nodes=[8], **{way: lines})
    builder.add_force(forces.Gravity((0, 1.0, -9.81)))
    model = builder.finalize()
    ends, gradients = [], []
    for chunk in (None, 1):
        push = torch.zeros(4, model.n_dofs, dtype=torch.float64, requires_grad=True)
        run = unroll(model, model.initial_state(velocity=push), ImplicitEuler(5e-3, chunk=chunk), steps=15)
        (gradient,) = torch.autograd.grad(run.positions[-1].square().sum(), push)
        ends.append(run.positions[-1])
        gradients.append(gradient)
    assert torch.allclose(*ends, rtol=0, atol=ROUNDING)
    assert torch.allclose(*gradients, rtol=ROUNDING, atol=ROUNDING)
    moved = ends[1][:, 8] - torch.tensor([0.2, 0, 0], dtype=torch.float64)
    along = torch.nn.functional.normalize(lines, dim=1)
    there = (moved * along).sum(1, keepdim=True) * along
    assert float((moved - there if way == "along" else there).abs().max()) < ROUNDING


@pytest.mark.parametrize("trained", [False, True])
def test_gradients_in_parts(trained):
    """Find the gradients of the whole by state, control, networks, constants of each robot and of all."""
    for ours, expected in zip(gradients(3, trained), gradients(None, trained), strict=True):
        # steps are solved to the rounding of their residuals; the matrices' condition is some 1e4
        assert (ours - expected).abs().max() <= 1e-8 * expected.abs().max()


# ---- compiled ----------------------------------------------------------------------------------------------------


def test_a_recorded_step_of_a_part_is_one_call(monkeypatch):
    """It has the same bits as part by part, wherever the control lies; of the last part two robots come along twice.

    Which constants are given per robot is not found out again while the model stays as it is.
    """
    model, integrator, taken = robot(), ImplicitEuler(1e-2, chunk=3), []
    by_parts, state = copy.deepcopy(model), model.initial_state(BATCH)
    bent = torch.linspace(-0.05, 0.05, BATCH * 6, dtype=torch.float64).reshape(2, BATCH, 3)
    curvatures = [bent.permute(1, 2, 0), bent.permute(1, 2, 0).contiguous(), bent[:1, :, :1].permute(1, 2, 0)]
    curvatures[2] = curvatures[2].expand(BATCH, 3, 2)
    for _ in range(8):  # until steps are recorded and have ended once
        state, _ = integrator.step(model, state, Control(natural_curvature=curvatures[0]))
        integrator.step(by_parts, state, Control(natural_curvature=curvatures[0]))
    take = ChunkLoop.take
    monkeypatch.setattr(ChunkLoop, "take", lambda loop, number: taken.append(number) or take(loop, number))
    monkeypatch.setattr(problem, "per_robot", None)
    for curvature in [*curvatures, *curvatures]:
        control = Control(natural_curvature=curvature)
        after, info = integrator.step(model, state, control)
        assert taken == [0, 1]
        with monkeypatch.context() as patched:
            patched.setattr(RecordedStep, "loops", lambda step: False)
            expected, expected_info = integrator.step(by_parts, state, control)
        assert taken == [0, 1] and bool(info.converged.all())
        assert all(map(torch.equal, after.fields(), expected.fields()))
        assert all(map(torch.equal, info.tensors(), expected_info.tensors()))
        state = after
        taken.clear()


def test_the_loop_over_parts_keeps_no_step_alive(monkeypatch):
    """Neither the inputs of a step nor the graph of its gradients outlive it in the compiled loop."""
    model, integrator, taken, kept = robot(), ImplicitEuler(1e-2, chunk=3), [], []
    take, state = ChunkLoop.take, model.initial_state(BATCH)
    monkeypatch.setattr(ChunkLoop, "take", lambda loop, number: taken.append(number) or take(loop, number))
    for _ in range(8):
        factor = torch.ones((), dtype=torch.float64, requires_grad=True)
        kept.append(weakref.ref(factor))
        state, _ = integrator.step(model, state.replace(q=factor * state.q))
        state = state.with_fields(map(torch.clone, map(torch.detach, state.fields())))
    del factor
    gc.collect()
    assert taken and all(graph() is None for graph in kept)


def test_parts_share_compiled_kernels(monkeypatch):
    """Compile for the first part, and for no other part or step."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    model = robot(compile=True)
    state = model.initial_state(batch=BATCH)
    integrator = ImplicitEuler(1e-2, chunk=3)
    [(after, _)] = steps(model, integrator, state, count=1)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    steps(model, integrator, after)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    expected = steps(robot(), ImplicitEuler(1e-2, chunk=None), state, count=1)
    assert_same([(after, expected[0][1])], expected)


# ---- how many at a time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [0, -1, 2.5, "all", True, np.array([1, 2])])
def test_nonsense_is_refused(chunk):
    """Refuse what is neither a number of robots, which may be one of NumPy, nor a word."""
    with pytest.raises(InputError, match="chunk"):
        ImplicitEuler(1e-2, chunk=chunk)
    assert ImplicitEuler(1e-2, chunk=np.int64(3)).chunk == 3


def test_large_batches_are_stepped_in_parts_of_whole_vectors(monkeypatch):
    """Take about as many rods of 101 nodes at a time, whatever the batch, hardly any of them twice.

    Small batches are taken as a whole. Where steps are recorded, as those to equilibria are not, parts are smaller, and
    there is one for each thread at least, but for parts of less than 16 robots.
    """
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 101), Circle(1e-2), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    model = builder.finalize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method, least in ((Static(), 80), (ImplicitEuler(1e-2), 24)):
            sizes = {batch: chunks.chunk_size(model, batch, method) for batch in (1, least // 2, 1000, 10_007)}
            assert sizes[1] == 1 and sizes[least // 2] == least // 2
            for batch in (1000, 10_007):
                twice = -batch % sizes[batch]
                assert least <= sizes[batch] <= 1.8 * least and sizes[batch] % 8 == 0 and twice < 0.01 * batch
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert 360 < step_memory.robots_at_a_time(model, 10_007) < 600
    by_batch = {batch: step_memory.robots_at_a_time(model, batch, recorded=True) for batch in (16, 48, 64, 96, 10_007)}
    large = by_batch.pop(10_007)
    assert [-(-batch // size) for batch, size in by_batch.items()] == [1, 3, 4, 4]
    rounds = -(-10_007 // (4 * large))
    assert 24 <= large <= 44 and rounds * 4 * large < 1.01 * 10_007
    given = {chunk: chunks.chunk_size(model, 1000, ImplicitEuler(1e-2, chunk=chunk)) for chunk in (None, 300)}
    assert given == {None: 1000, 300: 300}


def test_little_memory_makes_small_parts_and_says_so_once(monkeypatch):
    """Step fewer at a time where memory is short, with a message that has the numbers, and the same result."""
    model = robot()
    state = model.initial_state(batch=BATCH)
    one = step_memory.step_bytes(model, BATCH) / BATCH
    monkeypatch.setattr(chunks, "available_bytes", lambda device: int(8.1 * one))
    with pytest.warns(
        RuntimeWarning, match=r"a step of 7 robots would take about .*KiB are free on cpu: [1-4] at a time"
    ):
        found = steps(model, ImplicitEuler(1e-2), state, count=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(model, ImplicitEuler(1e-2), state, count=1)
    assert_same(found, steps(model, ImplicitEuler(1e-2, chunk=None), state, count=1))


def test_a_robot_that_is_too_large_is_stepped_alone(monkeypatch):
    """Step one at a time where even that may not fit: nothing smaller can be had."""
    model = robot()
    monkeypatch.setattr(chunks, "available_bytes", lambda device: 1000)
    with pytest.warns(RuntimeWarning, match="1 at a time"):
        assert chunks.chunk_size(model, BATCH, ImplicitEuler(1e-2)) == 1


def test_copies_and_changes_are_seen():
    """See constants that change between steps, in a model and in its copy."""
    model = robot()
    twin = copy.deepcopy(model)
    state, integrator = model.initial_state(batch=BATCH), ImplicitEuler(1e-2, chunk=3)
    before = steps(model, integrator, state, count=1)
    with torch.no_grad():
        model.forces[0].acceleration.mul_(2)
    changed = steps(model, integrator, state, count=1)
    assert_same(steps(twin, integrator, state, count=1), before)
    assert_same(changed, steps(model, ImplicitEuler(1e-2, chunk=None), state, count=1))
    assert (changed[0][0].q - before[0][0].q).abs().max() > 1e-6
