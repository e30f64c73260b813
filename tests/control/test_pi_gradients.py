"""Gradients of closed loops by the PI law, and gains that are trained."""

import pytest
import torch

from tests.control.robots import DT, pi, rod, shape, wave
from torchdismech import ImplicitEuler, InputError, trainable, unroll
from torchdismech.control import PI, Fixed, Strains


def in_plane():
    """Return a rod, its strains and what they shall be: the wave."""
    model = rod(7)
    return model, Strains(model), shape(model).values


def in_space():
    """Return a rod that is clamped at one end, all its strains, and what they shall be: a helix that is twisted."""
    model = rod(7, youngs=1e7, planar=False, held="clamped")
    strains = Strains(model, ["stretch", "curvature", "twist"])
    wanted = {"stretch": 0.05, "kappa1": 15.0, "kappa2": -8.0, "twist": 20.0}
    return model, strains, torch.cat([strains.undeformed[part] + wanted[name] for name, part in strains.parts.items()])


@pytest.mark.parametrize(
    ("robot", "steps"),
    [
        (in_plane, 8),
        (in_space, 4),
        pytest.param(in_plane, 50, marks=pytest.mark.slow),
        pytest.param(in_space, 50, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("every", [None, 3])
def test_derivatives_of_a_closed_loop(robot, steps, every):
    """Differentiate by gains, stiffness, reference and initial state through the memory; hold against differences."""
    model, strains, values = robot()
    stiffness = trainable.scaled(model, ["stretch.EA", "bend_twist.EI1"])
    values = values.clone().requires_grad_()
    controller = PI(model, strains, Fixed(values), DT, rate={"curvature": 500.0})
    Kp, Ki = (trainable.scaled(controller, [name]).log_factor for name in ("Kp", "Ki"))
    q = model.initial_state().q.clone()
    q[0, 3 * 3 + 2] += 1e-3  # the middle, upwards
    q.requires_grad_()
    integrator = ImplicitEuler(DT, force_tolerance=1e-14, relative_tolerance=0)

    def loss(**options):
        run = unroll(model, model.initial_state(q=q), integrator, steps, controller=controller, throw=True, **options)
        # all that the loop leaves: positions, and what it remembers
        return 1e4 * (run.positions[1:] - wave(7)).square().sum(-1).mean() + run.memory["integral"].square().sum()

    given = (Kp, Ki, stiffness.log_factor, values, q)
    slopes = torch.autograd.grad(loss(checkpoint_every=every), given)
    free = model.free[None]
    for tensor, slope in zip(given, slopes, strict=True):
        direction = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        direction = direction * free * 1e-3 if tensor is q else direction
        # by a micrometre, or a ten-thousandth of others: what steps are solved to moves nodes by 1e-12 m
        step = {id(q): 1e-3}.get(id(tensor), 1e-4)

        def moved(by: float, tensor=tensor, direction=direction) -> float:
            before = tensor.detach().clone()
            with torch.no_grad():
                tensor += by * direction
                found = float(loss())
                tensor.copy_(before)
            return found

        expected = (moved(step) - moved(-step)) / (2 * step)
        # the error of the difference, of second order in the step: 4e-7; rounding of 50 steps, 1e-11 of the loss: 1e-6
        assert float((slope * direction).sum()) == pytest.approx(expected, rel=3e-6), tensor.shape


def test_gains_are_trained_and_stay_positive():
    """Take steps of an optimiser that would drive gains below zero: they are factors of what they were."""
    model = rod(7)
    controller = pi(model, Kp=torch.tensor([0.5, 0.4]), Ki=torch.tensor([10.0, 5.0]))
    factor = trainable.scaled(controller, ["Kp", "Ki"], shape=(2, 1))
    optimizer = torch.optim.SGD(factor.parameters(), lr=10.0)
    for _ in range(3):
        optimizer.zero_grad()
        (controller.Kp.sum() + controller.Ki.sum()).backward()
        optimizer.step()
    assert (controller.Kp >= 0).all() and (controller.Ki >= 0).all() and controller.Kp.shape == (2, 1)
    with pytest.raises(InputError, match="Ki is zero wherever"):
        trainable.scaled(pi(model, Ki=0.0), ["Ki"])


@pytest.mark.slow
def test_loops_compile():
    """Compile steps and what is measured: a closed loop and its gradient are the eager ones up to rounding."""
    found = []
    for compile in (False, True):
        model = rod(7)
        model.compilation.setting = compile
        controller = pi(model)
        gains = trainable.scaled(controller, ["Kp", "Ki"])
        run = unroll(model, model.initial_state(), ImplicitEuler(DT, force_tolerance=1e-13), 4, controller=controller)
        run.state.q.square().sum().backward()
        found.append((run.state.q.detach(), gains.log_factor.grad))
    (eager, slope), (compiled, compiled_slope) = found
    assert (eager - compiled).abs().max() < 1e-10 and compiled_slope.item() == pytest.approx(slope.item(), rel=1e-6)
