"""StaticProblem: a step whose tensors stay at fixed addresses, for recordings to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.errors import warn
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.model.mechanics import Mechanics
from torchdismech.native.buffers import StaticBuffers
from torchdismech.native.graphs import Recording, memory_pool, recorded
from torchdismech.robot.state import Control, State
from torchdismech.values import Values

T = TypeVar("T")

__all__ = ["StaticProblem", "outside_inference_mode", "recorded_mid_step", "warn_of_memory"]


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Let tensors be made in the block that later steps can write to.

    Tensors that are made in inference mode could not be written to outside of it.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


@outside_inference_mode()
def recorded_mid_step(
    function: Callable[[], T], written: Sequence[Tensor], device: torch.device, pool: Any
) -> Recording[T]:
    """Return the recording of a function, made in the middle of a step.

    Recording runs the function; the tensors that it writes to, listed in `written`, get their numbers back afterwards.
    """
    numbers_before = [tensor.clone() for tensor in written]
    try:
        return recorded(function, device, pool)
    finally:
        for tensor, numbers in zip(written, numbers_before, strict=True):
            tensor.copy_(numbers)


def warn_of_memory(what: str) -> None:
    """Warn that `what` goes on without a recording for lack of GPU memory, and give unused memory back."""
    torch.cuda.empty_cache()
    warn(
        f"{what} on this GPU go on without recordings, slower, as its memory does not hold one beside what is there: "
        "take fewer robots at a time (Integrator(chunk=...))",
        RuntimeWarning,
    )


class StaticProblem:
    """A step on static buffers, tensors at fixed addresses to which the inputs of each step of a kind are copied.

    Parameters
    ----------
    kind : of the steps.
    problem : one of them.
    shaped : tensors whose shapes the buffers of their places are to have, so that a constant that all robots share now
        can later be given per robot.

    Attributes
    ----------
    values : the static buffers of the model's tensors, by their places.
    problem : the step on static buffers; its dt is a tensor ().
    load : (B, n) buffer of the sum of the external forces that do not change within a step; None where `mechanics`
        evaluates these forces.
    mechanics : what recordings evaluate: without these forces, if their sum is given.
    pool : the memory in which recordings keep their intermediate results.
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
        self.values, self._turn = kind.values(static), model.turn
        self.problem = problem.replace(state=state, control=control, running=running, dt=self._dt, values=self.values)
        mechanics = model.mechanics
        without_held_force = _MechanicsWithoutHeldForce(
            model.body, model.terms, model.forces, mechanics.self_contacts, mechanics.layout
        )
        self.mechanics = (mechanics if kind.all_forces else without_held_force).of_robots_in(kind.plane)
        self.pool = memory_pool(model.device)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Let the model hold the static buffers in the block; other threads with recordings of it wait for that."""
        with self._turn, self.values.in_place():
            yield

    def prepared_equations(
        self, constraints: ConstraintSet | None = None, pairs: StepPairs | None = None
    ) -> StepEquations:
        """Return the equations of the step on the static buffers, prepared.

        Parameters
        ----------
        constraints, pairs : the contacts that are constraints, and the pairs of parts that may touch; None: none.
        """
        equations = self.problem.equations(pairs, constraints, self.mechanics)
        if self.load is not None:
            equations.load = self.load
        equations.prepare()
        return equations

    def give(self, inputs: Sequence[Tensor | None], dt: float | Tensor) -> None:
        """Copy the inputs of a step and dt to the static buffers; an input of None stays as in the step before."""
        self._buffers.give(self._expanded(inputs) if self._shapes else inputs)
        if dt is not self._last_dt or isinstance(dt, Tensor):  # a tensor may have been changed in place
            self._dt.fill_(dt)
            self._last_dt = dt

    def buffers(self) -> Sequence[Tensor]:
        """Return the static buffers of the inputs, in their order."""
        return self._buffers.tensors

    def give_control(self, control: Control) -> None:
        """Copy a control that sets the same fields to the static buffers."""
        for buffer, tensor in zip(self.control_tensors(), control.tensors().values(), strict=True):
            buffer.copy_(tensor)

    def control_tensors(self) -> Iterable[Tensor]:
        """Return the static buffers of the control."""
        return self.problem.control.tensors().values()

    def _expanded(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs, expanded where their buffers have a larger shape."""
        expanded = [*inputs]
        for k, shape in self._shapes.items():
            expanded[k] = None if inputs[k] is None else inputs[k].expand(shape)
        return expanded


class _MechanicsWithoutHeldForce(Mechanics):
    """Mechanics without the external forces that do not change within a step: recordings are given their sum."""

    def held_force(self, state: State, control: Control) -> Tensor:
        """Return zeros (B, n): these forces are in the given sum."""
        return torch.zeros_like(state.q)
