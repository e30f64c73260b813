"""PointMoment: moments on rod edges and nodes, fixed in space or turning with the section."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, check_choice
from torchdismech.forces.base import Timed, refuse_no_rods, refuse_unclear, vector_on_each
from torchdismech.forces.dependence import Derivatives
from torchdismech.forces.elements import ElementForce, Loops, blocks_of
from torchdismech.geometry.carried import CarriedVector
from torchdismech.geometry.checks import Indices, checked_indices
from torchdismech.geometry.rods import EdgeFrame
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.body import Body
from torchdismech.robot.state import State
from torchdismech.values import Given, untrained

__all__ = ["PointMoment"]

FRAMES = ("world", "material")


class PointMoment(Timed, ElementForce):
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
    _index: Tensor
    _share: Tensor

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
        check_choice("PointMoment.frame", frame, FRAMES)
        checked, self._of_robots = vector_on_each(
            moment, "PointMoment.moment", "; the moment comes first, then its nodes"
        )
        self.moment = untrained(checked)
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
        for name, value in (("index", index), ("dofs", dofs.T.copy())):
            self.register_buffer(f"_{name}", torch.as_tensor(value, device="cpu"), persistent=False)
        shares = torch.as_tensor(share, device="cpu").to(body.nodes).unsqueeze(1)
        self.register_buffer("_share", shares, persistent=False)

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

    @property
    def _loops(self) -> Loops:
        return LOOPS[self.frame]

    def _loop_arguments(self, state: State) -> tuple[Tensor, ...]:
        on = self.on(state.time).to(state.q.dtype)
        moment = self.moment.expand(state.batch, 3) * on[:, None]
        anchors = state.tangent.permute(2, 1, 0), state.director.permute(2, 1, 0)
        return self._index, *anchors, moment.t().unsqueeze(1), self._share

    def _placed(self, entries: Tensor) -> Derivatives:
        return [(blocks_of(entries, 7), None)]


@dataclass(frozen=True)
class _OnEdges:
    """Moments W on edges, and the forces that are equivalent to them.

    When an edge e with tangent t turns, W does the work W . (t x dt) + (W . t) (dtheta + turn . de), where `turn` is
    the rotation of the transported frame. So the forces are `pair` at the edge's end, minus `pair` at its start, and
    `torque` on the angle theta. A moment in world axes is constant; one that turns with the section (`turns`) changes
    by omega x W, with omega = t x de / |e| + (dtheta + turn . de) t.
    """

    frame: EdgeFrame
    moment: Vec3
    turns: bool

    @classmethod
    def at(
        cls,
        turns: bool,
        q: Tensor,
        dofs: Tensor,
        edge: Tensor,
        tangent: Tensor,
        director: Tensor,
        moment: Tensor,
        share: Tensor,
    ) -> _OnEdges:
        """Return the moments on K edges.

        Parameters
        ----------
        q : (n, B).
        dofs, edge : (7, K) of start, end and angle, and (K,) numbers among the edges of tangent and director (3, A, B).
        moment, share : (3, 1, B), and (K, 1) the fraction of it on each edge.
        """
        of_dofs = [q[dof] for dof in dofs.unbind(0)]
        e = Vec3(*of_dofs[3:6]) - Vec3(*of_dofs[:3])
        anchors = (Vec3(*(component[edge] for component in x.unbind(0))) for x in (tangent, director))
        frame, components = EdgeFrame.of(e, *anchors), Vec3(*moment.unbind(0)).times(share)
        if not turns:
            return cls(frame, components, turns)
        first, second, along = components.components()
        return cls(frame, CarriedVector.of(frame, of_dofs[6], (along, first, second)).value(), turns)

    def forces(self) -> list[Tensor]:
        """Return the generalised forces on start, end and angle (7)."""
        frame, torque = self.frame, self.moment.dot(self.frame.t)
        pair = self.moment.cross(frame.t).times(frame.inverse) + frame.turn.times(torque)
        return [*(-pair).components(), *pair.components(), torque]

    def derivatives(self) -> list[Tensor]:
        """Return the derivatives (7 x 7) of `forces` by start, end and angle, row by row."""
        columns = [self._by_edge(axis) for axis in range(3)]
        by_angle = [torch.zeros_like(self.frame.inverse)] * 4
        if self.turns:
            swept = self.frame.t.cross(self.moment)
            by_angle[:3] = swept.cross(self.frame.t).times(self.frame.inverse).components()
        end = [[*(-column[k] for column in columns), *(column[k] for column in columns), by_angle[k]] for k in range(4)]
        return [*(-entry for row in end[:3] for entry in row), *(entry for row in end for entry in row)]

    def _by_edge(self, axis: int) -> list[Tensor]:
        """Return the derivatives of pair (3) and torque by one component of e."""
        frame, moment = self.frame, self.moment
        t, inverse, turn = frame.t, frame.inverse, frame.turn
        one, zero = torch.ones_like(inverse), torch.zeros_like(inverse)
        direction, here = Vec3(*(one if k == axis else zero for k in range(3))), t.components()[axis]
        t_by = (direction - t.times(here)).times(inverse)
        over_chi = 1 / (1 + frame.start.dot(t))
        turn_by = (
            -frame.start.cross(t_by).times(over_chi * inverse)
            - turn.times(frame.start.dot(t_by) * over_chi)
            - turn.times(here * inverse)
        )
        torque, torque_by = moment.dot(t), moment.dot(t_by)
        across_by = moment.cross(t_by) - moment.cross(t).times(here * inverse)
        if self.turns:
            omega = t.cross(direction).times(inverse) + t.times(turn.components()[axis])
            moment_by = omega.cross(moment)
            torque_by, across_by = torque_by + moment_by.dot(t), across_by + moment_by.cross(t)
        pair_by = across_by.times(inverse) + turn.times(torque_by) + turn_by.times(torque)
        return [*pair_by.components(), torque_by]


def _forces(turns: bool, q: Tensor, velocity: Tensor, *arguments: Tensor) -> list[Tensor]:
    return _OnEdges.at(turns, q, *arguments).forces()


def _derivatives(turns: bool, q: Tensor, velocity: Tensor, *arguments: Tensor) -> list[Tensor]:
    return _OnEdges.at(turns, q, *arguments).derivatives()


LOOPS = {
    frame: Loops("PointMoment", partial(_forces, turns), partial(_derivatives, turns), components=7)
    for frame, turns in zip(FRAMES, (False, True), strict=True)
}
