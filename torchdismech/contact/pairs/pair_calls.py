"""Calls of compiled code for pairs, some pairs at a time (`native/pairs.cpp`).

It gathers the coordinates of `PAIRS_AT_ONCE` pairs and calls a compiled loop for them: nothing is kept of a single
pair, so all of it stays in a processor's nearest cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdismech.contact.pairs.pair_loops import KNOWN
from torchdismech.contact.pairs.pairs import Listed
from torchdismech.contact.pairs.structures import Structure
from torchdismech.fused import Fused, Loop, compiled_code_takes
from torchdismech.native import address, function_of, taped, taping
from torchdismech.native.taping import NumbersRead

__all__ = ["BoundLoop", "PairCalls", "pair_values"]

PAIRS_AT_ONCE = 32  # pairs that a loop is called for: a multiple of all vectors' lengths


class BoundLoop(NamedTuple):
    """A loop bound to memory: the address by which compiled code knows it, and how many rows of values it finds."""

    address: int
    rows: int


class PairCalls:
    """Calls of compiled code for pairs. The vectors in which their coordinates stand come with each call.

    Compiled code gathers what it needs of some pairs in memory that stays; loops are bound to views of that.

    Parameters
    ----------
    listed : the pairs.
    given : what else loops read of each pair, (C,), or () for all.
    dtype : of all numbers.
    slots : (C,) where what searches know of a pair stands, `KNOWN` numbers for each; None where they know nothing.

    Attributes
    ----------
    x, moving : (3 n, PAIRS_AT_ONCE) the coordinates of some pairs in the two vectors of a call.
    given : of these pairs; what is the same for all is a copy.
    known : (KNOWN, PAIRS_AT_ONCE) what searches know of them.
    on_tapes : whether tapes may have calls for them, as they are bound to the pairs of a step before it is replayed.
    """

    def __init__(self, listed: Listed, given: Sequence[Tensor], dtype: torch.dtype, slots: Tensor | None = None):
        columns, coordinates = sum(tensor.dim() > 0 for tensor in given), 3 * listed.nodes.shape[1]
        with torch.inference_mode(False):  # it is written to in any mode
            self._read = torch.empty(2 * coordinates + columns + KNOWN, PAIRS_AT_ONCE, dtype=dtype, device="cpu")
            self.x, self.moving, rows, self.known = self._read.split([coordinates, coordinates, columns, KNOWN])
            row = iter(rows)
            self.given = [
                next(row) if tensor.dim() else torch.empty((), dtype=tensor.dtype, device="cpu") for tensor in given
            ]
        self._dtype, self._functions = dtype, dict[str, Callable]()
        self._columns, self._pairs = Structure.unfilled(columns), Structure.unfilled(8)  # by `bind`
        self._loops: dict[Fused, BoundLoop | None] = {}
        self._held: list[Any] = []  # what compiled code knows by its address
        self.on_tapes = False
        self.bind(listed, given, slots)

    def bind(self, listed: Listed, given: Sequence[Tensor], slots: Tensor | None) -> None:
        """Take other pairs, with as many nodes, of which loops read numbers of the same kinds."""
        columns = [tensor.contiguous() for tensor in given if tensor.dim()]
        for own, tensor in zip(self.given, given, strict=True):
            if not tensor.dim():
                own.copy_(tensor)
        robot, nodes = (tensor.contiguous() for tensor in listed)
        self.count = len(robot)
        self._columns.fill(*columns)
        sizes = (nodes.shape[1], self.count, len(columns))
        self._pairs.fill(*sizes, robot, nodes, slots, self._columns.address, self._read)

    def _function(self, name: str) -> Callable:
        """Return a function of compiled code, which is there where loops are."""
        if name not in self._functions:
            function = function_of(name, self._dtype)
            assert function is not None
            self._functions[name] = function
        return self._functions[name]

    def loop(self, loop: Fused, given: Sequence[Tensor]) -> BoundLoop | None:
        """Return a loop bound to the views that it is given; None where it is not compiled."""
        if loop not in self._loops:
            self._loops[loop] = self._bound(loop, given)
        return self._loops[loop]

    def _bound(self, loop: Fused, given: Sequence[Tensor]) -> BoundLoop | None:
        program = loop.program(given)
        if program is None:
            return None
        assert isinstance(program, Loop)  # these are numbers on a CPU
        rows = program.counts[0]
        inputs = program.inputs(1, PAIRS_AT_ONCE, program.read_among(given))
        bound = Structure(
            program.address, inputs, torch.empty(rows, PAIRS_AT_ONCE, dtype=self._dtype, device="cpu"), rows
        )
        self._held += [bound, given]
        return BoundLoop(bound.address, rows)

    def call(self, name: str, first: Tensor, second: Tensor, known: Tensor | None, *rest: Any) -> Any:
        """Return what a function of compiled code does for the pairs at two vectors (B, n); `rest` are its own.

        Where a tape is recorded the function has to return nothing: replays call it for the pairs that are bound then.
        """
        function = self._function(name)
        first, second = first.contiguous(), second.contiguous()
        given = (first, second, known, *rest)
        call = partial(function, self._pairs.address, first.shape[1], *map(address, given))
        if not taping():
            return call()
        if not self.on_tapes:
            raise NumbersRead("which pairs may touch depends on numbers")
        return taped(call, *(own for own in given if isinstance(own, Tensor)))


class _Kept(threading.local):
    """The loops of `pair_values`, bound once in each thread and used again for other pairs.

    Attributes
    ----------
    calls : by loop, nodes of a pair, how much else loops read of it, and dtype.
    """

    def __init__(self) -> None:
        self.calls: dict[tuple, PairCalls] = {}


_kept = _Kept()


def pair_values(loop: Fused, listed: Listed, first: Tensor, second: Tensor, given: Sequence[Tensor]) -> Tensor:
    """Return the values (k, C) that a loop finds for each pair.

    Parameters
    ----------
    loop : of a pair's nodes' coordinates (3 n, C) in two vectors, and of what is `given` (C,). It is kept for good.
    first, second : (B, n).
    """
    if compiled_code_takes(first, second, *given) and function_of("pair_values", first.dtype) is not None:
        key = (loop, listed.nodes.shape[1], len(given), first.dtype)
        calls = _kept.calls.get(key)
        if calls is None:
            calls = _kept.calls[key] = PairCalls(listed, given, first.dtype)
        else:
            calls.bind(listed, given, None)
        bound = calls.loop(loop, (calls.x, calls.moving, *calls.given))
        if bound is not None:
            values = first.new_empty(bound.rows, calls.count)
            calls.call("pair_values", first, second, None, bound.address, None, calls.count, values)
            return values
    return loop.of_columns(listed.gathered(first), listed.gathered(second), *given)
