"""What a snapshot of a model sees of its changes, and what is answered once for it."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    Model,
    RobotBuilder,
    State,
    straight,
    trainable,
    unroll,
)
from torchdismech.errors import InputError
from torchdismech.forces import Force, Gravity
from torchdismech.snapshot import Snapshot


def rod() -> Model:
    """Return a rod of a few nodes that is clamped and has weight."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 5), Circle(1e-2), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(Gravity((0.0, 0.0, -9.81)))
    return builder.finalize()


def _other_memory(model: Model) -> None:
    model.forces[0].acceleration.data = model.forces[0].acceleration.clone()


def _other_shape(model: Model) -> None:
    tensor = model.body.mass
    place = tensor.data_ptr()
    tensor.unsqueeze_(0)
    assert tensor.data_ptr() == place


def _one_attribute_for_another(model: Model) -> None:
    vars(model.forces[0])["implicit"] = vars(model.forces[0]).pop("explicit")


def _dictionary(model: Model) -> None:
    vars(model.body)["_buffers"] = dict(model.body._buffers)


CHANGES: dict[str, Callable[[Model], object]] = {
    "number": lambda m: setattr(m.forces[0], "explicit", 1),
    "attribute more": lambda m: setattr(m.forces[0], "more", 1),
    "attribute less": lambda m: delattr(m.forces[0], "explicit"),
    "attribute for another": _one_attribute_for_another,
    "attribute of the root": lambda m: setattr(m, "solvers", None),
    "parameter": lambda m: setattr(m.forces[0], "acceleration", nn.Parameter(m.forces[0].acceleration.clone())),
    "buffer": lambda m: m.body._buffers.update(mass=m.body.mass.clone()),
    "private buffer": lambda m: m.frames._buffers.update(_nodes=m.frames._nodes.clone()),
    "buffer more": lambda m: m.body.register_buffer("more", torch.zeros(1)),
    "dictionary of buffers": _dictionary,
    "memory": _other_memory,
    "shape": _other_shape,
    "requires gradients": lambda m: m.forces[0].acceleration.requires_grad_(),
    "module": lambda m: m.forces.append(nn.Identity()),
    "module for another": lambda m: m.forces.__setitem__(0, nn.Identity()),
    "class": lambda m: setattr(m.forces[0], "__class__", nn.Identity),
    "parametrization": lambda m: trainable.scaled(m, ["bend_twist.EI1"]),
    "dtype": lambda m: m.forces[0].to(torch.float32),
    "training": lambda m: m.train(not m.training),
    "hook": lambda m: m.forces[0].register_forward_hook(lambda *_: None),
    "hook before": lambda m: m.term("stretch").energy.register_forward_pre_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    """See what is another object, or a tensor somewhere else; each snapshot is of one moment."""
    model = rod()
    snapshot = Snapshot(model, "_snapshot")
    assert snapshot.is_current(model)
    CHANGES[change](model)
    assert not snapshot.is_current(model)


def test_numbers_are_not_seen():
    """Leave alone that numbers within a tensor change, and where the snapshot itself is kept."""
    model = rod()
    snapshot = model.snapshot()
    model.forces[0].acceleration.detach().mul_(2)
    assert model.snapshot() is snapshot


def test_constants_that_were_changed_in_place_are_named():
    """Tell by its name which constant was changed in place; what a parametrization is made of is none of them."""
    model = rod()
    factor = trainable.scaled(model, ["bend_twist.EI1"])
    snapshot = model.snapshot()
    versions = snapshot.versions()
    with torch.no_grad():
        factor.log_factor.add_(1.0)
        assert snapshot.changed_since(versions) == []
        model.body.mass.mul_(2.0)
        model.term("stretch").energy.EA.mul_(2.0)
    assert snapshot.changed_since(versions) == ["Body.mass", "LinearElastic.EA"]


def test_steps_leave_a_model_as_it_is():
    """Answer once what a run asks: no step changes what a snapshot is_current, recorded or not."""
    model = rod()
    integrator, state = ImplicitEuler(1e-3), model.initial_state()
    state, _ = integrator.step(model, state)
    snapshot = model.snapshot()
    for _ in range(30):
        state, _ = integrator.step(model, state)
    assert model.recordings[0].recording is not None
    assert model.snapshot() is snapshot


def test_hooks_are_called_in_each_step():
    """Call what is registered to be called with a force of the library, also where steps were recorded before."""
    model, calls = rod(), []
    integrator, state = ImplicitEuler(1e-3), model.initial_state()
    for _ in range(30):
        state, _ = integrator.step(model, state)
    assert model.recordings[0].recording is not None
    handle = model.forces[0].register_forward_hook(lambda module, given, found: calls.append(1) or 2 * found)
    lifted = state
    for _ in range(3):
        before = len(calls)
        lifted, _ = integrator.step(model, lifted)
        assert len(calls) > before
    handle.remove()
    fresh, doubled = rod(), state
    with torch.no_grad():
        fresh.forces[0].acceleration.mul_(2.0)
    for _ in range(3):
        doubled, _ = integrator.step(fresh, doubled)
    assert torch.equal(lifted.q, doubled.q)
    count = len(calls)
    integrator.step(model, state)
    assert len(calls) == count


def test_copies_begin_anew():
    """Do not take the snapshot of a model along with a copy of it, of which it would show nothing."""
    import copy

    model = rod()
    model.snapshot()
    assert copy.deepcopy(model)._snapshot is None


def test_what_is_trained_is_known():
    """Know of gradients and parametrizations, from which steps find out what they have to look for."""
    model = rod()
    assert not model.snapshot().requires_gradients and not model.snapshot().parametrized
    model.forces[0].acceleration.requires_grad_()
    assert model.snapshot().requires_gradients and not model.snapshot().parametrized
    model = rod()
    trainable.scaled(model, ["bend_twist.EI1"])
    assert model.snapshot().requires_gradients and model.snapshot().parametrized


class Drag(Force):
    """A drag whose one parameter has a private name."""

    def __init__(self) -> None:
        super().__init__()
        self._factor = nn.Parameter(torch.tensor(0.1, dtype=torch.float64))

    def forward(self, state: State, control: Control) -> torch.Tensor:  # noqa: D102
        return -self._factor * state.velocity


def test_parameters_with_private_names_are_trained():
    """Differentiate by a parameter whatever its name: alone it was taken for none."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 5), Circle(1e-2), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(Gravity((0.0, 0.0, -9.81)))
    drag = Drag()
    builder.add_force(drag)
    model = builder.finalize()
    start = model.initial_state().detach()

    def tip() -> torch.Tensor:
        return unroll(model, start, ImplicitEuler(1e-2), 3).positions[-1, 0, -1, 2]

    (gradient,) = torch.autograd.grad(tip(), [drag._factor])
    with torch.no_grad():
        higher, lower = (tip() for drag._factor.data in (torch.tensor(0.101).double(), torch.tensor(0.099).double()))
    torch.testing.assert_close(gradient, (higher - lower) / 0.002, rtol=1e-3, atol=0)  # error of the difference


def test_a_model_for_another_number_of_robots_is_refused_after_steps():
    """Refuse a state that fitted the model before its constants were given per robot."""
    model = rod()
    integrator, state = ImplicitEuler(1e-3), model.initial_state(batch=2)
    integrator.step(model, state)
    model.forces[0].acceleration = nn.Parameter(torch.zeros(3, 3, dtype=torch.float64), requires_grad=False)
    with pytest.raises(InputError, match="for 3 robots, got a state of 2"):
        integrator.step(model, state)


def test_recorded_steps_follow_a_changed_model():
    """Step as a model that was changed from the beginning, though a recording of the one before is there."""

    def halfway(change: Callable[[Model], object], recorded: bool) -> torch.Tensor:
        model = rod()
        integrator, state = ImplicitEuler(1e-3), model.initial_state()
        for step in range(60):
            if step == 40:
                change(model)
            if not recorded:
                model.recordings.clear()
            state, _ = integrator.step(model, state)
        return state.q

    changes: list[Callable[[Model], object]] = [
        lambda m: m.forces[0].acceleration.detach().mul_(2),
        lambda m: setattr(m.forces[0], "acceleration", nn.Parameter(2 * m.forces[0].acceleration, requires_grad=False)),
        lambda m: m.term("bend_twist").energy.EI1.data.mul_(2),
        lambda m: setattr(m.forces[0].acceleration, "data", torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)),
    ]
    still = halfway(lambda m: None, True)
    for change in changes:
        found = halfway(change, True)
        assert torch.equal(found, halfway(change, False))
        assert not torch.equal(found, still)
