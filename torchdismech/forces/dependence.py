"""Derivatives of forces by autograd: which dofs a force depends on, and the backward passes that this takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from torch import Tensor, nn

from torchdismech.autograd import AutogradOn
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State

__all__ = [
    "Block",
    "Dependence",
    "Derivatives",
    "Evaluation",
    "as_recorded",
    "gradients_by_seeds",
    "products",
    "variables_of",
]

Derivatives = list[tuple[Tensor | None, Tensor | None]]
Evaluation = Callable[[State, Control], Tensor]  # the force (B, n)

SEEDS_AT_A_TIME = 2**24  # most numbers in the seeds of backward passes that are batched into one: 128 MiB


@dataclass(frozen=True)
class Block:
    """The dof indices of S small dense blocks of a force's derivatives: rows (S, r) and columns (S, c)."""

    rows: np.ndarray
    cols: np.ndarray


class Dependence(nn.Module):
    """The sparsity of a force's derivatives, and the backward passes that compute them.

    Rows of the derivative that have no column in common share a backward pass (graph colouring). For nodes along a rod
    these are three passes for each of 2 reach + 1 groups, more where rods branch and on shells. Without a `reach` every
    dof may depend on every other: that takes n passes, n x n numbers per robot, and a dense matrix. With a `reach`,
    columns of held tangents are left out: these are all clamped, so no step needs derivatives by them.

    Parameters
    ----------
    body : of the robot.
    reach : how many edges away from a node, or from the ends of an edge, its force may depend on others; None: it
        depends on every dof.
    torques : whether torques on the angles of framed edges have derivatives, too.
    """

    def __init__(self, body: Body, reach: int | None, torques: bool = False):
        super().__init__()
        self.reach, self.torques = reach, torques
        if reach is None:
            every = np.arange(body.n_dofs)[None]
            rows_and_columns = [(every, scipy.sparse.csr_matrix(np.ones((1, body.n_dofs))))]
        else:
            near = _within(body, reach)
            nodes = 3 * np.arange(body.n_nodes)[:, None] + np.arange(3)
            rows_and_columns = [(nodes, _columns(body, near))]
            if torques and body.n_angles:
                angles = 3 * body.n_nodes + np.arange(body.n_angles)[:, None]
                start, end = _edges_of_angles(body).T
                rows_and_columns.append((angles, _columns(body, (near[start] + near[end]).sign())))
        self._blocks = nn.ModuleList(_Rows(rows, columns) for rows, columns in rows_and_columns)

    def blocks(self) -> list[Block]:
        """Return the dof indices of the blocks: those of nodes, then, with torques, those of angles."""
        return [Block(rows.rows.cpu().numpy(), rows.columns.cpu().numpy()) for rows in self._row_blocks()]

    def derivatives(self, force: Evaluation, state: State, control: Control) -> Derivatives:
        """Return for each block the derivatives of the force by q and by velocity (B, S, r, c); None for zero."""
        return self.with_derivatives(force, state, control)[1]

    def with_derivatives(self, force: Evaluation, state: State, control: Control) -> tuple[Tensor, Derivatives]:
        """Return the force (B, n), and the same as `derivatives` without gradients, from one evaluation."""
        with variables_of(state.q, state.velocity) as variables:
            value = force(state.replace(q=variables[0], velocity=variables[1]), control)
            depends = value.requires_grad  # on q or velocity, or on what else requires gradients
            derivatives = [
                rows.derivatives(value, variables) if depends else (None, None) for rows in self._row_blocks()
            ]
        return as_recorded(value), derivatives

    def _row_blocks(self) -> list[_Rows]:
        return list(self._blocks)  # type: ignore[arg-type]


