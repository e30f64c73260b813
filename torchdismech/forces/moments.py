"""Moments on rods: on edges, at nodes and ends, fixed in space or turning with the section."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.body import Body
from torchdismech.errors import InputError
from torchdismech.forces.base import Force, acting, check_interval, vector
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.geometry.frames import rotated, transported
from torchdismech.state import Control, State

__all__ = ["PointMoment"]

FRAMES = ("world", "material")


class PointMoment(Force):
    """A moment on rods, at the times start < t <= stop (see `base.acting`).

    An edge takes it as a pair of forces at its nodes, which turn the edge, and a torque on its angle, which turns it
    about itself. At a node the edges there share it evenly; at the end of a rod the last edge takes all, so that the
    rod bends up to the middle of that edge. A moment that is fixed in space has no potential in three dimensions, one
    that follows the section neither: the matrix of a step is not symmetric.

    Parameters
    ----------
    moment : (3,) or (B, 3) [N m]: in "world" axes x, y, z, or in "material" ones: about the directors m1 and m2 of the
        section and the tangent of the edge. EI2 resists the first, EI1 the second, GJ the third.
    nodes, edges : indices of nodes, or of rod edges; on each of them the whole moment.
    frame : "world" or "material".
    start, stop : [s].
    """

    per_robot = ("moment",)
    compiles = True
    _index: Tensor
    _share: Tensor
    _dofs: Tensor
    _ends: Tensor

    def __init__(
        self,
        moment,
        nodes: Sequence[int] | None = None,
        edges: Sequence[int] | None = None,
        frame: str = "world",
        start: float = -math.inf,
        stop: float = math.inf,
    ):
        super().__init__()
        if (nodes is None) == (edges is None):
            raise InputError("PointMoment: give either nodes or edges")
        if frame not in FRAMES:
            raise InputError(f"PointMoment.frame: expected 'world' or 'material', got {frame!r}")
        self.moment = nn.Parameter(vector(moment, "PointMoment.moment"), requires_grad=False)
        self.nodes, self.edges = nodes, edges
        self.frame, (self.start, self.stop) = frame, check_interval(start, stop, "PointMoment")

    def bind(self, body: Body) -> None:
        """Find the edges that take the moment."""
        super().bind(body)
        index, share = self._edges_and_shares(body)
        ends = body.rod_edges[index]
        dofs = np.concatenate(
            [3 * ends[:, :1] + np.arange(3), 3 * ends[:, 1:] + np.arange(3), 3 * body.n_nodes + index[:, None]], axis=1
        )
        for name, value in (("index", index), ("ends", ends), ("dofs", dofs)):
            self.register_buffer(f"_{name}", torch.as_tensor(value), persistent=False)
        self.register_buffer("_share", torch.as_tensor(share).to(body.nodes), persistent=False)

    def _edges_and_shares(self, body: Body) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges (K,) and which part of the moment each takes (K,)."""
        what, given = ("nodes", self.nodes) if self.edges is None else ("edges", self.edges)
        index = np.asarray(given, dtype=np.int64).reshape(-1)
        count = body.n_nodes if what == "nodes" else body.n_edges
        wrong = index[(index < 0) | (index >= count)]
        if len(wrong) or not len(index):
            raise InputError(f"PointMoment.{what}: expected indices 0 to {count - 1}, got {wrong.tolist() or 'none'}")
        if what == "edges":
            return index, np.ones(len(index))
        around = [np.flatnonzero((body.rod_edges == node).any(1)) for node in index]
        bare = [int(node) for node, found in zip(index, around, strict=True) if not len(found)]
        if bare:
            raise InputError(
                f"PointMoment.nodes: no rod ends at or passes node {bare[0]}: nothing takes a moment there"
            )
        return np.concatenate(around), np.concatenate([np.full(len(found), 1 / len(found)) for found in around])

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n)."""
        at = self._evaluated(state)
        pair, torque = at.pair(), at.torque()
        local = torch.cat([-pair, pair, torque.unsqueeze(-1)], dim=-1)
        return torch.zeros_like(state.q).index_add(1, self._dofs.flatten(), local.flatten(1))

    def blocks(self) -> list[Block]:
        """Return the nodes and the angle of each edge against themselves."""
        dofs = self._dofs.cpu().numpy()
        return [Block(dofs, dofs)]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivative by positions and angles."""
        at = self._evaluated(state)
        pair_by_e, pair_by_angle, torque_by_e, torque_by_angle = at.derivatives()
        by_dofs = [
            torch.cat([-by_e, by_e, by_angle.unsqueeze(-1)], dim=-1)
            for by_e, by_angle in (
                (pair_by_e, pair_by_angle),
                (torque_by_e.unsqueeze(-2), torque_by_angle.unsqueeze(-1)),
            )
        ]
        return [(torch.cat([-by_dofs[0], by_dofs[0], by_dofs[1]], dim=-2), None)]

    def _evaluated(self, state: State) -> _OnEdges:
        """Return the edges (B, K) at a state and the moment on each."""
        x, index = state.positions, self._index
        e = x[:, self._ends[:, 1]] - x[:, self._ends[:, 0]]
        on = acting(state.time, self.start, self.stop).to(state.q.dtype)
        moment = (self.moment.expand(state.batch, 3) * on[:, None]).unsqueeze(1) * self._share[:, None]
        return _OnEdges.of(
            e, state.twist[:, index], state.tangent[:, index], state.director[:, index], moment, self.frame
        )


