"""Sums over pairs in contact, by compiled code that takes some pairs at a time (`native/pairs.cpp`).

It gathers the coordinates of `PAIRS_AT_ONCE` pairs, calls a compiled loop for them (`pair_loops`) and adds what that
finds to the sums: nothing is kept of a single pair, so all of it stays in a processor's nearest cache. Where compiled
code cannot be had, and for derivatives by autograd, `pairs.Touching` has the same pair by pair.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.law import LawConstants
from torchdismech.contact.pairs.pair_loops import KNOWN, PairLoops
from torchdismech.contact.pairs.pairs import Listed, PairTable
from torchdismech.fused import Fused, Loop, compiled_code_takes
from torchdismech.native import address, function_of, taped, taping
from torchdismech.native.taping import NumbersRead

__all__ = ["BLOCK", "BlockPlaces", "PairSums", "Structure", "pair_values"]

BLOCK = 12  # numbers that the sum of a block takes in compiled code: three rows of four
PAIRS_AT_ONCE = 32  # pairs that a loop is called for: a multiple of all vectors' lengths


@dataclass(frozen=True)
class BlockPlaces:
    """Where the blocks of a table's pairs go, and what is there without them; see `Blocks` in `native/pairs.cpp`.

    Attributes
    ----------
    limit : blocks from this number on are left out.
    pair_blocks : (C, n^2) number of the block of each two nodes of a pair.
    from_sums : (nnz,) int32, which number of a robot's sums of blocks is added to a value of the matrix, -1 for none.
    from_base : (nnz,) int32, as which value of the matrix without contact it begins, -1 for none.
    """

    limit: int
    pair_blocks: Tensor
    from_sums: np.ndarray
    from_base: np.ndarray

    @cached_property
    def bound(self) -> Structure:
        """The same as a structure of compiled code."""
        return Structure(*self.members)

    @staticmethod
    def unfilled() -> Structure:
        """Return the structure before anything is known: to be filled with `members`."""
        return Structure.unfilled(5)

    @property
    def members(self) -> tuple:
        """What that structure has in it."""
        return len(self.from_sums), self.limit, self.pair_blocks, self.from_sums, self.from_base


class Structure:
    """A structure of compiled code: integers, and where tensors and arrays stand in memory, which it keeps alive.

    Attributes
    ----------
    address : of it, where it stays.
    """

    def __init__(self, *members: Tensor | np.ndarray | int | None):
        self._numbers = np.empty(len(members), dtype=np.int64)
        self.address: int = self._numbers.ctypes.data
        self.fill(*members)

    @classmethod
    def unfilled(cls, count: int) -> Structure:
        """Return a structure of so many members, which are filled in later."""
        return cls(*[None] * count)

    def fill(self, *members: Tensor | np.ndarray | int | None) -> None:
        """Put other members, as many, in the place of those before."""
        self._members = members
        self._numbers[:] = [address(member) or 0 for member in members]


class _BoundLoop(NamedTuple):
    """A loop bound to memory: the address by which compiled code knows it, and how many rows of values it finds."""

    address: int
    rows: int


class _Calls:
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
        self._loops: dict[Fused, _BoundLoop | None] = {}
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

    def loop(self, loop: Fused, given: Sequence[Tensor]) -> _BoundLoop | None:
        """Return a loop bound to the views that it is given; None where it is not compiled."""
        if loop not in self._loops:
            self._loops[loop] = self._bound(loop, given)
        return self._loops[loop]

    def _bound(self, loop: Fused, given: Sequence[Tensor]) -> _BoundLoop | None:
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
        return _BoundLoop(bound.address, rows)

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
        self.calls: dict[tuple, _Calls] = {}


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
            calls = _kept.calls[key] = _Calls(listed, given, first.dtype)
        else:
            calls.bind(listed, given, None)
        bound = calls.loop(loop, (calls.x, calls.moving, *calls.given))
        if bound is not None:
            values = first.new_empty(bound.rows, calls.count)
            calls.call("pair_values", first, second, None, bound.address, None, calls.count, values)
            return values
    return loop.of_columns(listed.gathered(first), listed.gathered(second), *given)


def _given_of(table: PairTable, constants: LawConstants) -> tuple[list[Tensor], Tensor]:
    """Return what loops read of the pairs of a table (reaches, the law's constants, what kernels take), and slots."""
    given = [table.reaches, *constants.at(table.robot).given(), *table.more]
    return given, table.robot * table.shape[1] + table.slot


class PairSums:
    """Sums over the pairs of a table, by a law with its constants as they are now.

    The table keeps them; recordings keep them, too, and bind them to other tables of the same kind (`bound_to`).

    Parameters
    ----------
    loops : of the table's kernel.
    table : of the pairs.
    constants : of the law, each () or (B, 1).

    Attributes
    ----------
    block_places : where tapes find out where the blocks of the pairs go (`BlockPlaces.members`); they know its address.
    """

    def __init__(self, loops: PairLoops, table: PairTable, constants: LawConstants):
        self._loops = loops
        given, slots = _given_of(table, constants)
        self._calls = _Calls(table.listed, given, table.reaches.dtype, slots)
        self.block_places = BlockPlaces.unfilled()
        self._bind(table, constants)
        self._reach, *rest = self._calls.given
        count = len(constants.given())
        self._law, self._more = rest[:count], rest[count:]
        with torch.inference_mode(False):  # it is written to in any mode
            self._gains = torch.zeros(2, dtype=table.reaches.dtype, device="cpu").unbind()

    def _bind(self, table: PairTable, constants: LawConstants) -> None:
        self._table, self._constants = weakref.ref(table), constants
        self._shape = (*table.shape, KNOWN)

    def allow_on_tapes(self) -> None:
        """Let tapes have these sums: whoever replays one binds them to the pairs of the step before."""
        self._calls.on_tapes = True

    @classmethod
    def of(
        cls, loops: PairLoops, table: PairTable, q: Tensor, velocity: Tensor, constants: LawConstants
    ) -> PairSums | None:
        """Return the sums for q and a velocity (B, n) where compiled code can find them; None where torch has to.

        The table keeps them, which lives for a step: they serve as long as the law has the same tensors. Those of
        single robots are looked at anew each time.
        """
        if not compiled_code_takes(q, velocity, *constants.given()):
            return None
        kept: PairSums | None = table.sums.get(loops)
        if kept is not None and kept._table() is not table:  # it was bound to another one since
            kept = None
        if kept is not None and kept._serves(constants.given()):
            return kept if kept._is_compiled else None
        return cls.bound_to(loops, table, constants, kept)

    @classmethod
    def bound_to(
        cls, loops: PairLoops, table: PairTable, constants: LawConstants, kept: PairSums | None
    ) -> PairSums | None:
        """Return the sums for the pairs of a table: `kept` ones, now bound to this table, where they can be.

        None where compiled code cannot find them.
        """
        numbers = constants.given()
        if not compiled_code_takes(table.reaches, *numbers) or function_of("pair_values", table.reaches.dtype) is None:
            return None
        if kept is not None and kept._can_take(loops, table, constants):
            given, slots = _given_of(table, constants)
            kept._calls.bind(table.listed, given, slots)
            kept._bind(table, constants)
        else:
            kept = cls(loops, table, constants)
        table.sums[loops] = kept
        return kept if kept._is_compiled else None

    def _can_take(self, loops: PairLoops, table: PairTable, constants: LawConstants) -> bool:
        """Return whether these sums may be bound to another table's pairs."""
        shapes = [number.numel() > 1 for number in self._constants.given()]
        same_kinds = shapes == [number.numel() > 1 for number in constants.given()]
        return self._loops is loops and same_kinds and table.reaches.dtype == self._reach.dtype

    def _serves(self, numbers: Sequence[Tensor]) -> bool:
        """Return whether these are the tensors of the constants, for all robots."""
        own = self._constants.given()
        same = len(own) == len(numbers) and all(map(is_, own, numbers))
        return same and all(number.numel() == 1 for number in numbers)

    @cached_property
    def _is_compiled(self) -> bool:
        calls = self._calls
        slack = calls.loop(self._loops.slack, self._slack_of)
        return None not in (slack, calls.loop(self._loops.force_of_nodes, self._given), self._blocks(None))

    def touching(self, q: Tensor) -> Tensor:
        """Return the numbers (A,) of the pairs that touch at q (B, n), in the table's list."""
        numbers = q.new_empty(self._calls.count, dtype=torch.long)
        return numbers[: self._calls.call("pair_touching", q, q, None, self._slack, numbers)]

    def add_force(self, q: Tensor, velocity: Tensor, total: Tensor) -> None:
        """Add the forces at q and a velocity (B, n) to `total` (B, n) [N]."""
        force = self._loop(self._loops.force_of_nodes, self._given)
        self._calls.call("pair_forces", q, velocity, None, self._slack, force, total)

    def add(
        self,
        q: Tensor,
        velocity: Tensor,
        known: Tensor | None,
        total: Tensor,
        values: Tensor,
        before: Tensor | None,
        gains: Sequence[float | Tensor],
        at: Structure,
    ) -> None:
        """Add the forces to `total` (B, n), and -gains[0] dF/dx - gains[1] dF/dvelocity to values.

        Parameters
        ----------
        known : (B, P, KNOWN) of the pairs, whose tractions a search expects; see `LawFormulas.partials`.
        values : (nnz, B), or more rows.
        before : the values without contact, which `values` are to begin as; None if they are there already.
        at : where the blocks go; see `BlockPlaces.bound`.
        """
        for own, gain in zip(self._gains, gains, strict=True):
            own.fill_(gain)
        blocks = self._blocks(known)
        assert blocks is not None and (known is None or known.shape == self._shape)
        bound = (self._slack, blocks.address, total, at.address, values.shape[1], before, values)
        self._calls.call("pair_blocks", q, velocity, known, *bound)

    def summary(self, q: Tensor, velocity: Tensor, touching: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `Touching.summary` does of the pairs that touch, (3, A), and the forces (B, n) [N]."""
        summary, found, total = self._summary, q.new_empty(3, len(touching)), torch.zeros_like(q)
        self._calls.call("pair_summary", q, velocity, None, summary, touching, len(touching), found, total)
        return found, total

    @cached_property
    def _summary(self) -> int:
        return self._loop(self._loops.summary_of_nodes, self._given)

    def first_friction(self, q: Tensor, velocity: Tensor) -> Tensor:
        """Return what a search knows of the pairs (B, P, KNOWN) where it begins; zeros in empty slots."""
        first, found = self._loop(self._loops.first_friction, self._given), q.new_zeros(self._shape)
        self._calls.call("pair_known", q, velocity, None, first, found)
        return found

    def expected_friction(self, q: Tensor, velocity: Tensor, known: Tensor) -> Tensor:
        """Return what a search knows (B, P, KNOWN) of the pairs at its next iterate, if this was `known` before."""
        assert known.shape == self._shape
        calls, found = self._calls, q.new_zeros(self._shape)
        given = (calls.x, calls.moving, self._reach, calls.known, *self._law, *self._more)
        expected = self._loop(self._loops.expected_friction, given)
        calls.call("pair_known", q, velocity, known.contiguous(), expected, found)
        return found

    def limit_step(self, motion: Tensor, fraction: Tensor) -> None:
        """Lower `fraction` (B,) to that of a motion (B, n) in which no pair moves by more than `LARGEST_STEP`."""
        bound = self._loop(self._loops.step_fraction, (self._calls.x, self._reach))
        self._calls.call("pair_least", motion, motion, None, bound, fraction)

    @cached_property
    def _slack(self) -> int:
        return self._loop(self._loops.slack, self._slack_of)

    @property
    def _slack_of(self) -> tuple[Tensor, ...]:
        return self._calls.x, self._reach, self._law[1], *self._more

    @property
    def _given(self) -> tuple[Tensor, ...]:
        return self._calls.x, self._calls.moving, self._reach, *self._law, *self._more

    def _blocks(self, known: Tensor | None) -> _BoundLoop | None:
        moving = (self._calls.x, self._calls.moving, *self._gains, self._reach)
        if known is None:
            return self._calls.loop(self._loops.blocks_of_nodes, (*moving, *self._law, *self._more))
        return self._calls.loop(
            self._loops.primal_dual_blocks_of_nodes, (*moving, self._calls.known[:3], *self._law, *self._more)
        )

    def _loop(self, loop: Fused, given: Sequence[Tensor]) -> int:
        """Return where compiled code finds a loop that is compiled, as the others are."""
        bound = self._calls.loop(loop, given)
        assert bound is not None
        return bound.address
