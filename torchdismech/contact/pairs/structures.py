"""Structures of compiled code: what it is told of pairs and blocks by their places in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from torchdismech.native import address

__all__ = ["BLOCK", "BlockPlaces", "Structure"]

BLOCK = 12  # numbers that the sum of a block takes in compiled code: three rows of four


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
