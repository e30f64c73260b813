"""RecordedAdjoint: the recorded backward pass of a step, one evaluation and one solve, on static buffers.

It takes the inputs of the step, q at its root, and the gradients by the state after it. It gives the gradients by those
inputs that require them, and whether some matrix was singular. On a CPU it is a tape, on a GPU a CUDA graph with all of
autograd in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdismech.fused import differentiated
from torchdismech.integrate.candidates import (
    LoadsOfRecording,
    LoadsWithPairs,
    PairsOfStep,
    PointLoads,
    PointsOfRecording,
    StepContacts,
)
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.gradients.adjoint import Adjoint, Gradients, gradients_at_root, with_zeros
from torchdismech.integrate.gradients.point_conditions import PointConditions
from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.integrate.recorded.lasting_pairs import LastingPairs
from torchdismech.integrate.recorded.step_kind import StepKind
from torchdismech.native.buffers import StaticBuffers
from torchdismech.native.graphs import Recording, memory_pool, recorded
from torchdismech.native.step_loop import PerStep, PerStepInstructions, StepCalls, StepLoop
from torchdismech.native.tape import Tape
from torchdismech.values import Values

__all__ = ["RecordedAdjoint"]


class BackwardResults(NamedTuple):
    """The results of a recorded backward pass.

    Attributes
    ----------
    gradients : by the inputs that require one, in their order; None where nothing depends on an input.
    singular : () whether some matrix could not be factored.
    """

    gradients: Gradients
    singular: Tensor


class RecordedAdjoint:
    """The recorded backward pass of steps of a kind, by those inputs of the steps that require gradients.

    Its static buffers are, in this order, the inputs (see `InputLayout`), q at the root, the gradients by the fields of
    the state after the step, and the loads of contacts, if any.

    Parameters
    ----------
    kind : of the steps.
    recipe : of one of them.
    inputs : of this step, as its recording takes them.
    q : (B, n) at its root.
    gradients : by the fields of the state after it; None for fields whose gradients are zero in all steps that this is
        for.
    pool : memory for intermediate results; None: that of the recorded step.
    load : (B, C, 3) of the points of obstacles that are constraints, see `PointLoads`, or with pairs of all contacts
        that are constraints, see `load_of`; None where none bears any.
    pairs : the pairs of parts that may touch; None where none touch. They are given those of each step.
    """

    def __init__(
        self,
        kind: StepKind,
        recipe: StepRecipe,
        inputs: Sequence[Tensor],
        q: Tensor,
        gradients: Sequence[Tensor | None],
        pool: Any = None,
        load: Tensor | None = None,
        pairs: LastingPairs | None = None,
    ) -> None:
        self._kind, self._layout, self._pairs = kind, kind.layout, pairs
        self._pool = kind.static.pool if pool is None else pool
        self._requires = [tensor.requires_grad for tensor in inputs]
        self._left_out = [gradient is None for gradient in gradients]
        # places of q and of the first gradient among the buffers
        self._q, self._first_gradient = len(inputs), len(inputs) + 1
        buffers = [*inputs, q, *[q.new_empty(0) if gradient is None else gradient for gradient in gradients]]
        self._load = None if load is None else len(buffers)  # place of the loads among the buffers
        buffers += [] if load is None else [load]
        self._buffers = StaticBuffers(buffers)
        self._static = self._buffers.tensors
        controls = [name for name in recipe.controls if kind.all_forces or name != "force"]
        self._dt = q.new_empty(())
        self._recipe = dataclasses.replace(
            recipe,
            dt=self._dt,
            running=self._static[self._layout.running],
            controls=tuple(controls),
            places=Values(),
            axes_of_values=[],
        )
        self._singular: Tensor | None = None
        self._give(recipe.dt, buffers)
        self._contacts = self._contacts_of_recording()
        with recipe.model.turn:
            self._tape: Recording[BackwardResults] = recorded(self._at_root, q.device, self._pool)
        # derivatives do not read an input in which residual and state are linear
        self._buffers.read_by(self._tape.reads)
        by_state = self._by_inputs(self._tape.outputs.gradients)[self._layout.state]
        # fields of a state whose gradient is read after the step, but none is found before it
        self._unreached = [g is None and self._reads_gradient(field) for field, g in enumerate(by_state)]
        self._without_zeros: RecordedAdjoint | None = None

    def load_of(self, contacts: StepContacts | PointsOfRecording | LoadsOfRecording | None) -> list[Tensor]:
        """Return the loads of a step as the buffer for them takes them; [] where there is none."""
        if isinstance(contacts, LoadsWithPairs):
            assert self._pairs is not None
            return [self._pairs.in_room(contacts.load)]
        return [contacts.load] if isinstance(contacts, PointLoads) else []

    def replayed(
        self, dt: float | Tensor, tensors: Sequence[Tensor | None], accepted: Tensor | None = None
    ) -> list[Tensor | None] | None:
        """Return the gradients by the inputs, None for those that require none, and where nothing depends on them.

        Where a matrix is singular, or some robot was not solved, None is returned in place of the list: the caller then
        differentiates without the recording.

        Parameters
        ----------
        tensors : the inputs, q at the root, the gradients by the fields of the state after the step, and the loads of
            contacts, if any; None leaves one as in the step before.
        accepted : (B,) robots that were solved; None: all were.
        """
        self._give(dt, tensors)
        results = self._tape.replay()
        unusable = results.singular if accepted is None else results.singular | ~accepted.all()
        if bool(unusable):  # the one thing that the host waits for
            return None
        return self._by_inputs(results.gradients)

    def without_zeros(self, inputs: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]) -> RecordedAdjoint:
        """Return the recording that differentiates such a step: this, or one without gradients that are always zero.

        A step reads nothing of some fields of the state before it that has a gradient: mostly no acceleration, and of
        the reference twist only its branch. So within a run, where gradients come from the next step, those by these
        fields are zero.
        """
        has_unreached = [g is not None for g, unreached in zip(gradients, self._unreached, strict=True) if unreached]
        if not q.is_cpu or not has_unreached or any(has_unreached):
            return self
        if self._without_zeros is None:
            leaves = [t.detach().requires_grad_(require) for t, require in zip(inputs, self._requires, strict=True)]
            gradients_and_unreached = zip(with_zeros(gradients, inputs), self._unreached, strict=True)
            reached_gradients = [None if unreached else gradient for gradient, unreached in gradients_and_unreached]
            load = None if self._load is None else self._static[self._load]
            self._without_zeros = RecordedAdjoint(
                self._kind, self._recipe, leaves, q, reached_gradients, self._pool, load, self._pairs
            )
        return self._without_zeros

    def another(self) -> RecordedAdjoint:
        """Return a recording of the same backward pass on memory of its own, for another thread; not with contacts."""
        assert self._contacts is None
        leaves = [t.detach().requires_grad_(require) for t, require in zip(self._static, self._requires, strict=False)]
        given = zip(self._static[self._first_gradient :], self._left_out, strict=True)
        gradients = [None if left_out else gradient for gradient, left_out in given]
        pool = memory_pool(self._dt.device)
        return RecordedAdjoint(self._kind, self._recipe, leaves, self._static[self._q], gradients, pool)

    # ---- gradients by the state after a step, and from step to step --------------------------------------------------

    @property
    def reads(self) -> frozenset[int]:
        """The places of the buffers that the recording reads: inputs, q, and gradients by the state after the step."""
        return frozenset(self._buffers.places)

    def given_gradients(self) -> list[Tensor]:
        """Return copies of the gradients by the state after the last step, as they were given; zeros if not read."""
        fields = enumerate(self._static[self._layout.state])
        return [
            self._gradient(k).clone() if self._reads_gradient(k) else torch.zeros_like(field) for k, field in fields
        ]

    def gradients_read(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return gradients by the state after the step, None where they are not read, zeros for others at None."""
        read = self.reads
        return [
            (torch.zeros_like(self._static[k]) if gradient is None else gradient) if k in read else None
            for k, gradient in enumerate(gradients, self._first_gradient)
        ]

    def give_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Copy gradients by the fields of the state after a step to the buffers; inputs and q stay as they are."""
        self._buffers.give([*[None] * self._first_gradient, *self.gradients_read(gradients)])

    def last_gradients(self) -> list[Tensor | None]:
        """Return the gradients of the last step by all inputs, in memory that the next step overwrites."""
        return self._by_inputs(self._tape.outputs.gradients)

    def loop(
        self,
        inputs: Sequence[tuple[int, PerStep]],
        q: PerStep,
        by_steps: Sequence[tuple[int, PerStep]],
        totals: Sequence[tuple[int | None, Tensor | None]],
    ) -> StepLoop | None:
        """Return a compiled loop that differentiates the steps before the last one; None if something needs Python.

        Before a step the loop copies its inputs and q to the buffers, and adds what the loss contributes by its q and
        velocity. After it the gradients by the state before the step are handed on to the next one, and those by the
        model are added to the totals.

        Parameters
        ----------
        inputs : of the steps, with their places among the inputs.
        q : at the roots of the steps.
        by_steps : gradients that are added to those by the state after each step, with the places of the state's
            fields.
        totals : to which gradients by the model's tensors are added, with their places among the inputs.
        """
        gradients, places_read = self.last_gradients(), self.reads
        handed_on = [None if self._stands_there(field, g) else g for field, g in enumerate(gradients)]
        in_buffers = any(gradient is not None and self._buffers.hold(gradient) for gradient in handed_on)
        if in_buffers or not isinstance(self._tape, Tape) or any(gradients[field] is None for field, _ in by_steps):
            return None
        before, after = PerStepInstructions(), PerStepInstructions()
        for place, values in [*inputs, (self._q, q)]:
            if place in places_read:
                before.add("copy", self._static[place], values)
        for field, values in by_steps:
            if self._reads_gradient(field):
                before.add("add", self._gradient(field), self._gradient(field), values)
        for field, gradient in enumerate(handed_on[self._layout.state]):
            if self._reads_gradient(field) and gradient is not None:
                after.add("copy", self._gradient(field), gradient)
        for place_of_tensor, total in totals:
            by_tensor = None if place_of_tensor is None else gradients[place_of_tensor]
            if by_tensor is None:
                continue
            if total is None:
                return None  # there is nothing yet to add it to
            after.add("add", total, total, by_tensor)
        return StepLoop(StepCalls(self._tape.table), before, after, [self._tape.outputs.singular])

    def _stands_there(self, place: int, gradient: Tensor | None) -> bool:
        """Return whether a gradient by an input stands in the buffer that the next step reads, and needs no copy."""
        if place >= self._layout.state.stop or gradient is None:
            return False
        return gradient.data_ptr() == self._gradient(place).data_ptr()

    def _gradient(self, field: int) -> Tensor:
        """Return the buffer of the gradient by a field of the state after the step."""
        return self._static[self._first_gradient + field]

    def _reads_gradient(self, field: int) -> bool:
        return self._first_gradient + field in self._buffers.places

    def _by_inputs(self, gradients: Gradients) -> list[Tensor | None]:
        """Return the gradients by all inputs, None if not required, from those by the inputs that require one."""
        by_required = iter(gradients)
        return [next(by_required) if require else None for require in self._requires]

    def _give(self, dt: float | Tensor, tensors: Sequence[Tensor | None]) -> None:
        """Copy the inputs of a step, q and gradients to the buffers that are read, and set dt."""
        self._buffers.give(tensors)
        self._dt.fill_(dt)

    # ---- what is recorded ------------------------------------------------------------------------------------------

    def _contacts_of_recording(self) -> PointsOfRecording | LoadsOfRecording | PairsOfStep | None:
        """Return the contacts of steps on the static buffers; None where nothing touches."""
        pairs, state, control = self._pairs, self._layout.state, self._layout.control
        if self._load is None:
            return None if pairs is None else PairsOfStep(pairs.pairs)
        load = self._static[self._load]
        with self._kind.values(self._static).in_place():
            problem = self._recipe.problem([*self._static[state], *self._static[control]])
            return (
                PointsOfRecording(problem, load)
                if pairs is None
                else LoadsOfRecording(pairs.constrain(problem), pairs.pairs, load)
            )

    def _at_root(self) -> BackwardResults:
        recipe, layout = self._recipe, self._layout
        inputs = [t.detach().requires_grad_(require) for t, require in zip(self._static, self._requires, strict=False)]
        q, gradient_buffers = self._static[self._q], self._static[self._first_gradient :]
        gradients = [
            None if left_out else gradient for left_out, gradient in zip(self._left_out, gradient_buffers, strict=False)
        ]
        recipe = dataclasses.replace(recipe, candidates=self._contacts)
        if layout.load is not None:
            mechanics = self._kind.static.mechanics.of_robots_in(None)
            recipe = dataclasses.replace(recipe, mechanics=mechanics, load=inputs[layout.load])
        leaves = [*inputs[layout.state], *inputs[layout.control]]
        wanted = [tensor for tensor, require in zip(inputs, self._requires, strict=True) if require]
        all_rows = torch.ones(len(q), dtype=torch.bool, device=q.device)
        by_loops = nullcontext() if not q.is_cpu and recipe.model.compilation.active else differentiated()
        with self._kind.values(inputs).in_place(), by_loops:
            by_wanted = gradients_at_root(recipe, leaves, None, q, all_rows, gradients, wanted, self._multipliers)
        assert self._singular is not None
        return BackwardResults(by_wanted, self._singular)

    def _multipliers(self, equations: StepEquations, x: Tensor, values: Tensor, rhs: Tensor, rows: Tensor) -> Adjoint:
        """Return the solution of the adjoint equations; `_singular` keeps whether some matrix has none."""
        with torch.no_grad():
            if equations.constraints is not None:
                conditions = PointConditions(equations, x, values, rhs, rows)
                self._singular = ~conditions.ok.all()
                of_forces, of_contacts = conditions.multipliers
                return of_forces, conditions, of_contacts
            factor, _ = equations.solver().factor_any_sign(values, rows=rows)
            self._singular = ~factor.ok.all()
            return factor.solve(rhs, transpose=True), None, None
