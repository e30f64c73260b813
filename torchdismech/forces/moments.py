"""PointMoment: moments on rod edges and nodes, fixed in space or turning with the section."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.forces.base import Force, Timed, refuse_no_rods, refuse_unclear, vector_on_each
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.geometry.checks import Indices, checked_indices
from torchdismech.geometry.material_frames import MaterialFrames, cross_matrix, outer
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import Given

__all__ = ["PointMoment"]

FRAMES = ("world", "material")


class PointMoment(Timed, Force):
    """A moment on rods, at the times start < t <= stop.

    On an edge it is a pair of opposite forces at the nodes, which turn the edge, and a torque on its angle, which turns
    it about itself. At a node the edges there share it evenly; at the end of a rod the last edge takes all of it, so
    that the rod bends up to the middle of that edge. Neither a moment that is fixed in space nor one that turns with
    the section has a potential in three dimensions, so the matrix of a step is not symmetric.

    Parameters
    ----------
    moment : (3,), (B, 3) or (B, 1, 3) [N m]: about the axes x, y, z ("world"), or about the directors m1, m2 of the
        section and the tangent of the edge ("material"). EI2 resists the first of these, EI1 the second, GJ the third.
    nodes, edges : indices of nodes, or of rod edges, or a bool mask of all; the whole moment acts on each of them.
    frame : "world" or "material".
    start, stop : [s], as for `PointForce`.

    Raises
    ------
    InputError
        The shape is (k, 3) for k > 1 nodes or edges. Give moments of k robots as (k, 1, 3), and different moments at
        different places by a `PointMoment` each.
    """

    per_robot = ("moment",)
    compiles = True
    _index: Tensor
    _share: Tensor
    _dofs: Tensor
    _ends: Tensor

    def __init__(
        self,
        moment: Given,
        nodes: Indices | None = None,
        edges: Indices | None = None,
        frame: str = "world",
        start: float = -math.inf,
        stop: float = math.inf,
    ):
        super().__init__()
        if (nodes is None) == (edges is None):
            raise InputError("PointMoment: give either nodes or edges")
        if frame not in FRAMES:
            raise InputError(f"PointMoment.frame: expected 'world' or 'material', got {frame!r}")
        checked, self._of_robots = vector_on_each(
            moment, "PointMoment.moment", "; the moment comes first, then its nodes"
        )
        self.moment = nn.Parameter(checked, requires_grad=False)
        self.nodes, self.edges = nodes, edges
        self.frame = frame
        self.act_between(start, stop)

    def bind(self, body: Body) -> None:
        """Store the dofs of the edges that take the moment, and their shares of it."""
        super().bind(body)
        index, share = self.edges_and_shares(body)
        ends = body.rod_edges[index]
        dofs = np.concatenate(
            [3 * ends[:, :1] + np.arange(3), 3 * ends[:, 1:] + np.arange(3), 3 * body.n_nodes + index[:, None]], axis=1
        )
        for name, value in (("index", index), ("ends", ends), ("dofs", dofs)):
            self.register_buffer(f"_{name}", torch.as_tensor(value, device="cpu"), persistent=False)
        self.register_buffer("_share", torch.as_tensor(share, device="cpu").to(body.nodes), persistent=False)

    def edges_and_shares(self, body: Body) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges (K,) on which the moment acts, and the fraction (K,) of it that each takes."""
        refuse_no_rods(body, "PointMoment")
        if self.edges is not None:
            index = checked_indices(self.edges, body.n_edges, "PointMoment.edges")
            self._refuse_unclear(len(index), "edge")
            return index, np.ones(len(index))
        assert self.nodes is not None  # one of the two was given
        index = checked_indices(self.nodes, body.n_nodes, "PointMoment.nodes")
        self._refuse_unclear(len(index), "node")
        around = [np.flatnonzero((body.rod_edges == node).any(1)) for node in index]
        bare = [int(node) for node, edges in zip(index, around, strict=True) if not len(edges)]
        if bare:
            raise InputError(
                f"PointMoment.nodes: no rod ends at or passes node {bare[0]}: nothing takes a moment there"
            )
        return np.concatenate(around), np.concatenate([np.full(len(edges), 1 / len(edges)) for edges in around])

    def _refuse_unclear(self, count: int, place: str) -> None:
        if not self._of_robots:
            refuse_unclear(self.moment, count, place, "PointMoment.moment", "a PointMoment each")

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n)."""
        at = self._evaluated(state)
        pair, torque = at.pair(), at.torque()
        local = torch.cat([-pair, pair, torque.unsqueeze(-1)], dim=-1)
        return torch.zeros_like(state.q).index_add(1, self._dofs.flatten(), local.flatten(1))

    def blocks(self) -> list[Block]:
        """Return for each edge the block of both nodes and the angle against themselves."""
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
        """Return the frames of the edges (B, K) at a state, with the moment on each."""
        x, index = state.positions, self._index
        e = x[:, self._ends[:, 1]] - x[:, self._ends[:, 0]]
        on = self.on(state.time).to(state.q.dtype)
        moment = (self.moment.expand(state.batch, 3) * on[:, None]).unsqueeze(1) * self._share[:, None]
        frames = MaterialFrames.of(e, state.twist[:, index], state.tangent[:, index], state.director[:, index])
        return _OnEdges.of(frames, moment, self.frame)


@dataclass(frozen=True)
class _OnEdges:
    """Moments W (B, K, 3) on edges, and the forces that are equivalent to them.

    When an edge e with tangent t turns, W does the work W . (t x dt) + (W . t) (d angle + turn . de), where `turn` is
    the rotation of the transported frame. So the forces are `pair` at the edge's end, minus `pair` at its start, and
    `torque` on the angle. `by_e` (.., 3, 3) and `by_angle` (.., 3) are the derivatives of W in space: zero for a moment
    in world axes, those of the material frame for a moment that turns with the section.
    """

    moment: Tensor
    frames: MaterialFrames
    by_e: Tensor
    by_angle: Tensor

    @classmethod
    def of(cls, frames: MaterialFrames, components: Tensor, frame: str) -> _OnEdges:
        """Return the moments with these components (B, K, 3) in the "world" or "material" frame."""
        if frame == "world":
            return cls(
                components, frames, torch.zeros_like(outer(components, components)), torch.zeros_like(components)
            )
        first, second, along = components.split(1, dim=-1)
        moment = frames.carried(torch.cat([along, first, second], dim=-1))
        return cls(moment, frames, frames.by_edge(moment), frames.by_angle(moment))

    def torque(self) -> Tensor:
        """Return the torque on the angle (B, K)."""
        return (self.moment * self.frames.t).sum(-1)

    def pair(self) -> Tensor:
        """Return the force (B, K, 3) at the edge's end; at its start it is the opposite."""
        at = self.frames
        return torch.linalg.cross(self.moment, at.t) / at.length + self.torque().unsqueeze(-1) * at.turn

    def derivatives(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the derivatives of `pair` by e (.., 3, 3) and angle (.., 3), of `torque` by e (.., 3) and angle."""
        at, moment = self.frames, self.moment
        t, length, tangent_by_e = at.t, at.length.unsqueeze(-1), at.tangent_by_edge()
        torque_by_e = (self.by_e.mT @ t.unsqueeze(-1) + tangent_by_e.mT @ moment.unsqueeze(-1)).squeeze(-1)
        torque_by_angle = (self.by_angle * t).sum(-1)
        across = torch.linalg.cross(moment, t)
        across_by_e = -cross_matrix(t) @ self.by_e + cross_matrix(moment) @ tangent_by_e
        pair_by_e = (
            across_by_e / length
            - outer(across, t) / length**2
            + outer(at.turn, torque_by_e)
            + self.torque()[..., None, None] * at.turn_by_edge()
        )
        pair_by_angle = torch.linalg.cross(self.by_angle, t) / at.length + torque_by_angle.unsqueeze(-1) * at.turn
        return pair_by_e, pair_by_angle, torque_by_e, torque_by_angle
