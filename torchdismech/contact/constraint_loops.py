"""Formulas of contacts that are constraints, each evaluated by one loop (`torchdismech.fused`) over all contacts.

Contacts are rows of tensors: (S,), (S, 2). A Jacobian J (S, m, 3 k) has m rows for each contact, by the coordinates of
its k nodes. Vectors of all robots' dofs are flat, (B n,); `dofs` (S, 3 k) says which of their numbers are those of a
contact's nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import torch
from torch import Tensor

from torchdismech.fused import Fused
from torchdismech.geometry.vec3 import Vec3

__all__ = [
    "JACOBIAN",
    "MOTIONS",
    "NODAL_FORCES",
    "SIZES",
    "SLIDES",
    "TANGENTS",
    "ContactLoop",
    "dot",
    "forces_on_nodes",
    "parts",
    "rows",
]


class ContactLoop:
    """A formula as a function of tensors, evaluated by one loop over contacts.

    Parameters
    ----------
    formula : returns a list of k values for each contact.
    name : for warnings.
    """

    def __init__(self, formula: Callable[..., Sequence[Tensor]], name: str):
        self._fused = Fused(formula, f"{name} of contacts")

    def __call__(self, first: Tensor, *others: Tensor) -> Tensor:
        """Return the values (k, S).

        Parameters
        ----------
        first : (S, ..) has a row for each contact.
        others : the other arguments of the formula; flags come to it as numbers, 1 or 0.
        """
        numbers = [x.to(first.dtype) if x.dtype == torch.bool else x for x in (first, *others)]
        columns = [x if x.dtype == torch.int64 else x.unsqueeze(-1) for x in numbers]
        return self._fused(len(first), *columns).squeeze(-1)


def parts(values: Tensor) -> tuple[Tensor, ...]:
    """Return the parts (S,) of values (S, m) of contacts."""
    return values.unbind(1)


def rows(jacobian: Tensor) -> list[tuple[Tensor, ...]]:
    """Return the rows of a Jacobian (S, m, 3 k), each with 3 k entries (S,)."""
    return [row.unbind(1) for row in jacobian.unbind(1)]


def dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Return the scalar product of two lists of numbers."""
    total, *others = [a * b for a, b in zip(first, second, strict=True)]
    for other in others:
        total = total + other
    return total


def forces_on_nodes(load: Sequence[Tensor], jacobian: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return the forces J^T p (3 k) on a contact's nodes of its loads p, with the rows of its Jacobian."""
    return [dot(load, column) for column in zip(*jacobian, strict=True)]


def _jacobian(normal: Tensor, weights: Tensor, tangents: Tensor, sliding_weights: Tensor) -> list[Tensor]:
    """Return the rows (3 x 3 k) of gap and slide."""
    directions = [(normal, weights), *((tangent, sliding_weights) for tangent in tangents.unbind(1))]
    return [w * x for direction, shares in directions for w in parts(shares) for x in parts(direction)]


def _tangents(normal: Tensor) -> list[Tensor]:
    """Return two unit vectors (2 x 3) that span the plane across a normal of any length."""
    along = Vec3(*parts(normal)).unit()
    first = along.first_director()
    return [*first.components(), *along.cross(first).components()]


def _sizes(forces: Tensor) -> list[Tensor]:
    """Return the size of the sum of forces (S, 3 k) on nodes."""
    at_nodes = parts(forces)
    return [Vec3(*(reduce(add, at_nodes[axis::3]) for axis in range(3))).length()]


def _motions(jacobian: Tensor, vector: Tensor, dofs: Tensor) -> list[Tensor]:
    """Return J v (m) of a vector v (B n,)."""
    moved = [vector[dof] for dof in parts(dofs)]
    return [dot(row, moved) for row in rows(jacobian)]


def _nodal_forces(load: Tensor, jacobian: Tensor) -> list[Tensor]:
    """Return J^T p (3 k) of loads p (S, m)."""
    return forces_on_nodes(parts(load), rows(jacobian))


def _slides(tangents: Tensor, weights: Tensor, moved: Tensor, way: Tensor, dofs: Tensor) -> list[Tensor]:
    """Return the slides (2) of contacts whose nodes go a way (B n,), and whose other surface moves by (S, 2)."""
    at_nodes, shares = [way[dof] for dof in parts(dofs)], parts(weights)
    point = [dot(shares, at_nodes[axis::3]) for axis in range(3)]
    surface = parts(moved)
    return [dot(parts(tangent), point) - other for tangent, other in zip(tangents.unbind(1), surface, strict=True)]


JACOBIAN, MOTIONS = ContactLoop(_jacobian, "Jacobians"), ContactLoop(_motions, "motions")
TANGENTS, SIZES = ContactLoop(_tangents, "tangents"), ContactLoop(_sizes, "sizes of forces")
NODAL_FORCES, SLIDES = ContactLoop(_nodal_forces, "forces"), ContactLoop(_slides, "slides")
