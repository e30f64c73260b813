"""Corners: matrices that multiply the strains of a term's springs before its energies and laws see them.

With them the laws of a straight rod hold for springs whose edges meet at an angle (`builder/corners.py` makes them).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import cast

from torch import Tensor, nn

from torchdismech.elastic.energy import Strain, batch_last, known_sum
from torchdismech.values import numbers

__all__ = ["Corners", "Entries"]

Entries = list[list[Tensor | None]]


class Corners(nn.Module):
    """A matrix P for each spring: energies and laws see P strain, and their stresses act on the strains as P^T stress.

    Parameters
    ----------
    matrices : P (.., S, k, k) for k strains. Off-diagonal entries that are zero for all springs are not stored.
    """

    def __init__(self, matrices: Tensor):
        super().__init__()
        matrices = numbers(matrices, "Corners: matrices")
        self._count = matrices.shape[-1]
        entries = product(range(self._count), repeat=2)
        self._entries = [(i, j) for i, j in entries if i == j or bool((matrices[..., i, j] != 0).any())]
        for i, j in self._entries:
            self.register_buffer(_name(i, j), matrices[..., i, j].contiguous())
        self.per_robot = tuple(_name(i, j) for i, j in self._entries)

    def strains(self, strain: Strain) -> Strain:
        """Return P strain, each (S, B)."""
        return tuple(cast(Tensor, _products(row, strain)) for row in self._matrix())

    def slopes(self, stress: Sequence[Tensor]) -> list[Tensor]:
        """Return P^T stress, each (S, B): first derivatives by the strains, from those by P strain."""
        matrix = self._matrix()
        return [cast(Tensor, _products([row[j] for row in matrix], stress)) for j in range(self._count)]

    def stiffness(self, stiffness: Entries) -> Entries:
        """Return P^T stiffness P: second derivatives by the strains, from those by P strain; None stands for zero."""
        matrix = self._matrix()
        columns = [[row[j] for row in matrix] for j in range(self._count)]
        rows = [[_products(own, column) for column in columns] for own in stiffness]
        return [[_products([row[j] for row in rows], column) for column in columns] for j in range(self._count)]

    def _matrix(self) -> Entries:
        """Return the entries of P; None stands for zero."""
        return [[self._entry(i, j) for j in range(self._count)] for i in range(self._count)]

    def _entry(self, i: int, j: int) -> Tensor | None:
        return batch_last(getattr(self, _name(i, j))) if (i, j) in self._entries else None


def _name(i: int, j: int) -> str:
    return f"corner{i + 1}{j + 1}"


def _products(weights: Sequence[Tensor | None], values: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum of the products of weights and values; None stands for zero."""
    pairs = zip(weights, values, strict=True)
    return known_sum([None if weight is None or value is None else weight * value for weight, value in pairs])
