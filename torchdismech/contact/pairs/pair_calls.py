"""Calls of compiled code for pairs (`native/pairs.cpp`), which works on some pairs at a time.

It gathers the coordinates of `PAIRS_AT_ONCE` pairs in a small buffer and calls a compiled loop for them. As the buffer
is used again for the next pairs, it stays in a processor's nearest cache. Threads share out the robots of a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.pairs.pair_loops import KNOWN
from torchdismech.contact.pairs.pairs import Listed
from torchdismech.fused import Fused, Loop, compiled_code_accepts
from torchdismech.native import address, function_of, in_threads, taping
from torchdismech.native.taping import NumbersRead

__all__ = ["BoundLoop", "PairCalls", "Structure", "pair_values"]

PAIRS_AT_ONCE = 32  # pairs for which a loop is called at a time: a multiple of the lengths of all processors' vectors
ROBOTS_TOGETHER = 8  # as in `native/pairs.cpp`: threads share out groups of as many robots
PAIRS_A_THREAD = 4000  # least number of pairs for each thread, about 1 ms


class Structure:
    """A C structure of integers and of addresses of tensors and arrays, which it keeps alive.

    Attributes
    ----------
    address : of the structure; it stays the same when other members are filled in.
    members : what it was filled with.
    """

    def __init__(self, *members: Tensor | np.ndarray | int | None):
        self._numbers = np.empty(len(members), dtype=np.int64)
        self.address: int = self._numbers.ctypes.data
        self.fill(*members)

    @classmethod
    def unfilled(cls, count: int) -> Structure:
        """Return a structure with `count` members that are all zero, to be filled in later."""
        return cls(*[None] * count)

    def fill(self, *members: Tensor | np.ndarray | int | None) -> None:
        """Replace all members by others, which have to be as many."""
        self.members = members
        self._numbers[:] = [address(member) or 0 for member in members]


class BoundLoop(NamedTuple):
    """A compiled loop with its inputs fixed in memory: the address of its structure, and its number of result rows."""

    address: int
    rows: int


class PairCalls:
    """A list of pairs for which functions of compiled code can be called, with two vectors such as q and velocity.

    Compiled code gathers the inputs of some pairs at a time in a buffer. Loops are *bound* to views of a buffer that
    stays where it is, in place of which each call has one of its own.

    Parameters
    ----------
    listed : the pairs.
    further : further inputs of loops, (C,) for each pair or () for all.
    dtype : of all inputs.
    slots : (C,) index of each pair's slot, robot * P + slot, in tensors (B, P, KNOWN) of friction; None if friction is
        neither read nor written.

    Attributes
    ----------
    x, moving : (3 n, PAIRS_AT_ONCE) views of the buffer, for the components of the two vectors at the pairs' nodes.
    further : views of the buffer for the further inputs, (PAIRS_AT_ONCE,); a copy () of one that is the same for all.
    friction : (KNOWN, PAIRS_AT_ONCE) view of the buffer for the friction of the pairs.
    on_tapes : whether tapes may record calls: True only if these calls are bound to the pairs of a step before a tape
        is replayed in it.
    """

    def __init__(self, listed: Listed, further: Sequence[Tensor], dtype: torch.dtype, slots: Tensor | None = None):
        columns, coordinates = sum(tensor.dim() > 0 for tensor in further), 3 * listed.nodes.shape[1]
        with torch.inference_mode(False):  # so that the buffer may be written to in any mode
            self._read = torch.empty(2 * coordinates + columns + KNOWN, PAIRS_AT_ONCE, dtype=dtype, device="cpu")
            self.x, self.moving, rows, self.friction = self._read.split([coordinates, coordinates, columns, KNOWN])
            row = iter(rows)
            self.further = [
                next(row) if tensor.dim() else torch.empty((), dtype=tensor.dtype, device="cpu") for tensor in further
            ]
        self._dtype = dtype
        self._columns, self._pairs = Structure.unfilled(columns), Structure.unfilled(8)  # by `bind`
        self._loops: dict[Fused, BoundLoop | None] = {}
        self._held: list[Any] = []  # keeps alive what compiled code knows by its address
        self.on_tapes = False
        self.bind(listed, further, slots)

    def bind(self, listed: Listed, further: Sequence[Tensor], slots: Tensor | None) -> None:
        """Take other pairs, with as many nodes each and with inputs of the same kinds; bound loops stay valid."""
        columns = [tensor.contiguous() for tensor in further if tensor.dim()]
        for view, tensor in zip(self.further, further, strict=True):
            if not tensor.dim():
                view.copy_(tensor)
        robot, nodes = (tensor.contiguous() for tensor in listed)
        self.count = len(robot)
        self._columns.fill(*columns)
        sizes = (nodes.shape[1], self.count, len(columns))
        self._pairs.fill(*sizes, robot, nodes, slots, self._columns.address, self._read)

    def loop(self, loop: Fused, inputs: Sequence[Tensor]) -> BoundLoop | None:
        """Return a loop bound to the views `inputs` of the buffer; None if it cannot be compiled."""
        if loop not in self._loops:
            self._loops[loop] = self._bound(loop, inputs)
        return self._loops[loop]

    def _bound(self, loop: Fused, views: Sequence[Tensor]) -> BoundLoop | None:
        program = loop.program(views)
        if program is None:
            return None
        assert isinstance(program, Loop)  # these are numbers on a CPU
        rows = program.counts[0]
        inputs = program.inputs(1, PAIRS_AT_ONCE, program.read_among(views))
        bound = Structure(program.address, inputs, len(inputs), rows)
        self._held += [bound, views]
        return BoundLoop(bound.address, rows)

    def call(self, name: str, first: Tensor, second: Tensor, friction: Tensor | None, *rest: Any) -> None:
        """Call a function of compiled code for the pairs, by several threads where they are many.

        While a tape is recorded the call is recorded. Replays call the function for the pairs that are bound then.

        Parameters
        ----------
        name : of the function.
        first, second : (B, n) the two vectors.
        friction : (B, P, KNOWN) friction of the pairs, if loops read it.
        rest : further arguments of the function.
        """
        function = function_of(name, self._dtype)
        assert function is not None  # it exists wherever loops could be compiled
        if taping() and not self.on_tapes:
            raise NumbersRead("which pairs may touch depends on numbers")
        # values of pairs need no sums of robots, and are asked for of a single robot's many pairs, too
        by_pairs = name == "pair_values"
        parts = -(-self.count // PAIRS_AT_ONCE) if by_pairs else -(-len(first) // ROBOTS_TOGETHER)
        given = (self._pairs.address, first.shape[1], first.contiguous(), second.contiguous(), friction, *rest)
        in_threads(function, given, parts, self.count // PAIRS_A_THREAD, reads=None)


class _Kept(threading.local):
    """The calls of `pair_values`, which each thread makes once and binds to other pairs again and again.

    Attributes
    ----------
    calls : by loop, number of nodes of a pair, number of further inputs, and dtype.
    """

    def __init__(self) -> None:
        self.calls: dict[tuple, PairCalls] = {}


_kept = _Kept()


def pair_values(loop: Fused, listed: Listed, first: Tensor, second: Tensor, further: Sequence[Tensor]) -> Tensor:
    """Return the values (k, C) of a loop for each pair, by compiled code where it can be used and by torch elsewhere.

    Parameters
    ----------
    loop : the function of the components (3 n, C) of two vectors at the pairs' nodes, and of further inputs (C,). It is
        kept for the life of the thread.
    first, second : (B, n) the two vectors.
    further : (C,) the further inputs.
    """
    if compiled_code_accepts(first, second, *further) and function_of("pair_values", first.dtype) is not None:
        key = (loop, listed.nodes.shape[1], len(further), first.dtype)
        calls = _kept.calls.get(key)
        if calls is None:
            calls = _kept.calls[key] = PairCalls(listed, further, first.dtype)
        else:
            calls.bind(listed, further, None)
        bound = calls.loop(loop, (calls.x, calls.moving, *calls.further))
        if bound is not None:
            values = first.new_empty(bound.rows, calls.count)
            calls.call("pair_values", first, second, None, bound.address, values)
            return values
    return loop.of_columns(listed.gathered(first), listed.gathered(second), *further)