class _Rows(nn.Module):
    """Blocks with rows (S, r) and columns (S, c), in groups of blocks that have no column in common.

    Blocks with fewer columns are padded by repeating the last one. The tables are buffers on the device of the force,
    as index lists in the host's memory would be copied there in each evaluation.
    """

    rows: Tensor
    columns: Tensor
    valid: Tensor  # (S, c) False for padding
    members: Tensor  # (S,) indices of the blocks, group by group

    def __init__(self, rows: np.ndarray, columns: scipy.sparse.csr_matrix):
        super().__init__()
        row_indices = _row_indices(columns)
        width = max(len(c) for c in row_indices)
        padded = np.array([np.pad(c, (0, width - len(c)), mode="edge") for c in row_indices])
        valid = np.arange(width) < np.array([len(c) for c in row_indices])[:, None]
        groups = _groups((columns @ columns.T).tocsr())
        self.sizes = [len(group) for group in groups]
        tables = {"rows": rows, "columns": padded, "valid": valid, "members": np.concatenate(groups)}
        for name, value in tables.items():
            self.register_buffer(name, torch.as_tensor(value, device="cpu"), persistent=False)

    def derivatives(self, value: Tensor, variables: list[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Return the derivatives of a force (B, n) by each variable (B, n), (B, S, r, c); None for zero."""
        passes = [(group, k) for group in self.members.split(self.sizes) for k in range(self.rows.shape[1])]
        at_once = max(1, SEEDS_AT_A_TIME // value.numel())
        blocks: list[Tensor | None] = [None, None]
        for first in range(0, len(passes), at_once):
            chunk = passes[first : first + at_once]
            seeds = value.new_zeros(len(chunk), *value.shape)
            for seed, (group, k) in zip(seeds, chunk, strict=True):
                seed.index_fill_(1, self.rows[group, k], 1.0)  # indexed assignment would copy 1.0 from host to device
            gradients = gradients_by_seeds(value, variables, seeds, retain_graph=True)
            for kind, gradient in enumerate(gradients):
                if gradient is not None:
                    blocks[kind] = self._gathered(blocks[kind], gradient, chunk)
        return tuple(blocks)  # type: ignore[return-value]

    def _gathered(self, blocks: Tensor | None, gradient: Tensor, passes: list[tuple[Tensor, int]]) -> Tensor:
        """Return the blocks (B, S, r, c) with those rows filled in that some passes' gradients (passes, B, n) hold."""
        if blocks is None:
            blocks = gradient.new_zeros(gradient.shape[1], *self.rows.shape, self.columns.shape[1])
        for row, (group, k) in zip(gradient, passes, strict=True):
            blocks[:, group, k] = row[:, self.columns[group]] * self.valid[group]
        return blocks


@contextmanager
def variables_of(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Give tensors of the same numbers by which functions of them are differentiated, with autograd on in the block.

    Where autograd records, gradients go on through them to the tensors given.
    """
    goes_on = torch.is_grad_enabled()
    with AutogradOn():  # a view is another variable than its base: functions of this may stand in another view
        yield [t.view_as(t) if goes_on and t.requires_grad else t.detach().requires_grad_() for t in tensors]


def as_recorded(value: Tensor) -> Tensor:
    """Return what was evaluated with autograd on, without gradients where autograd does not record."""
    return value if torch.is_grad_enabled() else value.detach()


def gradients_by_seeds(
    value: Tensor, variables: list[Tensor], seeds: Tensor, retain_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """Return for each variable the gradients (seeds, *its shape) for all seeds (seeds, *value's shape), in one pass.

    In torch's anomaly mode traces are kept, but the check for NaN is switched off, as it does not support batched
    gradients.
    """
    anomalies = torch.is_anomaly_enabled()
    with torch.autograd.set_detect_anomaly(True, check_nan=False) if anomalies else nullcontext():
        return torch.autograd.grad(
            value, variables, seeds, retain_graph=retain_graph, allow_unused=True, is_grads_batched=True
        )


def products(blocks: list[Block], derivatives: Derivatives, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum_i weights_i dF_i / dq and the same by velocity, each (B, n), of derivatives in blocks."""
    sums = []
    for kind in range(2):
        total = torch.zeros_like(weights)
        for block, values in zip(blocks, derivatives, strict=True):
            if (entries := values[kind]) is not None:
                rows, cols = (torch.as_tensor(x, device=weights.device) for x in (block.rows, block.cols))
                by_block = (weights[:, rows].unsqueeze(-1) * entries).sum(2)  # (B, S, c)
                total = total.index_add(1, cols.flatten(), by_block.flatten(1))
        sums.append(total)
    return sums[0], sums[1]


def _within(body: Body, reach: int) -> scipy.sparse.csr_matrix:
    """Return a sparse matrix (N, N) with a 1 for each pair of nodes that are at most `reach` edges apart."""
    n, edges = body.n_nodes, body.links
    ones = np.ones(len(edges), dtype=np.int64)
    step = scipy.sparse.coo_matrix((ones, (edges[:, 0], edges[:, 1])), shape=(n, n)).tocsr()
    step = step + step.T + scipy.sparse.identity(n, dtype=np.int64, format="csr")
    reached = scipy.sparse.identity(n, dtype=np.int64, format="csr")
    for _ in range(reach):
        reached = (reached @ step).sign()
    return reached


def _columns(body: Body, near: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """Return a sparse (S, 3 N + A) that marks dofs: of the nodes `near` (S, N), and of edges with both nodes near."""
    start, end = (near[:, nodes] for nodes in _edges_of_angles(body).T)
    axes = np.ones((1, 3), dtype=np.int64)
    columns = scipy.sparse.hstack([scipy.sparse.kron(near, axes), start.multiply(end)]).tocsr()
    columns.eliminate_zeros()
    columns.sort_indices()
    return columns


def _edges_of_angles(body: Body) -> np.ndarray:
    """Return the end nodes (A, 2) of the edge that each angle belongs to; for a held tangent, of the edge it holds."""
    return np.concatenate([body.framed_edges, body.rod_edges[body.held.edges]])


def _row_indices(relation: scipy.sparse.csr_matrix) -> list[np.ndarray]:
    """Return for each row of a sparse matrix the indices of its entries."""
    return np.split(relation.indices.astype(np.int64), relation.indptr[1:-1])


def _groups(conflict: scipy.sparse.csr_matrix) -> list[list[int]]:
    """Return groups of rows such that no two rows of a group are in conflict, by greedy colouring."""
    groups: list[list[int]] = []
    group_of = np.full(conflict.shape[0], -1)
    for row, others in enumerate(_row_indices(conflict)):
        groups_in_conflict = set(group_of[others].tolist())
        group_of[row] = next(k for k in range(len(groups) + 1) if k not in groups_in_conflict)
        if group_of[row] == len(groups):
            groups.append([])
        groups[group_of[row]].append(row)
    return groups
