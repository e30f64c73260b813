"""What has no gradients through a step, or would have wrong ones, is refused by name."""

import pytest
import torch
from torch import nn
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


class Gusts(forces.LocalForce):
    """A learned force with a buffer, a number, a switch and a count of its calls."""

    def __init__(self, size: float):
        super().__init__(reach=0)
        self.size = nn.Parameter(torch.tensor(size, dtype=torch.float64))
        self.register_buffer("gust", torch.ones((), dtype=torch.float64))
        self.share, self.blows, self.calls = 1.0, True, 0

    def nodal_force(self, state, control):
        """Return a wave in space (B, N, 3)."""
        self.calls += 1
        return float(self.blows) * self.share * self.size * self.gust * torch.sin(20 * state.positions + 1)


def _set_in_place(model: Model, gusts: Gusts) -> None:
    gusts.gust.fill_(0.0)


def _set_anew(model: Model, gusts: Gusts) -> None:
    gusts.gust = torch.zeros((), dtype=torch.float64)


def _set_share(model: Model, gusts: Gusts) -> None:
    gusts.share = 0.0


def _switch_off(model: Model, gusts: Gusts) -> None:
    gusts.blows = False


def _end_a_load(model: Model, gusts: Gusts) -> None:
    model.forces[1].stop = 0.01


def _exchange_a_constant(model: Model, gusts: Gusts) -> None:
    model.forces[0].viscosity = nn.Parameter(torch.tensor(0.5, dtype=torch.float64), requires_grad=False)


CHANGES = {
    "Gusts.gust: changed in place": _set_in_place,
    "Gusts.gust: exchanged": _set_anew,
    "Gusts.share: exchanged": _set_share,
    "Gusts.blows: exchanged": _switch_off,
    "PointForce.stop: exchanged": _end_a_load,
    "Viscous.viscosity: exchanged": _exchange_a_constant,
}


@pytest.mark.parametrize("message", [None, *CHANGES])
def test_what_users_change_between_steps(message):
    """Refuse gradients through steps between which something was set: all would be of what stands there last."""
    loads = [forces.Viscous(0.1), forces.PointForce([4], (0, 0, 1e-2), stop=1.0), gusts := Gusts(0.01)]
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(5e-3), Material(1e6, 1000.0), loads).finalize()
    state = model.initial_state().detach()
    for k in range(14):  # steps are recorded from the twelfth on
        if k == 13 and message is not None:
            CHANGES[message](model, gusts)
        state, _ = ImplicitEuler(5e-3).step(model, state)
    if message is None:  # it counted its calls meanwhile
        assert torch.autograd.grad(state.q.sum(), gusts.size)[0].abs() > 0
        return
    with pytest.raises(RuntimeError, match=f"^{message} between a step and its backward pass"):
        torch.autograd.grad(state.q.sum(), gusts.size)


def test_several_gradients_at_once():
    """Say that a step takes one gradient at a time; torch had no rule for a view."""
    model, state = rod()

    def heights(velocity):
        return ImplicitEuler(1e-2).step(model, state.replace(velocity=velocity))[0].positions[0, :, 2]

    assert torch.autograd.functional.jacobian(heights, state.velocity).shape == (5, *state.velocity.shape)
    with pytest.raises(RuntimeError, match="takes one gradient at a time"):
        torch.autograd.functional.jacobian(heights, state.velocity, vectorize=True)


def test_states_are_not_made_within_vmap():
    """Say that many robots are a batch where a state is made within `vmap`, too, which would blame control flow."""
    model, state = rod()
    with pytest.raises(RuntimeError, match=r"initial_state: velocity: .* torch\.func\.vmap: many robots .* a batch"):
        torch.func.vmap(lambda velocity: model.initial_state(velocity=velocity).q)(state.velocity)


@pytest.mark.parametrize("steps", [1, 3])
def test_states_of_inference_mode(steps):
    """Name `no_grad` where a state was made under `inference_mode`; without gradients it steps as any other."""
    model, _ = rod()
    with torch.inference_mode():
        state = model.initial_state()
    unroll(model, state, ImplicitEuler(1e-2), steps)
    trainable.scaled(model, ["bend_twist.EI1"])
    with pytest.raises(RuntimeError, match=r"under torch\.inference_mode: make .* under torch\.no_grad"):
        unroll(model, state, ImplicitEuler(1e-2), steps)
