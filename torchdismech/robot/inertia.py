"""Inertia: the mass matrix of a robot, lumped at its nodes or consistent with motion that is linear along edges.

A body that is fixed to an edge (a disc, a motor, a tool) turns with it. Its energy is J |omega|^2 / 2, and omega across
the edge is the relative velocity of its ends over its length, so that the body couples the ends as a link does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.robot.body import Body
from torchdismech.robot.unknowns import Unknowns
from torchdismech.solve.linear import solved_at_root
from torchdismech.sparse import Pattern, Scatter

__all__ = ["Inertia"]

CG_ITERATIONS = 60  # of conjugate gradients: the condition number is about 5, so that 40 already reach rounding
TIE = 8  # units of rounding: shares of the masses at the two ends of a link that differ by less are equal
CG_TOLERANCE = 1e-14  # relative tolerance of conjugate gradients where the condition number depends on the robot


class Inertia(nn.Module):
    """M = diag(mass) - sum over links of w (e_i - e_j) (e_i - e_j)^T, along each axis.

    A link is an edge of a rod, w a sixth of its mass, or a side of triangles, w a twelfth of theirs: then an edge has
    the mass matrix m / 6 [[2, 1], [1, 2]], a triangle m / 12 [[2, 1, 1], [1, 2, 1], [1, 1, 2]]. The sum over a row is
    the lumped mass, so moving as a whole takes the same force, and momenta are the same. Without links M is diagonal.
    For a rod edge with `Body.edge_inertia` J, w is smaller by J / length^2, with the rest length. J then couples the
    ends along the edge, too, where it should not; that matters for stretching waves alone.

    Masses may be trained, or set in a step. Then w follows them: it is the smaller one of a share (`Body.link_share`)
    of the masses at either end. So a factor for all masses scales all of M, and mass that is added to one node couples
    it to no other. As built, both shares are equal. There w has a kink, and its gradient is the mean of both sides.

    Parameters
    ----------
    body : of the robot.
    unknowns : of the robot.
    pattern : of the Newton matrix; it has entries for every two nodes that a link joins.
    """

    _start: Tensor
    _end: Tensor
    _ends: Tensor

    def __init__(self, body: Body, unknowns: Unknowns, pattern: Pattern):
        super().__init__()
        self._body = (body,)  # in a tuple, as the model has registered this module already
        self.diagonal = not body.couples_nodes
        if self.diagonal:
            return
        dtype, links, axes = body.nodes.dtype, body.links, np.arange(3)
        start, end = ((3 * links[:, k, None] + axes).reshape(-1) for k in range(2))
        count = np.arange(len(start))
        both = np.concatenate([start, end])
        self._flows = Scatter(
            (body.n_dofs, len(start)), both, np.tile(count, 2), np.repeat([1.0, -1.0], len(start)), dtype
        )
        places, sources, signs = [], [], []
        for a, b, sign in ((start, start, 1), (end, end, 1), (start, end, -1), (end, start, -1)):
            row, col = unknowns.number[a], unknowns.number[b]
            keep = (row >= 0) & (col >= 0) & ((row >= col) | (not pattern.symmetric))
            places.append(pattern.position(row[keep], col[keep]))
            sources.append((count // 3)[keep])
            signs.append(np.full(keep.sum(), float(sign)))
        shape = (pattern.nnz, len(links))
        self._entries = Scatter(shape, np.concatenate(places), np.concatenate(sources), np.concatenate(signs), dtype)
        for name, index in (("start", start), ("end", end)):
            self.register_buffer(f"_{name}", torch.as_tensor(index, device="cpu"), persistent=False)
        self.register_buffer("_ends", torch.as_tensor(3 * links.T.reshape(-1), device="cpu"), persistent=False)

    @property
    def mass(self) -> Tensor:
        """The lumped masses (.., n)."""
        return self._body[0].mass

    def times(self, vector: Tensor) -> Tensor:
        """Return M times a vector (B, n)."""
        return self.mass * vector if self.diagonal else self._times(vector, self.mass, self._link_mass())

    def _times(self, vector: Tensor, mass: Tensor, link_mass: Tensor) -> Tensor:
        weights = link_mass.repeat_interleave(3, dim=-1)
        flows = weights * (vector[:, self._start] - vector[:, self._end])
        return mass * vector - self._flows(flows.t().contiguous()).t()

    def coupling(self) -> Tensor | None:
        """Return the link terms to subtract from the masses, as values (nnz, 1) or (nnz, B); None without links."""
        if self.diagonal:
            return None
        weights = self._link_mass()
        return self._entries(weights.unsqueeze(-1) if weights.dim() == 1 else weights.t().contiguous())

    def _link_mass(self) -> Tensor:
        """Return the weights w (.., L) of the links [kg]."""
        body = self._body[0]
        first, second = (body.link_share * self.mass[..., self._ends]).chunk(2, dim=-1)
        is_tie = (first - second).abs() <= TIE * torch.finfo(first.dtype).eps * first
        shared = torch.where(is_tie, 0.5 * (first + second), torch.minimum(first, second))
        if body.edge_inertia is None:
            return shared
        of_edges = body.edge_inertia / body.edge_length**2
        return shared - torch.nn.functional.pad(of_edges, (0, shared.shape[-1] - of_edges.shape[-1]))

    def _preconditioner(self) -> tuple[Tensor, int]:
        """Return a positive diagonal (.., n) near M, and how many conjugate gradient iterations suffice with it."""
        mass = self.mass
        if self._body[0].edge_inertia is None:
            return mass, CG_ITERATIONS
        fixed = (-self._link_mass()).clamp_min(0.0).repeat_interleave(3, dim=-1)
        lead = torch.broadcast_shapes(mass.shape[:-1], fixed.shape[:-1])
        added = mass.new_zeros(*lead, mass.shape[-1])
        for end in (self._start, self._end):
            added = added.index_add(-1, end, fixed.expand(*lead, -1))
        ratio = torch.where(mass > 0, added / mass, 0.0).amax()
        # M is between mass and mass + 2 added; the factor 5 is the condition number of consistent masses
        condition = 5 * (1 + 2 * float(ratio.detach()))
        return mass + added, math.ceil(0.5 * math.sqrt(condition) * math.log(2 / CG_TOLERANCE))

    def solved(self, force: Tensor, unknowns: Unknowns) -> Tensor:
        """Return the acceleration (B, n) of unknowns with inertia under a force (B, n); zero in all other dofs."""
        moves, slides = unknowns.free & ~unknowns.algebraic, unknowns.slides

        def moving(vector: Tensor) -> Tensor:
            free_part = torch.where(moves, vector, 0.0)
            return free_part if slides.none else slides.projected(free_part, 0.0)

        if self.diagonal:
            return moving(force / torch.where(moves, self.mass, 1.0))
        with torch.no_grad():  # masses as they stand now, also for the backward pass
            product = partial(self._times, mass=self.mass.detach(), link_mass=self._link_mass())
            diagonal, iterations = self._preconditioner()
            near, may_stop = torch.where(moves, diagonal, 1.0), self._body[0].edge_inertia is not None
            solve = partial(_by_conjugate_gradients, product, moving, near, iterations=iterations, may_stop=may_stop)
            acceleration = solve(force)
        # Autograd through the iterations would miss directions that this force does not need.
        unbalanced = moving(force - self.times(acceleration))
        return acceleration + solved_at_root(torch.zeros_like, solve, unbalanced)


def _by_conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    moving: Callable[[Tensor], Tensor],
    diagonal: Tensor,
    force: Tensor,
    iterations: int,
    may_stop: bool,
) -> Tensor:
    """Return the solution x (B, n) of M x = force in the dofs that move, zero in the others.

    Parameters
    ----------
    product : returns M times a vector (B, n).
    moving : returns a vector with zeros in dofs that do not move.
    diagonal : (.., n), positive and near M.
    may_stop : whether to end the iterations once all robots' residuals are small.
    """
    solution = torch.zeros_like(force)
    residual = moving(force)
    direction = moving(residual / diagonal)
    slope = first = (residual * direction).sum(1, keepdim=True)
    for _ in range(iterations):
        if may_stop and bool((slope <= CG_TOLERANCE**2 * first).all()):
            break
        image = product(direction)
        length = slope / (direction * image).sum(1, keepdim=True).clamp_min(torch.finfo(force.dtype).tiny)
        solution, residual = solution + length * direction, moving(residual - length * image)
        before, slope = slope, (residual * residual / diagonal).sum(1, keepdim=True)
        direction = moving(residual / diagonal) + slope / before.clamp_min(torch.finfo(force.dtype).tiny) * direction
    return solution
