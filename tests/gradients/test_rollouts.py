"""Gradients through long rollouts; rows that fail; unsymmetric matrices; memory and cost."""

import os
import statistics
import time

import pytest
import torch
from torch import nn

from tests.gradients.cases import EXACT, HELIX, SmallForce, robot
from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    State,
    Status,
    forces,
    magnetics,
    rollout,
    straight,
    trainable,
    unroll,
)


def cantilever(nodes: int = 8, more=(), **options):
    """Return a rod that swings, clamped at one end."""
    points, material = straight((0, 0, 0), (0.5, 0, 0), nodes), Material(1e6, 1000.0, relaxation_time=0.01)
    loads = [forces.Gravity((0, 0, -9.81)), forces.Viscous(0.05), *more]
    return rod_through(points, Circle(5e-3), material, loads).finalize(**options)


def test_states_of_trained_masses_are_made_within_the_loop():
    """Go backwards twice from states that are made anew or detached, and not from one that was made before the loop."""
    model = cantilever(4)
    trainable.scaled(model, ["mass"])
    before = model.initial_state()

    def twice(state) -> None:
        for _ in range(2):
            unroll(model, state(), ImplicitEuler(0.01), 2).positions.square().sum().backward()

    twice(model.initial_state)
    twice(lambda: before.detach())
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):  # as the pages say
        twice(lambda: before)


@pytest.mark.parametrize("checkpoint_every", [None, 4])
def test_by_the_time_at_which_a_run_begins(checkpoint_every):
    """Compare the gradient by the times at which two robots begin, in a field that turns, with differences."""
    points = straight((0, 0, 0), (0.1, 0, 0), 5)
    field = magnetics.Rotating(0.02, frequency=5.0)
    load = magnetics.Magnetic((1e5, 0.0, 0.0), field)
    model = rod_through(points, Circle(2e-3), Material(1e7, 1000.0), [load]).finalize()
    time = torch.tensor([0.01, 0.03], dtype=torch.float64, requires_grad=True)

    def output():
        state = model.initial_state(batch=2).replace(time=time)
        run = unroll(model, state, ImplicitEuler(5e-3, **EXACT), 12, checkpoint_every=checkpoint_every)
        return run.positions[:, 0, -1, 2].sum() - run.positions[:, 1, -1, 2].sum() + 1e-3 * run.state.time.sum()

    found = [torch.autograd.grad(output(), time)[0].sum().item() for _ in range(2)]  # the steps are recorded by now
    sides = []
    with torch.no_grad():
        for change in (1e-5, -2e-5):
            time += change
            sides.append(output().item())
    # steps of 1e-5 s of a field that turns by 31 rad/s: the third order is 1e-8 of the slope
    assert found == pytest.approx([(sides[0] - sides[1]) / 2e-5] * 2, rel=1e-6)


@pytest.mark.parametrize("checkpoint_every", [None, 10])
@pytest.mark.slow
def test_fifty_steps_against_differences(checkpoint_every):
    """Match central differences of the whole rollout, by stiffness, drag, mass and initial velocity."""
    model = cantilever()
    factors = {
        "stiffness": trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"]).log_factor,
        "drag": trainable.scaled(model, ["Viscous.viscosity"]).log_factor,
        "mass": trainable.scaled(model, ["mass"]).log_factor,
    }
    velocity = torch.zeros(model.n_dofs, dtype=torch.float64)
    velocity[3 * 7 + 1] = 0.5
    integrator = ImplicitEuler(0.01, **EXACT)

    def loss() -> torch.Tensor:
        run = unroll(model, model.initial_state(velocity=velocity), integrator, 50, checkpoint_every=checkpoint_every)
        assert (run.status == Status.CONVERGED).all()
        return run.positions[1:, 0, -1].square().mean()

    inputs = {**factors, "velocity": velocity.requires_grad_()}
    gradients = torch.autograd.grad(loss(), list(inputs.values()))
    for (name, tensor), gradient in zip(inputs.items(), gradients, strict=True):
        direction = torch.zeros_like(tensor)
        direction.flatten()[-1 if tensor.dim() == 0 else 3 * 7 + 1] = 1.0
        values = []
        with torch.no_grad():
            for sign in (1, -1):
                tensor += sign * 1e-5 * direction
                values.append(loss().item())
                tensor -= sign * 1e-5 * direction
        difference = (values[0] - values[1]) / 2e-5
        # steps of 1e-5, squared, and rounding over them: 2e-9 seen
        assert (gradient * direction).sum().item() == pytest.approx(difference, rel=1e-7), name


