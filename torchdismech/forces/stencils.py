"""Forces that are a loop over nodes, edges or triangles: how it reads q, and where what it finds goes.

Loops are functions of tensors with elements first and robots last; see `torchdismech.fused`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.geometry.vec3 import Vec3

__all__ = ["blocks_of", "dofs_of_nodes", "node_forces", "sizes_of", "vectors_at"]


def dofs_of_nodes(*nodes: np.ndarray) -> Tensor:
    """Return the dofs (k, 3, S) of the k nodes (S,) that each element has."""
    return torch.as_tensor(3 * np.stack(nodes)[:, None] + np.arange(3)[:, None])


def vectors_at(values: Tensor, dofs: Tensor) -> Vec3:
    """Return positions or velocities at dofs (3, S), of the q or velocity (n, B) of all dofs."""
    return Vec3(*(values[dof] for dof in dofs.unbind(0)))


def sizes_of(sizes: Tensor) -> Tensor:
    """Return sizes (E,) or (B, E) as a matrix with a row for each element, (E, 1) or (E, B)."""
    return sizes.unsqueeze(1) if sizes.dim() == 1 else sizes.t()


def node_forces(found: Tensor, dofs: Tensor, count: int) -> Tensor:
    """Return the force (B, n) on all n dofs of what was found (k, S, B) for dofs (k, S)."""
    total = found.new_zeros(count, found.shape[-1])
    return total.index_add(0, dofs.flatten(), found.flatten(0, 1)).t()


def blocks_of(found: Tensor, rows: int) -> Tensor:
    """Return blocks (B, S, r, c) of so many rows, of their entries (r c, S, B) row by row."""
    return found.unflatten(0, (rows, -1)).permute(3, 2, 0, 1)
