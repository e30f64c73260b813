"""What has no gradients through a step, or would have wrong ones, is refused by name."""

import pytest
import torch
from torch.autograd import forward_ad

from tests.rods import rod_through
from torchdismech import Circle, Control, ImplicitEuler, Material, Model, State, forces, straight, trainable, unroll


def rod() -> tuple[Model, State]:
    """Return a hanging rod, and its state at rest."""
    loads = [forces.Gravity((0, 0, -9.81)), forces.Viscous(0.05)]
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(5e-3), Material(1e6, 1000.0), loads).finalize()
    return model, model.initial_state()


@pytest.mark.parametrize("given", ["state", "control", "constant"])
def test_forward_mode(given):
    """Refuse forward-mode derivatives by whatever a step is given: those of its first iterate would come out."""
    model, state = rod()
    integrator, one = ImplicitEuler(1e-2), torch.ones_like(state.q)
    with forward_ad.dual_level():
        integrator.step(model, state)  # of nothing that has derivatives
        control = None
        if given == "state":
            state = state.replace(velocity=forward_ad.make_dual(state.velocity, one))
        elif given == "control":
            control = Control(force=forward_ad.make_dual(0 * one, one))
        else:
            drag = forward_ad.make_dual(model.forces[1].viscosity.detach(), torch.ones_like(model.forces[1].viscosity))
            control = Control(values={"Viscous.viscosity": drag})
        with pytest.raises(RuntimeError, match="no forward-mode derivatives.*take reverse mode"):
            integrator.step(model, state, control)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacrev])
def test_transforms(transform):
    """Refuse the transforms of `torch.func`, and say what to take."""
    model, state = rod()

    def height(velocity):
        return ImplicitEuler(1e-2).step(model, state.replace(velocity=velocity))[0].q.sum()

    velocity = state.velocity[None] if transform is torch.func.vmap else state.velocity
    with pytest.raises(RuntimeError, match=r"cannot be transformed by torch\.func.*torch\.autograd\.grad"):
        transform(height)(velocity)


def test_constants_changed_before_the_backward_pass():
    """Refuse gradients of a step whose equations were others: a constant was changed in place since."""
    model, state = rod()
    factor = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])

    def loss():
        return unroll(model, state, ImplicitEuler(1e-2), 3).positions[-1, :, -1].sum()

    (expected,) = torch.autograd.grad(loss(), [factor.log_factor])
    late = loss()
    with torch.no_grad():
        model.forces[1].viscosity.mul_(300.0)
    with pytest.raises(RuntimeError, match=r"Viscous\.viscosity: changed in place between a step and its backward"):
        torch.autograd.grad(late, [factor.log_factor])
    with torch.no_grad():
        model.forces[1].viscosity.div_(300.0)
    # what a factor has made of it was found before the step
    late = loss()
    with torch.no_grad():
        factor.log_factor.add_(1.0)
    (found,) = torch.autograd.grad(late, [factor.log_factor])
    torch.testing.assert_close(found, expected)
