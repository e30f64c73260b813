"""Gradients through a recorded function: what it did, derived backwards, as one more loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from torchdismech.fused.making import compiled
from torchdismech.fused.program import Program, values_by_operator, values_now, watched
from torchdismech.fused.symbols import Input, Leaf, Record, Symbol, chosen
from torchdismech.native import function_of, in_threads

__all__ = ["differentiated", "is_differentiated", "values_of"]

SUMS = 64  # numbers of springs whose sums are kept in mind


class _Within(threading.local):
    """Whether this thread is within `differentiated`."""

    differentiated = False


_here = _Within()


def is_differentiated() -> bool:
    """Return whether loops take tensors that require gradients."""
    return _here.differentiated


@contextmanager
def differentiated() -> Iterator[None]:
    """Let loops of this thread take tensors that require gradients; what they find can be differentiated once.

    Elsewhere torch evaluates them, and derivatives of any order can be had.
    """
    before, _here.differentiated = _here.differentiated, True
    try:
        yield
    finally:
        _here.differentiated = before


def values_of(
    programs: Sequence[tuple[Program, int, list[Tensor]]], robots: int, chosen: Sequence[Tensor | None] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the first lists of programs one after the other, and the second ones, (rows, B).

    Where autograd records, the first can be differentiated, once.

    Parameters
    ----------
    programs : with the number of springs of each and the tensors that it reads.
    robots : B.
    chosen : for each program the springs (K,) of which alone derivatives by the first of its tensors are found, as
        those of the others are not wanted; None: those of all springs, also in place of the whole.
    """
    if not torch.is_grad_enabled() or not any(t.requires_grad for _, _, read in programs for t in read):
        return values_by_operator(programs, robots) if watched() else values_now(programs, robots)
    return _Differentiable.apply(programs, robots, chosen, *[t for _, _, read in programs for t in read])


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, programs: Sequence[tuple[Program, int, list[Tensor]]], robots: int, chosen, *read: Tensor):  # noqa: D102
        first, second = values_by_operator(programs, robots) if watched() else values_now(programs, robots)
        springs_of = [None] * len(programs) if chosen is None else chosen
        ctx.programs = [(*program[:2], len(program[2]), k) for program, k in zip(programs, springs_of, strict=True)]
        ctx.save_for_backward(*read)
        ctx.mark_non_differentiable(second)
        return first, second

    @staticmethod
    def backward(ctx, by_first: Tensor, _: Tensor):  # noqa: D102
        if torch.is_grad_enabled():
            raise RuntimeError("loops can be differentiated once; second derivatives are for torch's own operations")
        rows, read, needed = 0, iter(ctx.saved_tensors), iter(ctx.needs_input_grad[3:])
        found: list[Tensor | None] = []
        for program, springs, count, some in ctx.programs:
            given = list(islice(read, count))
            wanted = {k for k, need in enumerate(islice(needed, count)) if need}
            part = by_first[rows : (rows := rows + program.counts[0] * springs)]
            gradients = _gradients(program, springs, given, part, wanted, some)
            found += [gradients.get(k) for k in range(count)]
        return None, None, None, *found


def _gradients(
    program: Program, springs: int, read: list[Tensor], weights: Tensor, wanted: set[int], some: Tensor | None
) -> dict[int, Tensor]:
    """Return what `Pullback.gradients` does: by the first tensor of `some` springs (K,) alone, if they are given."""
    if not wanted:
        return {}
    if some is None:
        return _pullback_of(program, None).gradients(springs, read, weights, wanted)
    found = {}
    if 0 in wanted:
        found = _pullback_of(program, True).gradients_of_some(some, springs, read, weights)
    if others := wanted - {0}:
        found |= _pullback_of(program, False).gradients(springs, read, weights, others)
    return found


_pullbacks: dict[tuple[Program, bool | None], Pullback] = {}


def _pullback_of(program: Program, by_first: bool | None) -> Pullback:
    if (program, by_first) not in _pullbacks:
        _pullbacks[program, by_first] = Pullback(program, by_first)
    return _pullbacks[program, by_first]


