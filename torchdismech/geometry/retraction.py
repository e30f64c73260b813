"""Moving a network of edges by a step without the stretch that a straight-line move adds.

Turning an edge by an angle a along a straight line lengthens it by a factor 1/cos(a). In a stiff rod this second-order
stretch dominates the residual after a Newton step, and undoing it costs further iterations. Here every edge gets the
length that the step asks for to first order; where loops or clamps do not let all of them, in the least-squares sense.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
import torch
from torch import Tensor, nn

__all__ = ["LengthPreservingMove"]

LARGEST = 2000  # nodes; a dense map needs 8 N^2 bytes, beyond this the plain move is used


class LengthPreservingMove(nn.Module):
    """q + step for twist angles; for nodes the closest move whose edges have length |e| + t . de.

    Parameters
    ----------
    edges : (E, 2) node indices.
    free : (N, 3) bool, which components of which nodes move.
    """

    edges: Tensor
    maps: Tensor

    def __init__(self, edges: np.ndarray, free: np.ndarray, dtype: torch.dtype):
        super().__init__()
        self.n_nodes = len(free)
        self.enabled = len(edges) > 0 and self.n_nodes <= LARGEST
        self.register_buffer("edges", torch.as_tensor(edges), persistent=False)
        if self.enabled:
            # most clamps hold all three components, and then one map serves all
            chosen, map_of_axis = np.unique(free, axis=1, return_inverse=True)
            self._map_of_axis = map_of_axis.ravel().tolist()
            maps = np.stack([_loads_to_nodes(edges, column) for column in chosen.T])
            self.register_buffer("maps", torch.as_tensor(maps, dtype=dtype), persistent=False)  # (1 to 3, N, N)

    def forward(self, q: Tensor, step: Tensor) -> Tensor:
        """Return q (B, n) moved by the step (B, n); the step of clamped dofs is taken as it is."""
        moved = q + step
        if not self.enabled:
            return moved
        n = 3 * self.n_nodes
        old, new = (self._edge_vectors(v[:, :n]) for v in (q, moved))
        length = torch.linalg.vector_norm(old, dim=-1)
        along = (old * (new - old)).sum(-1) / length
        # a step that would shrink an edge to nothing is no step to follow: keep a tenth of it
        wanted = torch.maximum(length + along, 0.1 * length)
        excess = new * (wanted / torch.linalg.vector_norm(new, dim=-1) - 1).unsqueeze(-1)  # (B, E, 3)
        excess = excess.permute(1, 2, 0).flatten(1)  # (E, 3 B)
        loads = excess.new_zeros(self.n_nodes, excess.shape[1])
        loads = loads.index_add(0, self.edges[:, 1], excess).index_add(0, self.edges[:, 0], excess, alpha=-1)
        shift = self._mapped(loads).view(self.n_nodes, 3, -1).permute(2, 0, 1)
        return torch.cat([moved[:, :n] + shift.flatten(1), moved[:, n:]], dim=1)

    def _mapped(self, loads: Tensor) -> Tensor:
        """Return the shifts (N, 3 B) of loads (N, 3 B)."""
        if len(self.maps) == 1:
            return self.maps[0] @ loads
        by_axis = loads.view(self.n_nodes, 3, -1)
        return torch.stack([self.maps[k] @ by_axis[:, axis] for axis, k in enumerate(self._map_of_axis)], 1).flatten(1)

    def _edge_vectors(self, x: Tensor) -> Tensor:
        nodes = x.unflatten(1, (-1, 3))
        return nodes[:, self.edges[:, 1]] - nodes[:, self.edges[:, 0]]


def _loads_to_nodes(edges: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return (N, N): from the sums of wanted edge changes at nodes (end minus start) to the closest node shifts.

    The shifts' differences are closest to the edge changes in the least-squares sense; they are zero at fixed nodes.
    Parts of the network without a fixed node keep their mean position. Nodes without edges do not move.
    """
    n_nodes, n_edges = len(free), len(edges)
    ends = np.concatenate([edges[:, 0], edges[:, 1]])
    signs = np.repeat([-1.0, 1.0], n_edges)
    difference = scipy.sparse.csr_matrix((signs, (np.tile(np.arange(n_edges), 2), ends)), shape=(n_edges, n_nodes))
    laplacian = (difference.T @ difference).tocsc()
    parts, label = scipy.sparse.csgraph.connected_components(laplacian, directed=False)
    loose = [part for part in range(parts) if free[label == part].all()]
    solved = free & (laplacian.diagonal() > 0)
    for part in loose:  # fix one node, correct the mean below
        solved[np.flatnonzero(label == part)[0]] = False
    kept = np.flatnonzero(solved)
    shifts = np.zeros((n_nodes, n_nodes))
    if len(kept):
        factor = scipy.sparse.linalg.splu(laplacian[kept][:, kept].tocsc())
        shifts[np.ix_(kept, kept)] = factor.solve(np.eye(len(kept)))
    for part in loose:
        nodes = label == part
        shifts[nodes] -= shifts[nodes].mean(0)
    return shifts
