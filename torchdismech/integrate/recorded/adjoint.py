"""RecordedAdjoint: the backward pass of a step, one evaluation and one solve, on static buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from torchdismech.fused import differentiated
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.gradients.adjoint import Adjoint, Gradients, StepRecipe, gradients_at_root, with_zeros
from torchdismech.integrate.recorded.kinds import StepKind
from torchdismech.native.buffers import StaticBuffers
from torchdismech.native.graphs import recorded
from torchdismech.native.step_loop import PerStep, PerStepInstructions, StepCalls, StepLoop
from torchdismech.native.tape import Tape
from torchdismech.values import Values

__all__ = ["RecordedAdjoint"]


class RecordedAdjoint:
    """The gradients of steps of a kind on static buffers, by those inputs of the steps that require them.

    Parameters
    ----------
    kind : of the steps.
    recipe : of one of them.
    inputs : what the kind's recordings are given in it.
    q, gradients : see `gradients.recorded_gradients`; None for those that are zero in all steps that this is for.
    """

    def __init__(
        self,
        kind: StepKind,
        recipe: StepRecipe,
        inputs: Sequence[Tensor],
        q: Tensor,
        gradients: Sequence[Tensor | None],
    ) -> None:
        self._kind, self._needs = kind, [tensor.requires_grad for tensor in inputs]
        self._left_out = [gradient is None for gradient in gradients]
        given = [*inputs, q, *[q.new_empty(0) if gradient is None else gradient for gradient in gradients]]
        self._buffers = StaticBuffers(given)
        self._static = self._buffers.tensors
        running = self._static[recipe.n_state]
        controls = [name for name in recipe.controls if kind.all_forces or name != "force"]
        self._recipe = dataclasses.replace(
            recipe, dt=q.new_empty(()), running=running, controls=tuple(controls), places=Values(), axes_of_values=[]
        )
        self._lost: Tensor | None = None
        self._give(recipe.dt, given)
        self._tape: Any = recorded(self._at_root, q.device, kind.recording.pool)
        self._buffers.read_by(self._tape.reads)  # a step's residual and state are linear in much of the state before
        found, _ = self._tape.outputs
        # fields whose gradients are read here, of the state after the step, and found none of, of the state before it
        self._unreached = [
            gradient is None and len(inputs) + 1 + k in self.reads
            for k, gradient in enumerate(self._by_inputs(found)[: recipe.n_state])
        ]
        self._without_zeros: RecordedAdjoint | None = None

    @property
    def reads(self) -> frozenset[int]:
        """Which of the inputs, q and gradients by the state after the step are read, by their places."""
        return frozenset(self._buffers.places)

    def given_gradients(self) -> list[Tensor]:
        """Return copies of the last gradients that were given; zero for those that nothing depends on."""
        first, read = len(self._needs) + 1, self.reads
        fields = enumerate(self._static[: self._recipe.n_state], first)
        return [self._static[k].clone() if k in read else torch.zeros_like(field) for k, field in fields]

    def gradients_read(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return those of some gradients by the state after the step that are read, where None is zero, else None."""
        first, read = len(self._needs) + 1, self.reads
        return [
            (torch.zeros_like(self._static[k]) if gradient is None else gradient) if k in read else None
            for k, gradient in enumerate(gradients, first)
        ]

    def give_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Give a step gradients by the fields of the state after it, and all else as for the step before."""
        self._buffers.give([*[None] * (len(self._needs) + 1), *self.gradients_read(gradients)])

    def found(self) -> list[Tensor | None]:
        """Return the gradients of the last step by the inputs, where the next step writes."""
        return self._by_inputs(self._tape.outputs[0])

    def in_turn(
        self,
        given: Sequence[tuple[int, PerStep]],
        q: PerStep,
        by_steps: Sequence[tuple[int, PerStep]],
        totals: Sequence[tuple[int | None, Tensor | None]],
    ) -> StepLoop | None:
        """Return what `RecordedSteps.in_turn` does; inputs and totals with the places among the inputs."""
        found, lost = self.found(), self._tape.outputs[1]
        first, read = len(self._needs) + 1, self.reads
        on = [self._handed_on(place, gradient) for place, gradient in enumerate(found)]
        held = any(gradient is not None and self._buffers.hold(gradient) for gradient in on)
        if held or not isinstance(self._tape, Tape) or any(found[field] is None for field, _ in by_steps):
            return None
        before, after = PerStepInstructions(), PerStepInstructions()
        for place, each in [*given, (len(self._needs), q)]:
            if place in read:
                before.add("copy", self._static[place], each)
        for field, each in by_steps:
            own = self._static[first + field]
            if first + field in read:
                before.add("add", own, own, each)
        for field, gradient in enumerate(on[: self._recipe.n_state]):
            if first + field in read and gradient is not None:
                after.add("copy", self._static[first + field], gradient)
        for of_value, total in totals:
            more = None if of_value is None else found[of_value]
            if more is None:
                continue
            if total is None:
                return None  # there is nothing yet to add it to
            after.add("add", total, total, more)
        return StepLoop(StepCalls(self._tape.table), before, after, [lost])

    def _handed_on(self, place: int, gradient: Tensor | None) -> Tensor | None:
        """Return a gradient that a step is to be given; None where it stands there already, as it is handed through."""
        own = self._static[len(self._needs) + 1 + place] if place < self._recipe.n_state else None
        same = own is not None and gradient is not None and gradient.data_ptr() == own.data_ptr()
        return None if same else gradient

    def without_zeros(self, inputs: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]) -> RecordedAdjoint:
        """Return what differentiates such a step: this, or a recording that leaves out what is zero.

        A step reads of some fields of the state before it nothing that has a gradient: no acceleration, mostly, and of
        the reference twist only on which branch it is. Within a run the gradients by these fields are therefore zero.
        """
        given = [g is not None for g, unreached in zip(gradients, self._unreached, strict=True) if unreached]
        if not q.is_cpu or not given or any(given):
            return self
        if self._without_zeros is None:
            own = [t.detach().requires_grad_(need) for t, need in zip(inputs, self._needs, strict=True)]
            every = zip(with_zeros(gradients, inputs), self._unreached, strict=True)
            others = [None if unreached else gradient for gradient, unreached in every]
            self._without_zeros = RecordedAdjoint(self._kind, self._recipe, own, q, others)
        return self._without_zeros

    def replayed(
        self, dt: float | Tensor, given: Sequence[Tensor | None], accepted: Tensor | None = None
    ) -> list[Tensor | None] | None:
        """Return the gradients by the inputs, None for those that require none, and where nothing depends on them.

        Where a matrix is singular, or some robot was not accepted (B,), None is returned in place of the list: the
        caller then differentiates without the recording.

        Parameters
        ----------
        given : inputs, q at the root, and the gradients by the fields of the state after the step; None: as for the
            step before.
        """
        self._give(dt, given)
        found, lost = self._tape.replay()
        left = lost if accepted is None else lost | ~accepted.all()
        if bool(left):  # the one thing that the host waits for
            return None
        return self._by_inputs(found)

    def _by_inputs(self, found: Gradients) -> list[Tensor | None]:
        """Return the gradients by the inputs, of those by the inputs that require one."""
        by_needed = iter(found)
        return [next(by_needed) if need else None for need in self._needs]

    def _give(self, dt: float | Tensor, given: Sequence[Tensor | None]) -> None:
        """Write what a step is given to the static buffers, as far as it is read."""
        self._buffers.give(given)
        assert isinstance(self._recipe.dt, Tensor)
        self._recipe.dt.fill_(dt)

    def _at_root(self) -> tuple[Gradients, Tensor]:
        """Return the gradients, and whether some matrix could not be factored."""
        recipe, count = self._recipe, len(self._needs)
        inputs = [t.detach().requires_grad_(need) for t, need in zip(self._static, self._needs, strict=False)]
        q, *given = self._static[count:]
        gradients = [None if left_out else gradient for left_out, gradient in zip(self._left_out, given, strict=True)]
        state, rest = inputs[: recipe.n_state], inputs[recipe.n_state + 1 :]  # the rows that run stand between
        if not self._kind.all_forces:
            load, *rest = rest
            recipe = dataclasses.replace(recipe, mechanics=self._kind.recording.mechanics.of_robots_in(None), load=load)
        own, moved = [*state, *rest[: len(recipe.controls)]], rest[len(recipe.controls) :]
        values = Values(dict(zip(self._kind.movable_places, moved, strict=True)))
        wanted = [tensor for tensor, need in zip(inputs, self._needs, strict=True) if need]
        every = torch.ones(len(q), dtype=torch.bool, device=q.device)
        by_loops = nullcontext() if not q.is_cpu and recipe.model.compilation.active else differentiated()
        with values.in_place(), by_loops:
            found = gradients_at_root(recipe, own, None, q, every, gradients, wanted, self._multipliers)
        assert self._lost is not None
        return found, self._lost

    def _multipliers(self, equations: StepEquations, x: Tensor, values: Tensor, rhs: Tensor, rows: Tensor) -> Adjoint:
        """Return the solution of the adjoint equations; whether there is one is kept."""
        with torch.no_grad():
            factor = equations.solver().factor(values, rows=rows)
            self._lost = ~factor.ok.all()
            return factor.solve(rhs, transpose=True), None, None
