"""`MatrixLayout`: the sparsity pattern of a robot's matrix, and where terms and forces are summed into it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.compilation import Compilation
from torchdismech.elastic import Assembly, ElasticTerm
from torchdismech.elastic.scatters import couplings
from torchdismech.forces import Force
from torchdismech.robot.body import Body
from torchdismech.robot.inertia import Inertia
from torchdismech.robot.slides import SlidingEntries
from torchdismech.robot.unknowns import Unknowns
from torchdismech.sparse import Pattern, Scatter

__all__ = ["MatrixLayout"]


class MatrixLayout(nn.Module):
    """The pattern of a robot's matrix without contact between its parts, and the sums of its parts into the values.

    Parameters
    ----------
    body, terms, forces : of the robot.
    unknowns : of the robot.
    symmetric : whether the sum of all derivatives is a symmetric matrix.
    compilation : decides what runs compiled, see `Assembly`.

    Attributes
    ----------
    pattern : of the matrix.
    elastic : sums all terms (and forces over stencils) into forces and values.
    inertia : the mass matrix.
    force_scatters : for each force and each of its blocks, the sum into the values (nnz, B).
    sliding : turns the values into those for nodes that slide; None without any.
    """

    force_scatters: Sequence[Sequence[Scatter]]
    _diagonal: Tensor
    _algebraic_rows: Tensor
    _algebraic_cols: Tensor

    def __init__(
        self,
        body: Body,
        terms: Sequence[ElasticTerm],
        forces: Sequence[Force],
        unknowns: Unknowns,
        symmetric: bool,
        compilation: Compilation,
    ):
        super().__init__()
        dtype, unknown, slides = body.nodes.dtype, unknowns.number, unknowns.slides
        loads = [force for force in forces if force.varies and force.by_stencils]
        placed = [_placed_blocks(force, unknown) for force in forces]
        summed: list[ElasticTerm] = [*terms, *(load.term for load in loads)]  # type: ignore[list-item]
        # entries of one triangle; those of the other are added below, or not stored
        entries = [couplings(term.stencil, unknown) for term in summed]
        for r, c in (block for blocks in placed for block in blocks):
            keep = (r >= 0) & (c >= 0)
            entries.append((r[keep], c[keep]))
        rows, cols = (np.concatenate([np.zeros(0, dtype=np.int64), *x]) for x in zip(*entries, strict=True))
        rows, cols = slides.coupled(unknown, rows, cols)
        if not symmetric:  # solvers need a pattern that is symmetric in structure
            rows, cols = np.concatenate([rows, cols]), np.concatenate([cols, rows])
        self._unknowns = (unknowns,)  # in a tuple, as the model has registered this module already
        self.pattern = Pattern.union(unknowns.count, rows, cols, symmetric, _chain_order(body, unknown))
        self.elastic = Assembly(terms, loads, body.n_dofs, unknown, self.pattern, dtype, compilation)
        self.force_scatters = nn.ModuleList(  # type: ignore[assignment]
            nn.ModuleList(_block_scatter(self.pattern, r, c, dtype) for r, c in blocks) for blocks in placed
        )
        self.inertia = Inertia(body, unknowns, self.pattern)
        self.sliding = None if slides.none else SlidingEntries(slides, unknown, self.pattern)
        self.register_buffer("_diagonal", torch.as_tensor(self.pattern.diagonal, device="cpu"), persistent=False)
        massless = unknowns.algebraic[unknowns.index].cpu().numpy()
        for name, index in (("rows", self.pattern.rows), ("cols", self.pattern.cols)):
            self.register_buffer(
                f"_algebraic_{name}", torch.as_tensor(massless[index], device="cpu")[:, None], persistent=False
            )

    @property
    def between_algebraic(self) -> Tensor:
        """Whether each entry (nnz, 1) of the matrix is between two unknowns without inertia."""
        return self._algebraic_rows & self._algebraic_cols

    def add_mass(self, values: Tensor, gain: float | Tensor) -> None:
        """Add `gain` times the mass matrix to the values (nnz, B), in place."""
        mass = gain * self.inertia.mass[..., self._unknowns[0].index]
        by_robot = mass if mass.dim() == 2 else mass[None]
        values.index_add_(0, self._diagonal, by_robot.expand(values.shape[1], -1).t())
        coupling = self.inertia.coupling()
        if coupling is not None:
            values -= gain * coupling

    def entry_gains(
        self, position_gain: float, velocity_gain: float | Tensor, dtype: torch.dtype
    ) -> tuple[float | Tensor, float | Tensor]:
        """Return the gains of derivatives by position and by velocity for each entry, a number or (nnz, 1).

        They differ in rows and columns of algebraic unknowns: such a column has a position gain of 1 instead of
        `position_gain`, and such a row is divided by `position_gain`.
        """
        if position_gain == 1 or not self._unknowns[0].some_algebraic:
            return position_gain, velocity_gain
        row = torch.where(self._algebraic_rows, 1 / position_gain, 1.0).to(dtype)
        column = torch.where(self._algebraic_cols, 1.0, position_gain).to(dtype)
        return row * column, velocity_gain * row


def _chain_order(body: Body, unknown: np.ndarray) -> np.ndarray:
    """Return the unknowns in the order of a walk along the rods: x0, theta0, x1, theta1, ...; then all others."""
    order: list[int] = []
    for rod in body.rods:
        for k, node in enumerate(rod.nodes):
            order.extend(range(3 * node, 3 * node + 3))
            if k < len(rod.edges):
                order.append(3 * body.n_nodes + int(rod.edges[k]))
    order.extend(range(body.n_dofs))  # dofs that are in no rod
    first_seen = np.array(list(dict.fromkeys(order)))
    numbers = unknown[first_seen]
    return numbers[numbers >= 0]


def _placed_blocks(force: Force, unknown: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the unknowns at rows and columns of each of a force's blocks, flattened from (r, c, S); -1: clamped."""
    placed = []
    for block in force.blocks() if force.varies and not force.by_stencils else []:
        rows, cols = unknown[block.rows].T[:, None], unknown[block.cols].T[None]
        shape = np.broadcast_shapes(rows.shape, cols.shape)
        placed.append((np.broadcast_to(rows, shape).reshape(-1), np.broadcast_to(cols, shape).reshape(-1)))
    return placed


def _block_scatter(pattern: Pattern, rows: np.ndarray, cols: np.ndarray, dtype: torch.dtype) -> Scatter:
    keep = (rows >= 0) & (cols >= 0)
    if pattern.symmetric:
        keep &= rows >= cols
    source = np.flatnonzero(keep)
    position = pattern.position(rows[keep], cols[keep])
    return Scatter((pattern.nnz, len(rows)), position, source, np.ones(len(source)), dtype)
