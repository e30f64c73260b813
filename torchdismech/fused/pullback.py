"""Pullback: gradients through a program (vector-Jacobian products), computed by another loop or kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from torchdismech.fused.derivatives import derivatives_by_values
from torchdismech.fused.making import compiled
from torchdismech.fused.program import Program
from torchdismech.fused.record import Input, RowChoice
from torchdismech.fused.symbols import Leaf, Symbol
from torchdismech.native import function_of, in_threads

__all__ = ["Pullback", "pullback_of"]

SUMS = 64  # number of different sizes of `_one_row` that are cached


_pullbacks: dict[tuple[Program, bool | None], Pullback] = {}


def pullback_of(program: Program, by_first: bool | None) -> Pullback:
    """Return the pullback of a program, made at its first use; see `Pullback`."""
    if (program, by_first) not in _pullbacks:
        _pullbacks[program, by_first] = Pullback(program, by_first)
    return _pullbacks[program, by_first]


class Pullback:
    """Gradients of a weighted sum of a program's first list, by the tensors that the program reads.

    One loop computes all of them: compiling another loop, without the gradients that a backward pass does not need,
    would take longer than it saves. The first tensor is the exception: it is the largest part of what springs read, and
    its gradient takes four tenths of the time, so it may have a separate loop.

    Parameters
    ----------
    program : the program whose first list is differentiated.
    by_first : True: gradients by the first of the tensors alone; False: by the others alone; None: by all.
    """

    def __init__(self, program: Program, by_first: bool | None = None):
        record = program.record.copy()
        self._count = program.counts[0]
        weights = Leaf(record, max(program.places, default=-1) + 1, (self._count, 1, 1))
        numbers = [*zip(program.first, (weight.number for weight in map(Symbol.of, weights)), strict=True)]
        self._index_among_read = {place: k for k, place in enumerate(program.places)}
        by_value = derivatives_by_values(record, numbers)
        self._inputs: list[tuple[int, Input]] = []  # index of the tensor among those read, and the view that is read
        by_inputs = []
        for input_view, value in program.record.inputs.items():
            if value in by_value and by_first in (None, not self._index_among_read[input_view.place]):
                self._inputs.append((self._index_among_read[input_view.place], input_view))
                by_inputs.append(by_value[value])
        self._program = compiled(record, by_inputs, [], program.dtype, program.device)
        self._reads_of_program = [
            self._index_among_read.get(place, len(program.places)) for place in self._program.places
        ]
        self._spring_dims: dict[int, int] = {}  # for each tensor that has one, the dimension that runs along springs
        for input_view in program.record.inputs:
            place, dim = input_view.along_springs
            if dim is not None:
                self._spring_dims[self._index_among_read[place]] = dim

    def gradients(self, springs: int, read: Sequence[Tensor], weights: Tensor, wanted: set[int]) -> dict[int, Tensor]:
        """Return the gradients by the wanted tensors; a tensor on which no value depends is left out.

        Parameters
        ----------
        springs : S.
        read : the tensors that the program reads.
        weights : (values x springs, B) gradient by the first list.
        wanted : indices of tensors in `read`.
        """
        robots = weights.shape[1]
        arguments = [*read, weights.contiguous().view(self._count, springs, robots)]
        values, _ = self._program.values(springs, robots, [arguments[k] for k in self._reads_of_program])
        values = values.view(len(self._inputs), springs, robots)
        gradients = {k: part for k in wanted if (part := self._componentwise_gradient(k, read[k], values)) is not None}
        done = set(gradients)
        for (number, view), value in zip(self._inputs, values, strict=True):
            if number not in wanted - done:
                continue
            if number not in gradients:
                gradients[number] = torch.zeros_like(read[number])
            _add_in_place(gradients[number], view, value, None if view.rows is None else self._rows(read, view.rows))
        return gradients

    def _componentwise_gradient(self, number: int, tensor: Tensor, values: Tensor) -> Tensor | None:
        """Return the part (C, S, B) of the values (V, S, B) that is the gradient by a tensor (C, S, B).

        None unless the tensor is read exactly once, component by component, so that nothing has to be summed.
        """
        places = [k for k, (other, _) in enumerate(self._inputs) if other == number]
        if not places or tensor.shape != (len(places), *values.shape[1:]):
            return None
        first, last = places[0], places[-1]
        expected = [Input(view.place, ((0, k),), 1, 2) for k, (_, view) in enumerate(self._inputs[first : last + 1])]
        return values[first : last + 1] if [view for _, view in self._inputs[first : last + 1]] == expected else None

    def gradients_of_some(
        self, chosen: Tensor, springs: int, read: Sequence[Tensor], weights: Tensor
    ) -> dict[int, Tensor]:
        """Return {0: the gradient by the first tensor} of a sum over the springs `chosen` (K,) alone.

        The other arguments are those of `gradients`.
        """
        if not len(chosen):
            return {0: torch.zeros_like(read[0])}
        chosen_arguments = list(read)
        for number, dim in self._spring_dims.items():
            if read[number].shape[dim] > 1:
                chosen_arguments[number] = read[number].index_select(dim, chosen)
        chosen_weights = weights.view(self._count, springs, -1).index_select(1, chosen)
        return self.gradients(len(chosen), chosen_arguments, chosen_weights.flatten(0, 1), {0})

    def _rows(self, read: Sequence[Tensor], rows: RowChoice) -> Tensor:
        return _with_fixed_dims(read[self._index_among_read[rows.place]], rows.chosen)


def _add_in_place(gradient: Tensor, view: Input, value: Tensor, rows: Tensor | None) -> None:
    """Add a value (S, B) to the gradient by a tensor of which springs and robots read this view, in place.

    Parameters
    ----------
    rows : (S,) row that each spring reads, where `view.rows` says so.
    """
    if not value.numel():
        return
    springs, robots = value.shape
    if springs > 1 and (view.spring is None or rows is None and gradient.shape[view.spring] == 1):
        value = _summed_springs(value)
    if robots > 1 and (view.robot is None or gradient.shape[view.robot] == 1):
        value = value.sum(1, keepdim=True)
    part = _with_fixed_dims(gradient, view.chosen)
    dims = {k: dim for k, dim in enumerate((view.spring, view.robot)) if dim is not None}
    order = sorted(dims, key=dims.__getitem__)  # order of the dimensions of springs and robots in the tensor
    missing = [k for k in (0, 1) if k not in dims]
    value = value.permute(*missing, *order).reshape([value.shape[k] for k in order])
    if rows is None:
        part += value
    else:
        part.index_add_(order.index(0), rows, value)


def _summed_springs(value: Tensor) -> Tensor:
    """Return the sum (1, B) of values (S, B) over springs, on a CPU by compiled code, which tapes replay faster."""
    function = function_of("weighted_sums", value.dtype) if value.is_cpu else None
    if function is None:
        return value.sum(0, keepdim=True)
    springs, robots = value.shape
    result = value.new_empty(1, robots)
    in_threads(function, (robots, *_one_row(springs, value.dtype), value.contiguous(), result), 1, 1)
    return result


@lru_cache(SUMS)
def _one_row(springs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return a sparse matrix (1, S) of ones in CSR format: begin of each row, columns, values."""
    return (
        torch.tensor([0, springs], device="cpu"),
        torch.arange(springs, device="cpu"),
        torch.ones(springs, dtype=dtype, device="cpu"),
    )


def _with_fixed_dims(tensor: Tensor, chosen: Sequence[tuple[int, int]]) -> Tensor:
    """Return the view of a tensor with some dimensions fixed at an index, (dimension, index) each."""
    for dim, index in sorted(chosen, reverse=True):
        tensor = tensor.select(dim, index)
    return tensor
