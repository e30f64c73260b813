"""StaticProblem: a step on memory that stays where it is, which recordings read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchdismech.errors import warn
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.model.mechanics import Mechanics
from torchdismech.native.buffers import StaticBuffers
from torchdismech.native.graphs import Recording, memory_pool, recorded
from torchdismech.robot.state import Control, State
from torchdismech.values import Values

T = TypeVar("T")

__all__ = ["StaticProblem", "lasting", "recorded_beside", "warn_of_memory"]


@contextmanager
def lasting() -> Iterator[None]:
    """Make what later steps write to: tensors made in inference mode could not be written to outside of it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@lasting()
def recorded_beside(
    function: Callable[[], T], written: Sequence[Tensor], device: torch.device, pool: Any
) -> Recording[T]:
    """Return the recording of a function that is made in the middle of a step: what it writes then is put back."""
    before = [tensor.clone() for tensor in written]
    try:
        return recorded(function, device, pool)
    finally:
        for own, tensor in zip(written, before, strict=True):
            own.copy_(tensor)


def warn_of_memory(what: str) -> None:
    """Warn that something goes on without a recording, as a GPU has no memory for it, and give unused memory back."""
    torch.cuda.empty_cache()
    warn(
        f"{what} on this GPU go on without recordings, slower, as its memory does not hold one beside what is there: "
        "take fewer robots at a time (Integrator(chunk=...))",
        RuntimeWarning,
    )


class StaticProblem:
    """Static buffers for all that steps of a kind are given, and the step on them.

    Parameters
    ----------
    kind : of the steps.
    problem : one of them.
    shaped : values whose shapes their buffers are to have, as numbers that one robot has may be given to each.

    Attributes
    ----------
    values : the static buffers in the places of the model's tensors.
    problem : the step on static buffers; its dt is a tensor ().
    load : (B, n) the sum of the external forces that do not change within a step; None where `mechanics` has them.
    mechanics : what recordings evaluate: without these forces, if their sum is given.
    pool : where what recordings make on the way lives.
    """

    def __init__(self, kind: StepKind, problem: StepProblem, shaped: Values | None = None):
        model, inputs, layout = problem.model, kind.inputs(problem), kind.layout
        numbered = enumerate(kind.movable_places, layout.model.start)
        shapes = {} if shaped is None else {place: tensor.shape for place, tensor in shaped}
        self._shapes = {k: shapes[place] for k, place in numbered if place in shapes}
        self._buffers = StaticBuffers(self._expanded(inputs))
        self._dt = torch.empty((), dtype=model.dtype, device=model.device)
        self._last_dt: float | Tensor | None = None
        static = self._buffers.tensors
        state, running = problem.state.with_fields(static[layout.state]), static[layout.running]
        self.load = None if layout.load is None else static[layout.load]
        control = Control.of(dict(zip(kind.controls(problem.control), static[layout.control], strict=True)))
        self.values = kind.values(static)
        self.problem = problem.replace(state=state, control=control, running=running, dt=self._dt, values=self.values)
        own = model.mechanics
        varies = _Varying(model.body, model.terms, model.forces, own.self_contacts, own.layout)
        self.mechanics = (own if kind.all_forces else varies).of_robots_in(kind.plane)
        self.pool = memory_pool(model.device)

    def give(self, inputs: Sequence[Tensor | None], dt: float | Tensor) -> None:
        """Write what a step is given to the static buffers; None leaves what the step before was given."""
        self._buffers.give(self._expanded(inputs) if self._shapes else inputs)
        if dt is not self._last_dt or isinstance(dt, Tensor):  # the numbers of a tensor may be others
            self._dt.fill_(dt)
            self._last_dt = dt

    def give_control(self, control: Control) -> None:
        """Write another control to the static buffers, one that sets the same fields."""
        for own, given in zip(self.control_tensors(), control.tensors().values(), strict=True):
            own.copy_(given)

    def control_tensors(self) -> Iterable[Tensor]:
        """Return the static buffers of the control."""
        return self.problem.control.tensors().values()

    def _expanded(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs, those expanded whose buffers have other shapes."""
        expanded = [*inputs]
        for k, shape in self._shapes.items():
            expanded[k] = None if inputs[k] is None else inputs[k].expand(shape)
        return expanded


class _Varying(Mechanics):
    """A robot's mechanics but for the external forces that do not change within a step: their sum is an input."""

    def held_force(self, state: State, control: Control) -> Tensor:
        """Return none (B, n)."""
        return torch.zeros_like(state.q)