@dataclass
class _OnEdges:
    """Moments W on edges e = l t whose frames are anchored at tangents s; all vectors (B, K, 3).

    Turning an edge by de turns its transported frame about t by turn . de, so that W does the work
    W . (t x dt) + (W . t) (d angle + turn . de): the forces are `pair` at the edge's end, minus that at its start, and
    `torque` on the angle. `by_e` (.., 3, 3) and `by_angle` are the derivatives of W, which is constant in space or has
    constant components in the material frame.
    """

    moment: Tensor
    t: Tensor
    length: Tensor
    anchor: Tensor
    by_e: Tensor
    by_angle: Tensor

    @classmethod
    def of(cls, e: Tensor, angle: Tensor, anchor: Tensor, director: Tensor, given: Tensor, frame: str) -> _OnEdges:
        """Return them for edges e, angles (B, K), anchors of their frames, and moments as given in a frame."""
        length = torch.linalg.vector_norm(e, dim=-1, keepdim=True)
        t = e / length
        at = cls(given, t, length, anchor, torch.zeros_like(e).unsqueeze(-1).expand(*e.shape, 3), torch.zeros_like(e))
        if frame == "world":
            return at
        m1 = rotated(transported(director, anchor, t), t, angle)
        m2, (a1, a2, a3) = torch.linalg.cross(t, m1), given.split(1, dim=-1)
        turn = at.turn()
        m1_by_e = _outer(m2, turn) - _outer(t, m1) / length.unsqueeze(-1)
        m2_by_e = -_outer(m1, turn) - _outer(t, m2) / length.unsqueeze(-1)
        at.moment = a1 * m1 + a2 * m2 + a3 * t
        at.by_e = a1.unsqueeze(-1) * m1_by_e + a2.unsqueeze(-1) * m2_by_e + a3.unsqueeze(-1) * at.tangent_by_e()
        at.by_angle = a1 * m2 - a2 * m1
        return at

    def turn(self) -> Tensor:
        """Return by how much the transported frame turns about t with e."""
        chi = 1 + (self.anchor * self.t).sum(-1, keepdim=True)
        return -torch.linalg.cross(self.anchor, self.t) / (chi * self.length)

    def tangent_by_e(self) -> Tensor:
        """Return dt/de (.., 3, 3)."""
        identity = torch.eye(3, dtype=self.t.dtype, device=self.t.device)
        return (identity - _outer(self.t, self.t)) / self.length.unsqueeze(-1)

    def torque(self) -> Tensor:
        """Return the torque on the angle (B, K)."""
        return (self.moment * self.t).sum(-1)

    def pair(self) -> Tensor:
        """Return the force at the edge's end."""
        return torch.linalg.cross(self.moment, self.t) / self.length + self.torque().unsqueeze(-1) * self.turn()

    def derivatives(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return those of `pair` by e (.., 3, 3) and by the angle (.., 3), of `torque` by e (.., 3) and the angle."""
        length, t, moment, turn = self.length.unsqueeze(-1), self.t, self.moment, self.turn()
        tangent_by_e = self.tangent_by_e()
        torque_by_e = (self.by_e.mT @ t.unsqueeze(-1) + tangent_by_e.mT @ moment.unsqueeze(-1)).squeeze(-1)
        torque_by_angle = (self.by_angle * t).sum(-1)
        across = torch.linalg.cross(moment, t)
        across_by_e = -_cross_matrix(t) @ self.by_e + _cross_matrix(moment) @ tangent_by_e
        chi = (1 + (self.anchor * t).sum(-1, keepdim=True)).unsqueeze(-1)
        turn_by_e = (
            -_cross_matrix(self.anchor) @ tangent_by_e / (chi * length)
            - _outer(turn, (tangent_by_e @ self.anchor.unsqueeze(-1)).squeeze(-1)) / chi
            - _outer(turn, t) / length
        )
        pair_by_e = (
            across_by_e / length
            - _outer(across, t) / length**2
            + _outer(turn, torque_by_e)
            + self.torque()[..., None, None] * turn_by_e
        )
        pair_by_angle = torch.linalg.cross(self.by_angle, t) / self.length + torque_by_angle.unsqueeze(-1) * turn
        return pair_by_e, pair_by_angle, torque_by_e, torque_by_angle


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def _cross_matrix(v: Tensor) -> Tensor:
    """Return the matrices (.., 3, 3) that take u to v x u."""
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    rows = [[zero, -z, y], [z, zero, -x], [-y, x, zero]]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
