"""Sums over pairs in contact, by compiled code that takes some pairs at a time (`pair_calls`).

It calls the compiled loops of `pair_loops` and adds what they find to the sums. Where compiled code cannot be had, and
for derivatives by autograd, `pairs.Touching` has the same pair by pair.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cached_property
from operator import is_

import torch
from torch import Tensor

from torchdismech.contact.law import LawConstants
from torchdismech.contact.pairs.pair_calls import BoundLoop, PairCalls
from torchdismech.contact.pairs.pair_loops import KNOWN, PairLoops
from torchdismech.contact.pairs.pairs import PairTable
from torchdismech.contact.pairs.structures import BlockPlaces, Structure
from torchdismech.fused import Fused, compiled_code_takes
from torchdismech.native import function_of

__all__ = ["PairSums"]


def _given_of(table: PairTable, constants: LawConstants) -> tuple[list[Tensor], Tensor]:
    """Return what loops read of the pairs of a table (reaches, the law's constants, what kernels take), and slots."""
    given = [table.reaches, *constants.at(table.robot).tensors(), *table.more]
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
        self._calls = PairCalls(table.listed, given, table.reaches.dtype, slots)
        self.block_places = BlockPlaces.unfilled()
        self._bind(table, constants)
        self._reach, *rest = self._calls.given
        count = len(constants.tensors())
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
        if not compiled_code_takes(q, velocity, *constants.tensors()):
            return None
        kept: PairSums | None = table.sums.get(loops)
        if kept is not None and kept._table() is not table:  # it was bound to another one since
            kept = None
        if kept is not None and kept._serves(constants.tensors()):
            return kept if kept._is_compiled else None
        return cls.bound_to(loops, table, constants, kept)

    @classmethod
    def bound_to(
        cls, loops: PairLoops, table: PairTable, constants: LawConstants, kept: PairSums | None
    ) -> PairSums | None:
        """Return the sums for the pairs of a table: `kept` ones, now bound to this table, where they can be.

        None where compiled code cannot find them.
        """
        numbers = constants.tensors()
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
        shapes = [number.numel() > 1 for number in self._constants.tensors()]
        same_kinds = shapes == [number.numel() > 1 for number in constants.tensors()]
        return self._loops is loops and same_kinds and table.reaches.dtype == self._reach.dtype

    def _serves(self, numbers: Sequence[Tensor]) -> bool:
        """Return whether these are the tensors of the constants, for all robots."""
        own = self._constants.tensors()
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

    def _blocks(self, known: Tensor | None) -> BoundLoop | None:
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