def test_failed_row_leaves_the_others_alone_and_passes_its_state_on():
    """Have one robot's control be NaN: finite gradients for the rest, as if alone, and the identity for itself."""
    model = robot("rod", [forces.Gravity((0, 0, -9.81)), SmallForce()], batch=False)
    weights = [p for p in model.parameters() if "network" in [n for n, q in model.named_parameters() if q is p][0]]
    for p in weights:
        p.requires_grad_()
    integrator = ImplicitEuler(0.005, force_tolerance=1e-12)
    rest = model.initial_state(batch=3).q.detach()
    force = torch.zeros_like(rest)
    force[1] = torch.nan

    def gradients(rows):
        q = rest[rows].clone().requires_grad_()
        state, info = integrator.step(model, model.initial_state(q=q).detach().replace(q=q), Control(force=force[rows]))
        found = torch.autograd.grad(state.q.square().sum(), [q, *weights], allow_unused=True)
        return info, found

    info, (by_q, *by_weights) = gradients([0, 1, 2])
    assert info.status.tolist() == [0, int(Status.NOT_FINITE), 0]
    _, (alone_q, *alone) = gradients([0, 2])
    # sums in another order
    assert torch.allclose(by_q[[0, 2]], alone_q, rtol=1e-9, atol=1e-14)
    for a, b in zip(by_weights, alone, strict=True):
        if a is not None:
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-14)
    assert torch.equal(by_q[1], 2 * rest[1])


def test_robots_that_are_not_stepped_pass_their_state_on():
    """Have the identity for rows that `running` leaves out."""
    model = cantilever()
    q = model.initial_state(batch=2).q.detach().requires_grad_()
    state = model.initial_state(batch=2).detach().replace(q=q)
    after, _ = ImplicitEuler(0.01).step(model, state, running=torch.tensor([True, False]))
    (gradient,) = torch.autograd.grad(after.q[1].sum(), q)
    assert torch.equal(gradient[1], torch.ones_like(gradient[1]))
    assert (gradient[0] == 0).all()


@pytest.mark.parametrize("names", [["bend_twist.EI1"], ["Viscous.viscosity"], ["mass"]])
def test_checkpoints_change_no_gradient(names):
    """Take steps again from checkpoints where the first step looks at trained constants: the same to the bit."""
    found = []
    for checkpoint_every in (None, 2):
        model = cantilever(nodes=5)
        factor = trainable.scaled(model, names).log_factor
        run = unroll(model, model.initial_state(), ImplicitEuler(0.01), 4, checkpoint_every=checkpoint_every)
        found += torch.autograd.grad(run.q[-1].square().sum(), factor)
    assert found[0].abs() > 0 and torch.equal(*found)


class Spring(forces.LocalForce):
    """A learned force without derivatives: each evaluation of the step asks autograd for them."""

    def __init__(self, explicit: bool):
        super().__init__(reach=0, explicit=explicit)
        self.stiffness = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))
        self.calls = 0

    def nodal_force(self, state, control):
        """Return what pulls nodes (B, N, 3) to the origin."""
        self.calls += 1
        return -self.stiffness * state.positions**3


