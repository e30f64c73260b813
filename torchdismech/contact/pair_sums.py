"""What pairs in contact add up to, by compiled code that takes some pairs at a time (`native/pairs.cpp`).

Nothing that is found for a single pair is kept, so all of it stays in a processor's nearest cache. Where compiled code
cannot be had, and for derivatives by autograd, `pairs.Touching` has the same pair by pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.law import LawConstants
from torchdismech.contact.pair_loops import PairLoops
from torchdismech.contact.pairs import Listed, PairTable
from torchdismech.fused import Fused, fits
from torchdismech.native import address, function_of, taped

__all__ = ["BLOCK", "BlockPlaces", "PairSums", "of_pairs"]

BLOCK = 12  # numbers that the sum of a block takes in compiled code: three rows of four
AT_ONCE = 32  # pairs that a loop is called for: a multiple of all vectors' lengths


@dataclass(frozen=True)
class BlockPlaces:
    """Where the blocks of a table's pairs go, and what is there without them; see `Matrix` in `native/pairs.cpp`.

    Attributes
    ----------
    limit : blocks from this number on are left out.
    of_pairs : (C, n^2) number of the block of each two nodes of a pair.
    slot : (nnz,) where in a robot's sums of blocks the values find their own, -1 for none.
    own : (nnz,) which value of the matrix without contact they begin as, -1 for none.
    """

    limit: int
    of_pairs: Tensor
    slot: Tensor
    own: Tensor


class _PairCalls:
    """Pairs at two vectors, for compiled code.

    Parameters
    ----------
    listed : the pairs.
    q, velocity : (B, n); the coordinates of a pair's nodes in both are what loops are given first.
    given : what else each pair is known by, (C,), or () for all.
    """

    def __init__(self, listed: Listed, q: Tensor, velocity: Tensor, given: Sequence[Tensor]):
        self._listed, self._q, self._velocity = listed, q.contiguous(), velocity.contiguous()
        self._columns = [tensor.contiguous() for tensor in given if tensor.dim()]
        coordinates = 3 * listed.nodes.shape[1]
        self._read = q.new_empty(2 * coordinates + len(self._columns), AT_ONCE)
        self._x, self._moving, rows = self._read.split([coordinates, coordinates, len(self._columns)])
        row = iter(rows)
        self._given = [next(row) if tensor.dim() else tensor for tensor in given]

    def _call(self, name: str, loop: Fused, given: Sequence[Tensor], chosen: Tensor | None, *rest) -> None:
        """Call a function of compiled code for the chosen pairs, None for all; `given` is what the loop is given."""
        program, (robot, nodes) = loop.program(given), self._listed
        assert program is not None
        found = self._q.new_empty(program.counts[0], AT_ONCE)
        inputs = program.inputs(1, AT_ONCE, program.read_among(given))
        columns = np.array([column.data_ptr() for column in self._columns], dtype=np.int64)
        count = len(robot) if chosen is None else len(chosen)
        sizes = (nodes.shape[1], count, self._q.shape[1], AT_ONCE, len(columns))
        lists = (chosen, robot.contiguous(), nodes.contiguous(), self._q, self._velocity, columns)
        arguments = (*sizes, *lists, program.address, inputs, self._read, found, *rest)
        function = function_of(name, self._q.dtype)
        assert function is not None
        taped(partial(function, *map(address, arguments)), *arguments, *given, reads=())


def of_pairs(loop: Fused, listed: Listed, first: Tensor, second: Tensor, given: Sequence[Tensor]) -> Tensor:
    """Return the values (k, C) that a loop finds for each pair.

    Parameters
    ----------
    loop : of a pair's nodes' coordinates (3 n, C) in two vectors, and of what is `given` (C,).
    first, second : (B, n).
    """
    if fits(first, second, *given) and function_of("pair_values", first.dtype) is not None:
        found = _Values(listed, first, second, given).found(loop)
        if found is not None:
            return found
    return loop.of_columns(listed.gathered(first), listed.gathered(second), *given)


class _Values(_PairCalls):
    """Pairs at two vectors, for what is found for each."""

    def found(self, loop: Fused) -> Tensor | None:
        """Return what `of_pairs` does; None where the loop cannot be compiled."""
        given = (self._x, self._moving, *self._given)
        program = loop.program(given)
        if program is None:
            return None
        values = self._q.new_empty(program.counts[0], len(self._listed.robot))
        self._call("pair_values", loop, given, None, len(values), values)
        return values


class PairSums(_PairCalls):
    """The pairs of a table at some q and velocity, for compiled code.

    Parameters
    ----------
    loops : of the table's kernel.
    table : of the pairs.
    q, velocity : (B, n).
    constants : of the law, each () or (B, 1).
    tractions : (C, 3) that a search expects; see `ContactLaw.partials`.
    """

    def __init__(
        self,
        loops: PairLoops,
        table: PairTable,
        q: Tensor,
        velocity: Tensor,
        constants: LawConstants,
        tractions: Tensor | None = None,
    ):
        self._loops, self._constants = loops, constants.at(table.places[0])
        expected = () if tractions is None else tractions.unbind(1)
        super().__init__(table.listed, q, velocity, (table.reaches, *table.more, *self._constants.given(), *expected))
        self._reach, *of_pair = self._given
        ends = len(table.more), len(of_pair) - len(expected)
        self._more, self._law, self._expected = of_pair[: ends[0]], of_pair[ends[0] : ends[1]], of_pair[ends[1] :]
        self._block_loop = loops.blocks if tractions is None else loops.held_blocks

    @classmethod
    def of(
        cls,
        loops: PairLoops,
        table: PairTable,
        q: Tensor,
        velocity: Tensor,
        constants: LawConstants,
        tractions: Tensor | None = None,
    ) -> PairSums | None:
        """Return the sums where compiled code can find them; None where torch has to."""
        if not fits(q, velocity, table.reach, *constants.given()) or function_of("pair_values", q.dtype) is None:
            return None
        sums = cls(loops, table, q, velocity, constants, tractions)
        gain = q.new_zeros(())
        blocks = (sums._block_loop, sums._blocks(gain, gain))
        calls = ((loops.gap, sums._gap()), (loops.on_nodes, sums._force()), blocks)
        return None if any(loop.program(given) is None for loop, given in calls) else sums

    def force(self, touching: Tensor | None = None) -> Tensor:
        """Return the forces (B, n) [N]; `touching` are the pairs that do, where they are known."""
        touching, total = self.touching() if touching is None else touching, torch.zeros_like(self._q)
        self._call("pair_forces", self._loops.on_nodes, self._force(), touching, total)
        return total

    def summary(self, touching: Tensor) -> Tensor:
        """Return what `Touching.summary` does of the pairs that touch (5, A)."""
        found = self._q.new_empty(5, len(touching))
        self._call("pair_values", self._loops.summary_of_nodes, self._force(), touching, len(found), found)
        return found

    def add(self, total: Tensor, values: Tensor, before: Tensor | None, gains: Sequence, at: BlockPlaces) -> None:
        """Add the forces to `total` (B, n), and -gains[0] dF/dx - gains[1] dF/dvelocity to values.

        Parameters
        ----------
        values : (nnz, B), or more rows.
        before : the values without contact, which `values` are to begin as; None if they are there already.
        """
        weighed = [torch.as_tensor(gain, dtype=total.dtype, device=total.device) for gain in gains]
        sizes = (len(at.slot), values.shape[1], at.limit)
        where = (at.of_pairs, at.slot, None if before is None else at.own, before, values)
        self._call("pair_blocks", self._block_loop, self._blocks(*weighed), self.touching(), total, *sizes, *where)

    def touching(self) -> Tensor:
        """Return the numbers (A,) of the pairs that touch, in the table's list."""
        gaps = self._q.new_empty(len(self._listed.robot))
        self._call("pair_values", self._loops.gap, self._gap(), None, 1, gaps)
        return (gaps < self._constants.tolerance).nonzero().squeeze(1)

    def _gap(self) -> tuple[Tensor, ...]:
        return self._x, self._reach, *self._more

    def _force(self) -> tuple[Tensor, ...]:
        return self._x, self._moving, self._reach, *self._law, *self._more

    def _blocks(self, position_gain: Tensor, velocity_gain: Tensor) -> tuple[Tensor, ...]:
        moving = (self._x, self._moving, position_gain, velocity_gain)
        return *moving, self._reach, *self._expected, *self._law, *self._more
