"""The matrix of a step in which parts that no element joins may touch: its pattern, and the contacts' place in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.law import ContactLaw
from torchdismech.contact.pairs import PairTable
from torchdismech.contact.self_contact import Pairs, SelfContact, summed
from torchdismech.sparse import Pattern

__all__ = ["CouplingCache", "StepPairs"]

KEPT = 4  # the pattern is made anew, with what it needs only, when it joins so many times more nodes than needed


@dataclass(frozen=True)
class Layout:
    """Where the blocks of a table's pairs stand in the values of a pattern.

    Attributes
    ----------
    place : (144, C) for each entry of each pair's block, in rows; meaningless where not `kept`.
    kept : (144, C) bool: False for clamped dofs, and above the diagonal of a symmetric pattern.
    """

    place: Tensor
    kept: Tensor


@dataclass(frozen=True)
class Coupling:
    """The pattern of a step with contact, and where everything goes in it."""

    pattern: Pattern
    solvers: dict
    own: Tensor  # (nnz of the pattern without contact,) places of its entries
    layouts: tuple[Layout, ...]

    def widened(self, values: Tensor) -> Tensor:
        """Return values (nnz, B) on the pattern with contact of values on the one without."""
        wide = values.new_zeros(self.pattern.nnz, values.shape[1])
        return wide.index_copy_(0, self.own, values)

    def add(self, values: Tensor, kind: int, table: PairTable, chosen: Tensor, blocks: Tensor) -> None:
        """Add the blocks (A, 12, 12) of the chosen pairs of a table to the values, in place."""
        layout = self.layouts[kind]
        batch = values.shape[1]
        place, kept = layout.place[:, chosen], layout.kept[:, chosen]
        index = place * batch + table.places[0][chosen]
        values.view(-1).index_put_((index[kept],), blocks.flatten(1).t()[kept], accumulate=True)


class StepPairs:
    """What may touch in a step, with the matrix that it needs."""

    def __init__(self, pairs: Pairs, cache: CouplingCache):
        self.pairs = pairs
        self._cache = cache

    def rows(self, index: Tensor) -> StepPairs:
        """Return the pairs of the robots that `index` selects."""
        return StepPairs(self.pairs.rows(index), self._cache)

    @cached_property
    def coupling(self) -> Coupling:
        """The matrix's layout; found when it is first needed."""
        return self._cache.coupling(self.pairs)

    def added(
        self,
        contact: SelfContact,
        q: Tensor,
        velocity: Tensor,
        values: Tensor,
        position_gain: float,
        velocity_gain: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the contact force (B, n), and values on the pattern without contact widened by its derivatives."""
        values = self.coupling.widened(values)
        total = torch.zeros_like(q)
        for kind, found in enumerate(contact.touching(self.pairs, q, velocity)):
            table, law = self.pairs.tables[kind], contact.law
            assert isinstance(law, ContactLaw)  # constraints touch nothing here
            force, blocks = found.force_and_blocks(law, position_gain, velocity_gain)
            total = total + summed(table, found, force, q)
            self.coupling.add(values, kind, table, found.chosen, blocks)
        return total, values


class CouplingCache:
    """Finds the coupling of a step; keeps the pattern from step to step while it holds all that may touch.

    Parameters
    ----------
    pattern : of the matrix without contact.
    unknown : (3 N,) the numbers of the nodes' unknowns, -1 where clamped.
    """

    def __init__(self, pattern: Pattern, unknown: np.ndarray):
        self.base = pattern
        self.unknown = unknown.reshape(-1, 3)
        self.pattern = pattern
        self.joined = np.zeros(0, dtype=np.int64)  # keys i * N + j of the pairs of nodes that the pattern joins
        self.solvers: dict = {}  # of the pattern
        self._own = torch.arange(pattern.nnz)

    def coupling(self, pairs: Pairs) -> Coupling:
        """Return the coupling for these pairs."""
        count, device = len(self.unknown), pairs.low.device
        keys = []
        for table in pairs.tables:
            nodes = table.nodes[table.places]  # (C, 4)
            keys.append((nodes.unsqueeze(2) * count + nodes.unsqueeze(1)).flatten(1))  # (C, 16)
        unique, inverse = torch.unique(torch.cat([k.flatten() for k in keys]), return_inverse=True)
        needed = unique.cpu().numpy()
        if not np.isin(needed, self.joined, assume_unique=True).all():
            self._extend(needed)
        places = [torch.as_tensor(x, device=device) for x in self._places(needed)]  # (U, 9) each
        layouts, offset = [], 0
        for k in keys:
            own = inverse[offset : offset + k.numel()].view(-1, 4, 4)
            offset += k.numel()
            # (C, 4, 4, 3, 3) -> rows (4, 3), columns (4, 3)
            p, f = (x[own].unflatten(-1, (3, 3)).permute(1, 3, 2, 4, 0).flatten(0, 3) for x in places)
            layouts.append(Layout(p.contiguous(), f.contiguous()))
        return Coupling(self.pattern, self.solvers, self._own.to(device), tuple(layouts))

    def _extend(self, needed: np.ndarray) -> None:
        """Make a pattern that joins these pairs of nodes, and those that it joined before if they are not too many."""
        count = len(self.unknown)
        self.joined = needed if len(self.joined) > KEPT * len(needed) else np.union1d(self.joined, needed)
        rows, cols = self._unknowns(self.joined // count, self.joined % count)
        keep = (rows >= 0) & (cols >= 0)
        self.pattern = Pattern.union(
            self.base.n,
            np.concatenate([self.base.rows, rows[keep]]),
            np.concatenate([self.base.cols, cols[keep]]),
            self.base.symmetric,
        )
        self.solvers = {}
        self._own = torch.from_numpy(self.pattern.position(self.base.rows, self.base.cols))

    def _unknowns(self, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the unknowns (U, 9) in the rows and columns of blocks of nodes."""
        rows, cols = self.unknown[i], self.unknown[j]
        return np.repeat(rows, 3, axis=1), np.tile(cols, 3)

    def _places(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the blocks (U, 9) of pairs of nodes stand, and which of their entries do."""
        count = len(self.unknown)
        rows, cols = self._unknowns(keys // count, keys % count)
        kept = (rows >= 0) & (cols >= 0)
        if self.pattern.symmetric:
            kept &= rows >= cols
        place = np.zeros(rows.shape, dtype=np.int64)
        place[kept] = self.pattern.position(rows[kept], cols[kept])
        return place, kept
