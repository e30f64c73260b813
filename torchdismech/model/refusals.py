"""Refusals before a step: exchanged parts, states and controls of other robots, transforms of `torch.func`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import nn
from torch.autograd import forward_ad

from torchdismech.elastic import ElasticTerm
from torchdismech.elastic.inelastic import internal_count
from torchdismech.errors import InputError, refuse_other_kind
from torchdismech.forces import Force
from torchdismech.robot.body import Body
from torchdismech.robot.state import STATES, Control, State
from torchdismech.values import Place, refuse_out_of_bounds, refuse_unfitting

__all__ = [
    "refuse_other_batch",
    "refuse_other_dofs",
    "refuse_other_parts",
    "refuse_other_state",
    "refuse_other_values",
    "refuse_transforms",
]

INSTEAD = (
    "take reverse mode, torch.autograd.grad or backward(), or torch.autograd.functional.jacobian; many robots at once "
    "are a batch"
)


def refuse_other_parts(terms: Collection[ElasticTerm], forces: Collection[Force], laid_out: tuple[int, int]) -> None:
    """Refuse terms and forces added, removed or replaced since the layout, which was for `laid_out` of them."""
    bound = all(hasattr(force, "body") for force in forces)
    if (len(terms), len(forces)) != laid_out or not bound:
        raise InputError(
            "Model.forces, Model.terms: one was added, removed or replaced since the model was built; the robot's "
            "matrix is laid out for those that it was built with: build the model anew, by RobotBuilder.finalize"
        )


def refuse_other_state(state: State, body: Body, terms: Iterable[ElasticTerm], batch: int | None) -> None:
    """Refuse a state with other dofs, shapes, internal variables, dtype or device, or of another number of robots.

    `batch` is the number that the model's parameters are given for; None: any number.
    """
    refuse_other_dofs(state, body)
    for name, shape in _shapes_of_states(state.batch, body).items():
        if (given := tuple(getattr(state, name).shape)) != shape:
            raise InputError(f"State.{name}: expected shape {shape}, got {given}")
    count, kept = internal_count(terms), None if state.internal is None else tuple(state.internal.shape)
    expected = (state.batch, count) if count else None
    if kept != expected:
        raise InputError(f"State.internal: this model's materials expect {expected}, got {kept}")
    refuse_other_batch(state, batch)
    state.check_like(body.nodes.dtype, body.nodes.device)


def refuse_other_dofs(state: State, body: Body) -> None:
    """Refuse what is no state of rods and shells, and a state with another number of dofs or of held tangents."""
    refuse_other_kind("state", state, State, STATES)
    if state.q.dim() != 2:
        raise InputError(f"State.q: expected shape (B, {body.n_dofs}), got {tuple(state.q.shape)}")
    count = state.q.shape[1]
    if count != body.n_dofs or state.n_held != body.n_held:
        got, other = f"{count}" if count != body.n_dofs else "as many of another robot", ""
        if state.n_held != body.n_held:
            other = (
                f"; it holds {body.n_held} rod edges in a direction, and the state is of one that holds "
                f"{state.n_held}: where clamps are let go take model.released(state, before)"
            )
        raise InputError(f"State.q: this model has {body.n_dofs} dofs, got {got}{other}")


def refuse_other_batch(state: State, batch: int | None) -> None:
    """Refuse a state of another number of robots than the model's parameters are given for; None: any number."""
    if batch not in (None, state.batch):
        raise InputError(
            f"this model's parameters are for {batch} robots, got a state of {state.batch}; to step some of the "
            "robots, build a model for any number, and give steps the numbers of theirs by Control(values=...)"
        )


def _shapes_of_states(robots: int, body: Body) -> dict[str, tuple[int, ...]]:
    """Return the expected shapes of the fields of a `State` of so many robots, without internal variables."""
    motion = dict.fromkeys(("q", "velocity", "acceleration"), (robots, body.n_dofs))
    frames = dict.fromkeys(("director", "tangent"), (robots, body.n_angles, 3))
    return {**motion, **frames, "reference_twist": (robots, len(body.springs.nodes)), "time": (robots,)}


def refuse_other_values(control: Control, places: Mapping[str, Place], batch: int) -> None:
    """Refuse values of a control for constants that the model does not have, or that do not fit them."""
    for name, value in control.values.items():
        if name not in places:
            raise InputError(f"Control.values: no constant {name!r}; there are: {', '.join(sorted(places))}")
        refuse_unfitting(f"Control.values[{name!r}]", places[name], value, batch)
    given = {places[name]: value for name, value in control.values.items()}
    for name, value in control.values.items():
        refuse_out_of_bounds(f"Control.values[{name!r}]", places[name], value, given)


def refuse_transforms(model: nn.Module, state: State, control: Control | None) -> None:
    """Refuse forward-mode derivatives and `torch.func`, which would differentiate a step's iterations, not its root."""
    forward, transforms = forward_ad._current_level >= 0, torch._C._functorch.peek_interpreter_stack() is not None
    if not (forward or transforms):
        return
    controls = [] if control is None else [*control.tensors().values(), *control.values.values()]
    given = [*state.fields(), *controls, *model.parameters(), *model.buffers()]
    if forward and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in given):
        raise RuntimeError(f"a step has no forward-mode derivatives (torch.autograd.forward_ad): {INSTEAD}")
    if transforms and any(map(torch._C._functorch.is_functorch_wrapped_tensor, given)):
        raise RuntimeError(f"a step cannot be transformed by torch.func (grad, vjp, jvp, vmap, jacrev): {INSTEAD}")
