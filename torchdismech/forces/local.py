"""Forces whose derivatives come from autograd on local blocks: the hook for learned forces."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from torchdismech.body import Body
from torchdismech.errors import InputError
from torchdismech.forces.base import Block, Derivatives, Force
from torchdismech.geometry.frames import rotated, transported, unit
from torchdismech.state import Control, State

__all__ = ["LocalForce"]


class LocalForce(Force):
    """A force on nodes that depends on what is at most `reach` edges away; a subclass writes `nodal_force`.

    The derivatives that Newton's method needs are those of `nodal_force` by positions, twist angles and velocities
    within reach. Nodes far enough apart do not share any, so a few backward passes give all of them: three for each of
    2 reach + 1 groups of nodes along a rod, more where rods branch and on shells. What the force depends on beyond its
    reach is NOT seen by them; `torchdismech.testing.check_force` shows it.

    Parameters
    ----------
    reach : edges from a node to what its force depends on: 0 for the node alone, 1 for neighbours and adjacent edges.
    explicit : evaluate the force once at the start of a step and hold it; then there are no derivatives.
    """

    symmetric = False
    _edges: Tensor
    _columns: Tensor
    _valid: Tensor

    def __init__(self, reach: int = 1, explicit: bool = False):
        super().__init__(explicit)
        if reach < 0:
            raise InputError(f"{type(self).__name__}: reach has to be 0 or more edges, got {reach}")
        self.reach = int(reach)

    def nodal_force(self, state: State, control: Control) -> Tensor:
        """Return the force on the nodes (B, N, 3) [N].

        `state.director` and `state.tangent` are anchors; `frames` gives the present tangents and directors.
        """
        raise TypeError(f"{type(self).__name__} has to define nodal_force(state, control)")

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n)."""
        return self.body.on_nodes(self.nodal_force(state, control))

    def frames(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return tangents and material directors m1, m2 of the rod edges (B, E, 3) at the state's q."""
        x, edges = state.positions, self._edges
        count = len(edges)
        tangent = unit(x[:, edges[:, 1]] - x[:, edges[:, 0]])
        director = transported(state.director[:, :count], state.tangent[:, :count], tangent)
        m1 = rotated(director, tangent, state.twist[:, :count])
        return tangent, m1, torch.linalg.cross(tangent, m1)

    def bind(self, body: Body) -> None:
        """Find what is within reach of each node, and groups of nodes whose surroundings do not meet."""
        super().bind(body)
        self.register_buffer("_edges", torch.as_tensor(body.rod_edges), persistent=False)
        near = _within(body, self.reach)
        columns, self._groups = _columns(body, near), _groups(_within(body, 2 * self.reach))
        width = max(len(c) for c in columns)
        padded = np.array([[*c, *[c[0]] * (width - len(c))] for c in columns])
        self.register_buffer("_columns", torch.as_tensor(padded), persistent=False)
        valid = np.arange(width) < np.array([len(c) for c in columns])[:, None]
        self.register_buffer("_valid", torch.as_tensor(valid, dtype=body.nodes.dtype), persistent=False)

    def blocks(self) -> list[Block]:
        """Return each node's three rows against all dofs within its reach."""
        dofs = 3 * np.arange(self.body.n_nodes)[:, None] + np.arange(3)
        return [Block(dofs, self._columns.cpu().numpy())]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivatives by q and by velocity (B, N, 3, columns)."""
        batch, n = state.q.shape
        with torch.enable_grad():
            variables = [state.q.detach().requires_grad_(), state.velocity.detach().requires_grad_()]
            force = self.nodal_force(state.replace(q=variables[0], velocity=variables[1]), control)
            seeds = force.new_zeros(len(self._groups), 3, *force.shape)
            for group, nodes in enumerate(self._groups):
                for axis in range(3):
                    seeds[group, axis, :, nodes, axis] = 1
            if not force.requires_grad:  # it depends on neither
                return [(None, None)]
            found = torch.autograd.grad(force, variables, seeds.flatten(0, 1), is_grads_batched=True, allow_unused=True)
        return [tuple(None if g is None else self._blocks_of(g.view(-1, 3, batch, n)) for g in found)]  # type: ignore[list-item]

    def _blocks_of(self, gradients: Tensor) -> Tensor:
        """Return (B, N, 3, columns) of the groups' gradients (groups, 3, B, n)."""
        _, _, batch, _ = gradients.shape
        blocks = gradients.new_zeros(batch, self.body.n_nodes, 3, self._columns.shape[1])
        for gradient, nodes in zip(gradients, self._groups, strict=True):
            picked = gradient[:, :, self._columns[nodes]]  # (3, B, nodes, columns)
            blocks[:, nodes] = picked.permute(1, 2, 0, 3)
        return blocks * self._valid[:, None, :]


def _within(body: Body, reach: int) -> scipy.sparse.csr_matrix:
    """Return (N, N): which nodes are at most `reach` edges apart."""
    n, edges = body.n_nodes, body.links
    ones = np.ones(len(edges), dtype=np.int64)
    step = scipy.sparse.coo_matrix((ones, (edges[:, 0], edges[:, 1])), shape=(n, n)).tocsr()
    step = step + step.T + scipy.sparse.identity(n, dtype=np.int64, format="csr")
    reached = scipy.sparse.identity(n, dtype=np.int64, format="csr")
    for _ in range(reach):
        reached = (reached @ step).sign()
    reached.sort_indices()
    return reached


def _columns(body: Body, near: scipy.sparse.csr_matrix) -> list[list[int]]:
    """Return for each node the dofs within its reach: of the nodes, and of edges with both nodes within it."""
    start, end = (near[:, nodes] for nodes in body.framed_edges.T)
    both = start.multiply(end).tocsr()
    both.sort_indices()
    columns = []
    for nodes, edges in zip(_members(near), _members(both), strict=True):
        of_nodes = (3 * nodes[:, None] + np.arange(3)).flatten().tolist()
        columns.append([*of_nodes, *(3 * body.n_nodes + edges).tolist()])
    return columns


def _members(relation: scipy.sparse.csr_matrix) -> list[np.ndarray]:
    """Return the columns of each row."""
    return np.split(relation.indices.astype(np.int64), relation.indptr[1:-1])


def _groups(conflict: scipy.sparse.csr_matrix) -> list[list[int]]:
    """Return groups of nodes of which no two are in conflict, by greedy colouring."""
    groups: list[list[int]] = []
    group_of = np.full(conflict.shape[0], -1)
    for node, others in enumerate(_members(conflict)):
        taken = set(group_of[others].tolist())
        group_of[node] = next(k for k in range(len(groups) + 1) if k not in taken)
        if group_of[node] == len(groups):
            groups.append([])
        groups[group_of[node]].append(node)
    return groups