class Pullback:
    """The gradients by the tensors that a program reads, of a sum over its first list, with weights.

    One loop finds all of them: a loop without those that a backward pass does not need would take longer to compile
    than it would save. The first tensor is the exception: springs read most of it, and its gradient takes four tenths
    of the time, so it may have a loop of its own.

    Parameters
    ----------
    program : of which the first list is differentiated.
    by_first : whether gradients are by the first tensor that is read alone, by the others alone, or, None, by all.
    """

    def __init__(self, program: Program, by_first: bool | None = None):
        record = Record([*program.record.operations], {**program.record.inputs}, {**program.record.numbers})
        self._count = program.counts[0]
        weights = Leaf(record, max(program.places, default=-1) + 1, (self._count, 1, 1))
        numbers = [*zip(program.first, (weight.number for weight in map(Symbol.of, weights)), strict=True)]
        self._at = {place: k for k, place in enumerate(program.places)}
        by_value = _pulled_back(record, numbers)
        self._inputs: list[tuple[int, Input]] = []  # number of the tensor among those read, and how springs read it
        found = []
        for number, given in enumerate(program.record.inputs):
            value = record.numbers["input", number]
            if value in by_value and by_first in (None, not self._at[given.place]):
                self._inputs.append((self._at[given.place], given))
                found.append(by_value[value])
        self._program = compiled(record, found, [], program.dtype, program.device)
        self._own = [self._at.get(place, len(program.places)) for place in self._program.places]
        self._along: dict[int, int] = {}  # the dimension of tensors that goes along with springs, where one does
        for given in program.record.inputs:
            place, dim = (given.place, given.spring) if given.rows is None else (given.rows[0], given.rows[2])
            if dim is not None:
                self._along[self._at[place]] = dim

    def gradients(self, springs: int, read: Sequence[Tensor], weights: Tensor, wanted: set[int]) -> dict[int, Tensor]:
        """Return the gradients by the tensors that are wanted, by their numbers; none where no value depends on one.

        Parameters
        ----------
        read : the tensors that the program reads.
        weights : (values x springs, B).
        """
        robots = weights.shape[1]
        given = [*read, weights.contiguous().view(self._count, springs, robots)]
        values, _ = self._program.values(springs, robots, [given[k] for k in self._own])
        values = values.view(len(self._inputs), springs, robots)
        gradients = {k: part for k in wanted if (part := self._of_components(k, read[k], values)) is not None}
        whole = set(gradients)
        for (number, how), value in zip(self._inputs, values, strict=True):
            if number not in wanted - whole:
                continue
            if number not in gradients:
                gradients[number] = torch.zeros_like(read[number])
            _add(gradients[number], how, value, None if how.rows is None else self._rows(read, how.rows))
        return gradients

    def _of_components(self, number: int, tensor: Tensor, values: Tensor) -> Tensor | None:
        """Return the part of the values (V, S, B) that is the gradient by a tensor (C, S, B), read once by components.

        None where it is read in another way.
        """
        places = [k for k, (other, _) in enumerate(self._inputs) if other == number]
        if not places or tensor.shape != (len(places), *values.shape[1:]):
            return None
        first, last = places[0], places[-1]
        expected = [Input(how.place, ((0, k),), 1, 2) for k, (_, how) in enumerate(self._inputs[first : last + 1])]
        return values[first : last + 1] if [how for _, how in self._inputs[first : last + 1]] == expected else None

    def gradients_of_some(
        self, chosen: Tensor, springs: int, read: Sequence[Tensor], weights: Tensor
    ) -> dict[int, Tensor]:
        """Return the gradient by the first tensor of a sum over some springs (K,) alone; arguments as above."""
        if not len(chosen):
            return {0: torch.zeros_like(read[0])}
        given = list(read)
        for number, dim in self._along.items():
            if read[number].shape[dim] > 1:
                given[number] = read[number].index_select(dim, chosen)
        some = weights.view(self._count, springs, -1).index_select(1, chosen)
        return self.gradients(len(chosen), given, some.flatten(0, 1), {0})

    def _rows(self, read: Sequence[Tensor], rows: tuple[int, tuple[tuple[int, int], ...], int]) -> Tensor:
        place, held, _ = rows
        return _held(read[self._at[place]], held)


def _add(gradient: Tensor, how: Input, value: Tensor, rows: Tensor | None) -> None:
    """Add what springs and robots found (S, B) to the gradient by a tensor, which they read in this way."""
    if not value.numel():
        return  # where there is no spring there is nothing to sum
    springs, robots = value.shape
    if springs > 1 and (how.spring is None or rows is None and gradient.shape[how.spring] == 1):
        value = _summed_springs(value)
    if robots > 1 and (how.robot is None or gradient.shape[how.robot] == 1):
        value = value.sum(1, keepdim=True)
    part = _held(gradient, how.chosen)
    along = {k: dim for k, dim in enumerate((how.spring, how.robot)) if dim is not None}
    order = sorted(along, key=along.__getitem__)  # as the tensor has springs and robots
    missing = [k for k in (0, 1) if k not in along]
    value = value.permute(*missing, *order).reshape([value.shape[k] for k in order])
    if rows is None:
        part += value
    else:
        part.index_add_(order.index(0), rows, value)


