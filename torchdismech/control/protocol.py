"""The protocol of controllers, with and without memory, and how a run calls them once a step.

A controller without memory is a function, controller(state, control, model) -> Control. One with memory has, besides,

    initial(model, state) -> memory                                    the memory before the first step
    controller(state, memory, control, model) -> (Control, memory)     at each step

The memory is a mapping from names to tensors with one row for each robot. The controller must not store it anywhere
else, such as in its attributes: a run passes it in and gets it back, so a run is a function of (state, memory). Frames
and files have it beside the state; a part of a run that is repeated in a backward pass starts from the memory with
which it started at first; and a robot whose step fails keeps the memory that it had.

A user's own loop that steps as `rollout` does:

    memory = begun(controller, model, state, integrator, steps)
    for _ in range(steps):
        control, after = answered(controller, state, memory, Control(), model)
        state, info = integrator.step(model, state, control)
        memory = kept(memory, after, info.converged)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchdismech.errors import InputError, refuse_other_kind
from torchdismech.robot.state import BatchState, Control
from torchdismech.values import where_rows

__all__ = [
    "Controller",
    "ControllerWithMemory",
    "Memory",
    "answered",
    "begun",
    "expected",
    "kept",
    "name_of",
    "remembers",
]

Memory = Mapping[str, Tensor]

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # a name is also that of a dataset in files
DTYPES = (torch.float64, torch.float32, torch.int64)  # the dtypes that files can hold


class ControllerWithMemory(Protocol):
    """A controller with a memory that the run carries along; see the module's docstring.

    It may also have `check(model, state, dt, steps)`, which raises an error for runs of `steps` steps of dt [s] from
    `state` that it is not made for.
    """

    def initial(self, model: Any, state: Any) -> Memory:
        """Return the memory before the first step from a state: tensors (B, ...) by name."""
        ...

    def __call__(self, state: Any, memory: Memory, control: Control, model: Any) -> tuple[Control, Memory]:
        """Return the control of the step from a state, given that of the schedule, and the memory after the step."""
        ...


# closes a loop; an nn.Module may be one, and is trained through `unroll`
Controller = Callable[[Any, Control, Any], Control] | ControllerWithMemory


def remembers(controller: Controller | None) -> TypeGuard[ControllerWithMemory]:
    """Return whether a controller has a memory."""
    return callable(getattr(controller, "initial", None))


def begun(
    controller: Controller | None,
    model: Any,
    state: BatchState,
    integrator: Any,
    steps: int,
    memory: Memory | None = None,
) -> dict[str, Tensor]:
    """Return the memory at the start of a run of `steps` steps; {} for a controller without memory, or None.

    Parameters
    ----------
    integrator : steps the model; a controller with memory needs one that steps in time, by `dt`.
    memory : of an earlier run that ended in `state`; by default the controller's initial one.

    Raises
    ------
    InputError
        The memory does not fit, or the controller refuses the run.
    """
    if memory is not None:
        whose = "memory" if controller is None else f"memory of {name_of(controller)}"
        refuse_other_kind(whose, memory, Mapping, "tensors by name, such as `memory` of an earlier run")
    if not remembers(controller):
        if memory:
            raise InputError(f"memory: the run has no controller that remembers; got {', '.join(memory)}")
        return {}
    name = name_of(controller)
    dt = getattr(integrator, "dt", None)
    if dt is None:
        raise InputError(
            f"{name}: a controller with memory acts over time, and {type(integrator).__name__} has none: take an "
            "integrator with a time step, such as ImplicitEuler"
        )
    check = getattr(controller, "check", None)
    if check is not None:
        check(model, state, dt, steps)
    initial = _checked(name, controller.initial(model, state), state.batch)
    if memory is None:
        return initial
    return _like(f"memory of {name}", memory, initial)


def answered(
    controller: Controller | None, state: BatchState, memory: Memory, control: Control, model: Any
) -> tuple[Control, Memory]:
    """Return the control of the step from `state` as the controller changes it, and the memory after the step."""
    if controller is None:
        return control, memory
    name = name_of(controller)
    if not remembers(controller):
        return expected(controller(state, control, model), "controller", controller), memory  # type: ignore
    answer = controller(state, memory, control, model)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)):
        raise InputError(
            f"the controller {name} has a memory, so it has to return (Control, memory) for each step, got "
            f"{type(answer).__name__}"
        )
    return expected(answer[0], "controller", controller), _like(f"memory of {name}", answer[1], memory)


def kept(before: Memory, after: Memory, stepped: Tensor) -> dict[str, Tensor]:
    """Return the memory after a step: `after` for robots that were `stepped` (B,) without failure, else `before`."""
    return {name: where_rows(stepped, after[name], value) for name, value in before.items()}


def expected(control: object, role: str, function: object) -> Control:
    """Return the result of a schedule or controller; refuse anything but a control."""
    if not isinstance(control, Control):
        got = "None" if control is None else type(control).__name__
        raise InputError(
            f"the {role} {name_of(function)} has to return a Control for each step, got {got}; Control() sets nothing"
        )
    return control


def _checked(name: str, memory: Memory, batch: int) -> dict[str, Tensor]:
    """Return an initial memory; refuse names, dtypes and shapes that files cannot hold."""
    refuse_other_kind(f"{name}.initial", memory, Mapping, "a mapping of names to tensors")
    for label, value in memory.items():
        if not (isinstance(label, str) and NAME.fullmatch(label)):
            raise InputError(f"{name}.initial: expected names of letters, digits and _, got {label!r}")
        if not isinstance(value, Tensor) or value.dtype not in DTYPES:
            got = value.dtype if isinstance(value, Tensor) else type(value).__name__
            dtypes = ", ".join(map(str, DTYPES))
            raise InputError(f"{name}.initial: {label}: expected a tensor of {dtypes}, got {got}")
        if not value.dim() or len(value) != batch:
            raise InputError(
                f"{name}.initial: {label}: expected a row for each of {batch} robots, got shape {tuple(value.shape)}"
            )
    return dict(memory)


def _like(label: str, memory: Memory, previous: Memory) -> dict[str, Tensor]:
    """Return a memory; refuse one whose names, shapes or dtypes differ from those of the one before."""
    if memory.keys() != previous.keys():
        raise InputError(f"{label}: expected {_listed(previous)}, got {_listed(memory)}")
    for name, like in previous.items():
        value = memory[name]
        if value.shape != like.shape or value.dtype != like.dtype:
            raise InputError(
                f"{label}: {name}: expected shape {tuple(like.shape)} in {like.dtype}, got {tuple(value.shape)} in "
                f"{value.dtype}"
            )
    return dict(memory)


def _listed(memory: Memory) -> str:
    return ", ".join(memory) or "nothing"


def name_of(controller: object) -> str:
    """Return the name of a schedule or controller in messages: that of its class, also if it is parametrized."""
    kind = type(controller)
    if isinstance(controller, nn.Module) and parametrize.is_parametrized(controller):
        kind = kind.__mro__[1]
    return getattr(controller, "__name__", kind.__name__)