@pytest.mark.parametrize("explicit", [False, True])
def test_checkpoints_do_not_count_what_a_step_finds_of_its_own(explicit):
    """Have the same gradients, and take no more evaluations forward, with a learned force and a trained constant."""
    found, calls = [], []
    for checkpoint_every in (None, 3):
        spring = Spring(explicit)
        model = cantilever(nodes=5, more=[spring])
        factor = trainable.scaled(model, ["bend_twist.EI1"]).log_factor
        for _ in range(2):
            before = spring.calls
            run = unroll(model, model.initial_state(), ImplicitEuler(0.01), 6, checkpoint_every=checkpoint_every)
            calls.append(spring.calls - before)
            found.append(torch.stack(torch.autograd.grad(run.q[-1].square().sum(), [factor, spring.stiffness])))
    assert found[0].abs().min() > 0 and all(torch.equal(found[0], other) for other in found[1:])
    assert calls[3] <= 1.5 * calls[1]  # 5 to 20 times as many where each derivative took the segment again


def test_substeps_have_their_gradient():
    """Differentiate a step that is taken in parts, as it fails whole with so few iterations."""
    model = cantilever()
    integrator = ImplicitEuler(0.1, max_iterations=4, max_substeps=16, force_tolerance=1e-10, relative_tolerance=0.0)
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    velocity[0, 3 * 7 + 2] = 5.0

    def value(velocity):
        state, info = integrator.step(model, model.initial_state(velocity=velocity))
        assert info.converged.all() and (info.substeps > 1).all(), info
        return state.q.square().sum()

    velocity.requires_grad_()
    (gradient,) = torch.autograd.grad(value(velocity), velocity)
    with torch.no_grad():
        step = torch.zeros_like(velocity)
        step[0, 3 * 7 + 2] = 1e-4
        difference = (value(velocity + step) - value(velocity - step)) / 2e-4
    # residuals of 1e-10 N at stiffnesses of 10 N/m and more: positions to 1e-11, differences to 1e-7
    assert gradient[0, 3 * 7 + 2].item() == pytest.approx(difference.item(), rel=1e-4)


@pytest.mark.parametrize("solver", ["dense", "banded", "multifrontal", "bicgstab"])
def test_unsymmetric_matrices_are_solved_transposed(solver):
    """Match differences where the matrix is far from symmetric: with it untransposed the gradient is wrong."""
    builder = RobotBuilder()
    builder.add_rod(HELIX, Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.Resistive(0.1, 3.0))
    model = builder.finalize(solver=solver)
    integrator = ImplicitEuler(0.02, force_tolerance=1e-13, relative_tolerance=0.0)
    generator = torch.Generator().manual_seed(0)
    velocity = 0.3 * torch.randn(1, model.n_dofs, dtype=torch.float64, generator=generator)
    weight = torch.randn(1, model.n_dofs, dtype=torch.float64, generator=generator)

    def value(velocity):
        state, info = integrator.step(model, model.initial_state(velocity=velocity))
        assert info.converged.all(), info
        return (weight * state.q).sum()

    direction = torch.randn(velocity.shape, dtype=torch.float64, generator=generator)
    (gradient,) = torch.autograd.grad(value(velocity.requires_grad_()), velocity)
    with torch.no_grad():
        difference = (value(velocity + 1e-5 * direction) - value(velocity - 1e-5 * direction)) / 2e-5
    # residuals of 1e-13 N over steps of 1e-5: 3e-10 seen
    assert (gradient * direction).sum().item() == pytest.approx(difference.item(), rel=1e-8)


def test_iterative_solver_of_symmetric_matrices():
    """Give the gradient of the direct solver with preconditioned conjugate gradients."""
    found = []
    for solver in ("banded", "pcg"):
        model = cantilever(solver=solver)
        factor = trainable.scaled(model, ["bend_twist.EI1"])
        run = unroll(model, model.initial_state(), ImplicitEuler(0.01), 3)
        found.append(torch.autograd.grad(run.positions[-1].square().sum(), factor.log_factor)[0].item())
    # pcg's systems are solved to its tolerance; 1e-15 seen
    assert found[1] == pytest.approx(found[0], rel=1e-8)


def bytes_kept(integrator, steps: int, checkpoint_every=None) -> int:
    """Return the bytes that autograd keeps of a rollout, each storage counted once."""
    model = cantilever()
    trainable.scaled(model, ["bend_twist.EI1"])
    state = model.initial_state(batch=4)
    kept: dict[int, int] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run = unroll(model, state, integrator, steps, checkpoint_every=checkpoint_every)
    assert (run.status == 0).all()
    return sum(kept.values())


