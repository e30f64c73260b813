"""C structures of integers and addresses, by which `native/pairs.cpp` knows pairs and the blocks of a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from torchdismech.native import address

__all__ = ["BLOCK", "BlockPlaces", "Structure"]

BLOCK = 12  # numbers for the sum of a 3 x 3 block in compiled code: three rows of four, so that a row is a vector


class Structure:
    """A C structure of integers and of addresses of tensors and arrays, which it keeps alive.

    Attributes
    ----------
    address : of the structure; it stays the same when other members are filled in.
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
        self._members = members
        self._numbers[:] = [address(member) or 0 for member in members]


@dataclass(frozen=True)
class BlockPlaces:
    """Where the 3 x 3 blocks of a table's pairs go in the matrix; the structure `Blocks` in `native/pairs.cpp`.

    Compiled code first sums the blocks of a robot, `BLOCK` numbers each, then adds these sums to the nnz values.

    Attributes
    ----------
    limit : blocks with this number or a larger one are left out, as those of the other triangle of a symmetric matrix.
    pair_blocks : (C, n^2) number of the block of each two nodes of a pair, row by row.
    from_sums : (nnz,) int32, for each value the index of the number among a robot's sums that is added; -1 for none.
    from_base : (nnz,) int32, for each value the index of the value of the matrix without contact as which it begins; -1
        for zero.
    """

    limit: int
    pair_blocks: Tensor
    from_sums: np.ndarray
    from_base: np.ndarray

    @cached_property
    def bound(self) -> Structure:
        """The structure for compiled code."""
        return Structure(*self.members)

    @staticmethod
    def unfilled() -> Structure:
        """Return an empty structure, to be filled with `members` later: recordings need its address before."""
        return Structure.unfilled(5)

    @property
    def members(self) -> tuple:
        """The members of the structure, in order."""
        return len(self.from_sums), self.limit, self.pair_blocks, self.from_sums, self.from_base
