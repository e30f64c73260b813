"""Topology of a triangulated surface: its edges, the triangles at each edge, and the hinges between triangles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.geometry.frames import unit
from torchdismech.geometry.graphs import connected_parts

__all__ = ["Surface", "edge_normals", "find_surface"]

# Side k of a triangle lies opposite to its node k and is walked from node k + 1 to node k + 2.
SIDE_START, SIDE_END = (1, 2, 0), (2, 0, 1)


@dataclass(frozen=True)
class Surface:
    """Triangles with their edges and hinges.

    Attributes
    ----------
    triangles : (F, 3) node indices, counter-clockwise seen from the outside.
    edges : (M, 2) node indices, in order of appearance; stored as the first triangle walks them.
    sides : (F, 3) the edge opposite to each node of each triangle.
    signs : (F, 3) +1 where the triangle walks that edge as it is stored, else -1.
    hinges : (H, 4) for each edge with two triangles, in the order of `edges`: its start, its end, the node opposite to
        it in the triangle that walks it as it is stored, the node opposite in the other one.
    hinge_edges : (H,) the edge of each hinge.
    hinge_triangles : (H, 2) its two triangles.
    """

    triangles: np.ndarray
    edges: np.ndarray
    sides: np.ndarray
    signs: np.ndarray
    hinges: np.ndarray
    hinge_edges: np.ndarray
    hinge_triangles: np.ndarray

    def hinge_of_sides(self) -> np.ndarray:
        """Return the hinge (F, 3) at each side of each triangle, -1 on the boundary."""
        hinge_of_edge = np.full(len(self.edges), -1)
        hinge_of_edge[self.hinge_edges] = np.arange(len(self.hinge_edges))
        return hinge_of_edge[self.sides]

    def rim(self, chosen: np.ndarray) -> np.ndarray:
        """Return the nodes (k,) on the boundary of the part of the surface that the triangles `chosen` (m,) form."""
        count = np.bincount(self.sides[chosen].reshape(-1), minlength=len(self.edges))
        return np.unique(self.edges[count == 1])

    def inside_out(self, nodes: np.ndarray) -> np.ndarray:
        """Return the triangles that belong to closed parts of the surface whose normals point inwards.

        Parameters
        ----------
        nodes : (N, 3) positions [m].
        """
        part = connected_parts(len(self.triangles), self.hinge_triangles)
        rims, volume = np.bincount(part, (self.hinge_of_sides() < 0).any(1)), np.zeros(part.max(initial=-1) + 1)
        x = nodes[self.triangles] - nodes[self.triangles].mean((0, 1))  # a shift leaves a closed part's volume as is
        np.add.at(volume, part, np.linalg.det(x))
        return np.flatnonzero(((rims == 0) & (volume < 0))[part])


def find_surface(triangles: np.ndarray) -> Surface:
    """Return the topology of triangles (F, 3) that form an oriented manifold (see `mesh_checks.check_mesh`)."""
    triangles = np.asarray(triangles, dtype=np.int64).reshape(-1, 3)
    walked = np.stack([triangles[:, SIDE_START], triangles[:, SIDE_END]], axis=-1).reshape(-1, 2)
    _, first, inverse = np.unique(np.sort(walked, axis=1), axis=0, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))  # edges numbered by appearance
    sides = rank[inverse.reshape(-1)]
    edges = walked[np.sort(first)]
    signs = np.where((edges[sides] == walked).all(1), 1, -1)
    opposite = triangles.reshape(-1)  # side k of triangle f stands at 3 f + k, opposite to node k
    forward, backward = (_side_of_edge(sides, signs == s, len(edges)) for s in (1, -1))
    inner = np.flatnonzero(backward >= 0)
    front, back = forward[inner], backward[inner]
    hinges = np.concatenate([edges[inner], opposite[front][:, None], opposite[back][:, None]], axis=1)
    return Surface(
        triangles,
        edges,
        sides.reshape(-1, 3),
        signs.reshape(-1, 3),
        hinges,
        inner,
        np.stack([front, back], axis=1) // 3,
    )


def _side_of_edge(sides: np.ndarray, chosen: np.ndarray, n_edges: int) -> np.ndarray:
    """Return for each edge (M,) the one of the chosen sides that lies at it, -1 where there is none."""
    side_of_edge = np.full(n_edges, -1)
    side_of_edge[sides[chosen]] = np.flatnonzero(chosen)
    return side_of_edge


def edge_normals(surface: Surface, nodes: Tensor) -> Tensor:
    """Return for each edge the sum (..., M, 3) of the unit normals of its triangles, for nodes (..., N, 3)."""
    x = nodes[..., torch.as_tensor(surface.triangles, device="cpu"), :]
    normals = unit(torch.linalg.cross(x[..., 1, :] - x[..., 0, :], x[..., 2, :] - x[..., 0, :]))
    total = nodes.new_zeros(*nodes.shape[:-2], len(surface.edges), 3)
    for side in surface.sides.T:
        total = total.index_add(-2, torch.as_tensor(side, device=nodes.device), normals)
    return total
