"""Gradients of recorded steps, recorded themselves: what `recording.py` says of steps holds for them, too.

Where the robots of a batch are few, and on a GPU, a backward pass is Python as well: some thousand calls of torch and
of its autograd for one evaluation and one solve. A step that a recording took is differentiated by another one, of the
same kind: on a CPU a tape, once some were differentiated without; on a GPU a CUDA graph, with the whole of autograd in
it, of which the host waits for one flag: whether all robots were solved and have gradients.

It gives the gradients by all that the kind's recordings are given: state, control, the sum of loads of users' own that
do not change within a step, and the model's tensors that may be others in the next step, as they are evaluated. From
these on to the tensors that they are made of (weights of learned loads,
`trainable.scaled` and other parametrizations) autograd goes as ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from torchdismech.fused import differentiated, watched
from torchdismech.integrate.chunks import of_parts
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.forward import SolvedPart
from torchdismech.integrate.gradients.adjoint import Adjoint, Gradients, StepRecipe, gradients_at_root, with_zeros
from torchdismech.integrate.recorded.kinds import StepKind
from torchdismech.integrate.recorded.recording import warn_of_memory
from torchdismech.model.registration import refuse_unregistered
from torchdismech.native.buffers import StaticBuffers
from torchdismech.native.graphs import Unrecordable, recorded
from torchdismech.native.steps import EachStep, StepCalls, StepsInTurn, VaryingRows
from torchdismech.native.tape import Tape
from torchdismech.values import Values

__all__ = ["RecordedParts", "RecordedSteps", "recorded_gradients"]

# Steps of a kind that are differentiated before it is recorded: on a CPU that takes about as long as these; on a GPU
# what users wrote is held against autograd in these, and without users' code there is nothing to wait for.
PASSES_BEFORE_RECORDING = 8


def recorded_gradients(
    recipe: StepRecipe,
    leaves: Sequence[Tensor],
    q: Tensor,
    accepted: Tensor | None,
    gradients: Sequence[Tensor | None],
    wanted: Sequence[Tensor],
) -> Gradients | None:
    """Return the gradients by the tensors in `wanted` of a step that solved all robots; None where no recording serves.

    They stand where the next step of the kind writes.

    Parameters
    ----------
    leaves : of state, control and model; the latter stand in the model.
    q : (B, n) at the root.
    accepted : (B,) robots that were solved; None: all were.
    gradients : by the fields of the state after the step; None is zero.
    """
    kind: StepKind | None = recipe.recorded_as
    if kind is None or kind.recording is None or kind.gradients_refused or watched():
        return None
    problem = recipe.problem(leaves)
    if recipe.fitting is not kind:
        snapshot = recipe.snapshot if recipe.unchanged else None
        values = recipe.places.with_tensors(leaves[recipe.n_own :])
        # whatever the plane is, gradients are as in space
        standing = problem.replace(values=values, snapshot=snapshot, plane=kind.plane)
        if not kind.fits(standing) or any(map(kind.captures, recipe.places.tensors)):
            return None
        recipe.fitting = kind if kind.all_forces else None  # loads that users write may change the model
    with torch.enable_grad():
        inputs = kind.inputs(problem)
    if not kind.all_forces:
        with torch.enable_grad():
            load = recipe.n_state + 1
            refuse_unregistered(recipe.model, inputs[load], leaves, lambda: kind.inputs(problem)[load])
    step = _recording(kind, recipe, inputs, q, gradients)
    if step is None:
        return None
    step = step.without_zeros(inputs, q, gradients)
    found = step.replayed(recipe.dt, [*inputs, q, *step.gradients_read(gradients)], accepted)
    return None if found is None else _passed_on(inputs, found, wanted)


class RecordedParts:
    """The gradients of parts of a step that recordings of one kind take: the model is known to fit.

    Parameters
    ----------
    kind : of the parts.
    step : differentiates one.
    given : what it is given of each part, the first of which it was given already.
    places : for each tensor that needs a gradient its place among the step's inputs; None where it is none of them.
    """

    def __init__(
        self,
        kind: StepKind,
        step: RecordedGradients,
        dt: float | Tensor,
        given: Sequence[Sequence[Tensor | None]],
        places: Sequence[int | None],
    ) -> None:
        self._kind, self._step, self._dt, self._given, self._places = kind, step, dt, given, places

    @classmethod
    def of(
        cls,
        recipe: StepRecipe,
        kind: StepKind | None,
        needed: Sequence[tuple[Tensor, bool]],
        q: Tensor,
        gradients: Sequence[Tensor],
    ) -> RecordedParts | None:
        """Return those of a step whose model is known to fit a kind; None where no recording is there for it.

        Parameters
        ----------
        needed : what the step depends on, of all robots, and whether it needs a gradient.
        q : (B, n) at the root.
        gradients : by the fields of the state after the step.
        """
        step, places = (None, []) if kind is None else _recorded_for(recipe, kind, needed)
        if kind is None or step is None:
            return None
        inputs = _inputs(recipe, kind, needed)
        axes, read = [*kind.axes(inputs), *[0] * (1 + len(gradients))], step.reads
        axes = [axis if k in read else None for k, axis in enumerate(axes)]  # the others are not divided
        parts = [solved.part for solved in recipe.parts]
        given = of_parts([*inputs, q, *gradients], axes, parts, [recipe.running, *gradients])
        return cls(kind, step, recipe.dt, given, places)

    def of_part(self, solved: SolvedPart) -> Gradients | None:
        """Return the gradients of a part by what needs one; None where it was solved otherwise, or has to be again.

        They stand where the next step of the kind writes.
        """
        if solved.recorded_as is not self._kind:
            return None
        found = self._step.replayed(self._dt, self._given[solved.part.number])
        return None if found is None else tuple(None if place is None else found[place] for place in self._places)


class RecordedSteps:
    """The gradients of steps of some robots, one after the other, that recordings of one kind take.

    Parameters
    ----------
    step : differentiates one.
    running : (B,) the robots that were stepped.
    moved : the model's tensors among what it is given.
    places : as of `RecordedParts`.
    """

    def __init__(
        self,
        step: RecordedGradients,
        dt: float | Tensor,
        running: Tensor,
        moved: Sequence[Tensor],
        places: Sequence[int | None],
    ) -> None:
        self._step, self._dt, self._running, self._moved, self._places = step, dt, running, moved, places
        self._last: RecordedGradients | None = None

    @classmethod
    def of(
        cls, recipe: StepRecipe, kind: StepKind | None, needed: Sequence[tuple[Tensor, bool]]
    ) -> RecordedSteps | None:
        """Return those of steps whose model is known to fit a kind; None where no recording is there for it.

        Parameters
        ----------
        needed : what one of the steps depends on, and whether it needs a gradient.
        """
        step, places = (None, []) if kind is None else _recorded_for(recipe, kind, needed)
        if kind is None or step is None:
            return None
        inputs = _inputs(recipe, kind, needed)
        return cls(step, recipe.dt, recipe.running, inputs[len(inputs) - len(kind.movable_places) :], places)

    def of_step(
        self, state: Sequence[Tensor], control: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]
    ) -> Gradients | None:
        """Return the gradients of a step by what needs one; None where a matrix is singular.

        They stand where the next step of the kind writes.

        Parameters
        ----------
        state, control : the tensors of those of the step.
        q : (B, n) at the root.
        gradients : by the fields of the state after the step; None is zero.
        """
        own = [*state, self._running, *control]
        step = self._step.without_zeros([*own, *self._moved], q, gradients)
        # what of the model is given once stays for the other steps
        moved = [None] * len(self._moved) if step is self._last else self._moved
        self._last = step
        found = step.replayed(self._dt, [*own, *moved, q, *step.gradients_read(gradients)])
        return None if found is None else tuple(None if place is None else found[place] for place in self._places)

    def given_gradients(self) -> list[Tensor]:
        """Return copies of the gradients that the last step was given."""
        assert self._last is not None
        return self._last.given_gradients()

    def in_turn(
        self,
        state: Sequence[EachStep],
        control: Sequence[EachStep],
        q: EachStep,
        by_steps: Sequence[tuple[int, EachStep]],
        totals: Sequence[Tensor | None],
    ) -> StepsInTurn | None:
        """Return what differentiates further steps without Python; None where something in them is for Python.

        Parameters
        ----------
        state, control, q : of the steps, as for `of_step`.
        by_steps : gradients that are added to those that a step is given, by the places of the state's fields.
        totals : to which the gradients by the model's tensors are added; None where nothing depends on one.

        Raises
        ------
        Untabled, Unavailable : something in them is for Python.
        """
        if self._last is None:
            return None
        given = [*enumerate(state), *enumerate(control, len(state) + 1)]
        of_values = self._places[len(self._places) - len(totals) :]
        return self._last.in_turn(given, q, by_steps, list(zip(of_values, totals, strict=True)))

    def give(self, gradients: Sequence[Tensor | None]) -> None:
        """Give the next step gradients by the fields of the state after it; all else is given by `in_turn`."""
        assert self._last is not None
        self._last.give_gradients(gradients)

    def found(self) -> Gradients:
        """Return the gradients of the last step by what needs one, where the next step writes."""
        assert self._last is not None
        found = self._last.found()
        return tuple(None if place is None else found[place] for place in self._places)


def _recorded_for(
    recipe: StepRecipe, kind: StepKind, needed: Sequence[tuple[Tensor, bool]]
) -> tuple[RecordedGradients | None, list[int | None]]:
    """Return what differentiates steps of a kind, if it was recorded, and where it has the gradients that are needed.

    Those that nothing has are at None.
    """
    numbers = {place: recipe.n_own + k for k, place in enumerate(recipe.places.tensors)}
    # where the inputs of a recording stand among what the step depends on: the rows that run are not there
    order = [*range(recipe.n_state), None, *range(recipe.n_state, recipe.n_own), *map(numbers.get, kind.movable_places)]
    _, step = kind.gradients.get(tuple(k is not None and needed[k][1] for k in order), (0, None))
    place_of = {k: place for place, k in enumerate(order)}
    return step, [place_of.get(k) for k, (_, need) in enumerate(needed) if need]


def _inputs(recipe: StepRecipe, kind: StepKind, needed: Sequence[tuple[Tensor, bool]]) -> list[Tensor]:
    """Return what recordings of a kind are given in a step that depends on these tensors."""
    tensors = [tensor for tensor, _ in needed]
    with torch.no_grad(), recipe.places.with_tensors(tensors[recipe.n_own :]).in_place():
        return kind.inputs(recipe.problem(tensors))


def _recording(
    kind: StepKind, recipe: StepRecipe, inputs: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]
) -> RecordedGradients | None:
    """Return the recording for inputs of which the same ones require gradients; None before there is one."""
    which = tuple(tensor.requires_grad for tensor in inputs)
    kept = kind.gradients.setdefault(which, [0, None])
    kept[0] += 1
    if kept[0] == (PASSES_BEFORE_RECORDING if q.is_cpu or recipe.model.has_user_hooks else 1):
        try:
            kept[1] = RecordedGradients(kind, recipe, inputs, q, with_zeros(gradients, inputs))
        except Unrecordable:
            if q.is_cuda:
                raise  # what is recorded there is known to be recordable, but for users' forces that promise it
            kind.gradients_refused = True  # some operation of it reads numbers
        except torch.OutOfMemoryError:
            if q.is_cpu or recipe.model.compilation.runs_compiled(q.shape[0], q):
                raise
            kind.gradients_refused = True
            warn_of_memory("backward passes")
    return kept[1]


def _passed_on(inputs: Sequence[Tensor], found: Sequence[Tensor | None], wanted: Sequence[Tensor]) -> Gradients:
    """Return the gradients by the tensors that inputs are, or are made of, from those by the inputs."""
    total: dict[int, Tensor] = {}
    made = []
    for tensor, gradient in zip(inputs, found, strict=True):
        if gradient is not None and tensor.is_leaf:
            total[id(tensor)] = gradient
        elif gradient is not None:
            made.append((tensor, gradient))
    if made:
        outputs, by_outputs = zip(*made, strict=True)
        further = torch.autograd.grad(outputs, wanted, by_outputs, allow_unused=True)
        for tensor, gradient in zip(wanted, further, strict=True):
            if gradient is not None:
                total[id(tensor)] = total[id(tensor)] + gradient if id(tensor) in total else gradient
    return tuple(total.get(id(t)) for t in wanted)


class RecordedGradients:
    """The gradients of steps of a kind on static buffers, by those inputs of the steps that require them.

    Parameters
    ----------
    kind : of the steps.
    recipe : of one of them.
    inputs : what the kind's recordings are given in it.
    q, gradients : see `recorded_gradients`; None for those that are zero in all steps that this is for.
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
        self._without_zeros: RecordedGradients | None = None

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
        given: Sequence[tuple[int, EachStep]],
        q: EachStep,
        by_steps: Sequence[tuple[int, EachStep]],
        totals: Sequence[tuple[int | None, Tensor | None]],
    ) -> StepsInTurn | None:
        """Return what `RecordedSteps.in_turn` does; inputs and totals with the places among the inputs."""
        found, lost = self.found(), self._tape.outputs[1]
        first, read = len(self._needs) + 1, self.reads
        on = [self._handed_on(place, gradient) for place, gradient in enumerate(found)]
        held = any(gradient is not None and self._buffers.hold(gradient) for gradient in on)
        if held or not isinstance(self._tape, Tape) or any(found[field] is None for field, _ in by_steps):
            return None
        before, after = VaryingRows(), VaryingRows()
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
        return StepsInTurn(StepCalls(self._tape.table), before, after, [lost])

    def _handed_on(self, place: int, gradient: Tensor | None) -> Tensor | None:
        """Return a gradient that a step is to be given; None where it stands there already, as it is handed through."""
        own = self._static[len(self._needs) + 1 + place] if place < self._recipe.n_state else None
        same = own is not None and gradient is not None and gradient.data_ptr() == own.data_ptr()
        return None if same else gradient

    def without_zeros(
        self, inputs: Sequence[Tensor], q: Tensor, gradients: Sequence[Tensor | None]
    ) -> RecordedGradients:
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
            self._without_zeros = RecordedGradients(self._kind, self._recipe, own, q, others)
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