def test_runs_say_by_the_same_name_which_robots_failed():
    """Have one of two robots fail in `rollout` and in `unroll`."""
    model = cantilever(4)
    force = torch.zeros(2, model.n_dofs, dtype=torch.float64)
    force[1] = torch.nan
    for run_of in (rollout, unroll):
        with pytest.warns(RuntimeWarning):
            run = run_of(
                model, model.initial_state(2), ImplicitEuler(0.01), 2, schedule=lambda *_: Control(force=force)
            )
        assert run.failed.tolist() == [False, True]


def test_memory_does_not_grow_with_newton_iterations():
    """Keep the same for loose and for tight tolerances, at most 24 numbers a node and step (the state)."""
    loose = bytes_kept(ImplicitEuler(0.01, force_tolerance=1e-3), 6)
    tight = bytes_kept(ImplicitEuler(0.01, **EXACT), 6)
    assert tight == loose
    assert (bytes_kept(ImplicitEuler(0.01), 12) - loose) / (6 * 4 * 8) <= 24 * 8


def test_checkpointing_keeps_less():
    """Keep less than half with a state every six steps."""
    integrator = ImplicitEuler(0.01)
    assert bytes_kept(integrator, 36, checkpoint_every=6) < 0.5 * bytes_kept(integrator, 36)


def test_a_tensor_exchanged_since_the_step_counts_no_longer():
    """Differentiate by the constant that the step was taken with, whatever stands in the model by now."""
    model = cantilever()
    before = model.body.mass.requires_grad_()
    state, _ = ImplicitEuler(0.01).step(model, model.initial_state())
    (expected,) = torch.autograd.grad(state.q.sum(), before, retain_graph=True)
    model.body.mass = (2 * before.detach()).requires_grad_()
    (found,) = torch.autograd.grad(state.q.sum(), before)
    assert torch.equal(found, expected) and model.body.mass.grad is None


def test_second_derivatives_are_refused():
    """Raise instead of giving wrong second derivatives."""
    model = cantilever()
    q = model.initial_state().q.detach().requires_grad_()
    state, _ = ImplicitEuler(0.01).step(model, model.initial_state(q=q))
    for loss in (state.q.square().sum(), state.q.sum()):  # the gradient by q of the latter is a constant
        with pytest.raises(RuntimeError, match="a step can be differentiated once"):
            torch.autograd.grad(loss, q, create_graph=True)


def test_nothing_is_recorded_where_nothing_needs_it():
    """Return states without a graph, also outside no_grad."""
    model = cantilever()
    state, _ = ImplicitEuler(0.01).step(model, model.initial_state())
    assert isinstance(state, State)
    assert not any(value.requires_grad for value in state.fields())


@pytest.mark.slow
def test_compiled_kernels_have_the_same_gradient():
    """Differentiate through compiled kernels, trained constants and all."""
    found = []
    for compiled in (False, True):
        model = cantilever(compile=compiled)
        factor = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.viscous_EI1"])
        run = unroll(model, model.initial_state(batch=2), ImplicitEuler(0.01, **EXACT), 4)
        found.append(torch.autograd.grad(run.positions[-1].square().sum(), factor.log_factor)[0].item())
    assert found[1] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.slow
def test_backward_costs_at_most_the_forward():
    """Compare process times of steps and of their backward passes: medians of seven."""
    assert os.environ.get("OMP_NUM_THREADS") == "1", "time with OMP_NUM_THREADS=1"
    model = cantilever(nodes=51)
    trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])
    integrator = ImplicitEuler(0.01)
    ratios = []
    for _ in range(7):
        begun = time.process_time()
        run = unroll(model, model.initial_state(batch=64), integrator, 10)
        stepped = time.process_time()
        run.q[-1].square().sum().backward()
        ratios.append((time.process_time() - stepped) / (stepped - begun))
    print(f"backward / forward: {statistics.median(ratios):.2f}")
    assert statistics.median(ratios) <= 1.0