def _summed_springs(value: Tensor) -> Tensor:
    """Return the sum (1, B) of what springs found (S, B): compiled code that a tape makes with others in one call."""
    function = function_of("weighted_sums", value.dtype) if value.is_cpu else None
    if function is None:
        return value.sum(0, keepdim=True)
    springs, robots = value.shape
    result = value.new_empty(1, robots)
    in_threads(function, (robots, *_one_row(springs, value.dtype), value.contiguous(), result), 1, 1)
    return result


@lru_cache(SUMS)
def _one_row(springs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return a row of ones, one for each spring, as a sparse matrix: where rows begin, columns, values."""
    return (
        torch.tensor([0, springs], device="cpu"),
        torch.arange(springs, device="cpu"),
        torch.ones(springs, dtype=dtype, device="cpu"),
    )


def _held(tensor: Tensor, chosen: Sequence[tuple[int, int]]) -> Tensor:
    """Return the view of a tensor in which dimensions are held at an index."""
    for dim, index in sorted(chosen, reverse=True):
        tensor = tensor.select(dim, index)
    return tensor


# ---- derivatives of operations ------------------------------------------------------------------------------------


def _pulled_back(record: Record, weighted: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the derivatives, by all values of a record, of a sum of some of them; pairs of a value and its weight.

    All are numbers of values of the record, which grows by what finds them.
    """
    by_value: dict[int, Symbol] = {}

    def gain(value: int, more: Any) -> None:
        before = by_value.get(value)
        by_value[value] = more if before is None else before + more

    for value, weight in weighted:
        gain(value, Symbol(record, weight))
    for value in range(max((value for value, _ in weighted), default=-1), -1, -1):
        name, *of = record.operations[value]
        if value not in by_value or name not in DERIVATIVES:
            continue
        operands = [Symbol(record, k) for k in of]
        for operand, more in zip(of, DERIVATIVES[name](by_value[value], Symbol(record, value), *operands), strict=True):
            if more is not None:
                gain(operand, more)
    return {value: found.number for value, found in by_value.items()}


def _of_larger(g: Symbol, _: Symbol, a: Symbol, b: Symbol) -> tuple:
    """Return the parts of the larger; both have half where they are the same, as in torch."""
    return _shared(g, b < a, a < b, a, b)


def _of_smaller(g: Symbol, _: Symbol, a: Symbol, b: Symbol) -> tuple:
    return _shared(g, a < b, b < a, a, b)


def _shared(g: Symbol, first: Any, second: Any, a: Symbol, b: Symbol) -> tuple:
    if a.is_number or b.is_number:  # a bound: what is on it is within
        return chosen(second, 0.0, g), chosen(first, 0.0, g)
    return chosen(first, g, chosen(second, 0.0, 0.5 * g)), chosen(second, g, chosen(first, 0.0, 0.5 * g))


def _of_angle(g: Symbol, _: Symbol, y: Symbol, x: Symbol) -> tuple:
    share = g / (x * x + y * y)
    return share * x, -(share * y)


# By the name of an operation: its derivatives by its operands, of the derivative g by its value v, v and the operands.
DERIVATIVES: dict[str, Callable[..., tuple]] = {
    "add": lambda g, v, a, b: (g, g),
    "sub": lambda g, v, a, b: (g, -g),
    "mul": lambda g, v, a, b: (g * b, g * a),
    "div": lambda g, v, a, b: (g / b, -(g * v / b)),
    "neg": lambda g, v, a: (-g,),
    "root": lambda g, v, a: (0.5 * g / v,),
    "sine": lambda g, v, a: (g * torch.cos(a),),
    "cosine": lambda g, v, a: (-(g * torch.sin(a)),),
    "angle": _of_angle,
    "absolute": lambda g, v, a: (chosen(a < 0.0, -g, chosen(a == 0.0, 0.0, g)),),
    "most": _of_larger,
    "least": _of_smaller,
    "chosen": lambda g, v, where, a, b: (None, chosen(where.condition, g, 0.0), chosen(where.condition, 0.0, g)),
    "exponential": lambda g, v, a: (g * v,),
    "exponential_less_one": lambda g, v, a: (g * (v + 1.0),),
    "logarithm": lambda g, v, a: (g / a,),
    "hyperbolic_tangent": lambda g, v, a: (g * (1.0 - v * v),),
    "sigmoid": lambda g, v, a: (g * v * (1.0 - v),),
    "softplus": lambda g, v, a, bound: (chosen(bound < a, g, g * torch.sigmoid(a)), None),
}
