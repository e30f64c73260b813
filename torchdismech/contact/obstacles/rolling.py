"""Rods that roll on an obstacle: friction depends on their spin about their axes, and exerts torques on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdismech.contact.obstacles.rod_tangents import RodTangents
from torchdismech.contact.obstacles.touch_points import Surface, TouchPoints
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.forces.elements import sizes_of
from torchdismech.fused import Fused
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.body import Body
from torchdismech.robot.state import State

__all__ = ["Rolling"]


class Rolling(nn.Module):
    """The velocity of rods' surfaces where they touch an obstacle, and the torques of contact forces on the rods.

    A rod with tangent t and contact radius r touches an obstacle with normal n (towards the rod) at -r n from its
    centre line. There its surface moves by w a relative to the centre line, where w is the *spin* (the rate of its
    edge's angle, at a node the mean of both edges') and a = -r t x n the *lever*. A force F on the surface exerts the
    torque a . F on the rod. The rotation of the tangent is neglected: where one end is lifted, the surface also moves
    along the rod, by r times the rate of the slope. Tangents are those at the start of the step; points that are not
    on rods have zero tangents and levers.

    Parameters
    ----------
    body : of the robot.
    points : the points that touch.
    tangents : of rods at these points.
    """

    angles: Tensor
    shares: Tensor

    def __init__(self, body: Body, points: TouchPoints, tangents: RodTangents):
        super().__init__()
        angles, shares = 3 * body.n_nodes + tangents.edges, 0.5 * tangents.signs
        self.register_buffer("angles", angles, persistent=False)  # (P, 2) dofs of both edges' angles
        self.register_buffer("shares", shares, persistent=False)  # (P, 2) weights of their rates in the spin
        corners = (points.weights > 0).sum(1)
        indices = [torch.nonzero(tangents.on_rods & (corners == count)).squeeze(1) for count in (1, 2)]
        self._kinds = nn.ModuleList(
            _PointsOfOneKind(
                index, points.nodes[index, :count], points.weights[index, :count], angles[index], shares[index]
            )
            for count, index in enumerate(indices, start=1)
            if len(index)
        )

    def surface_motion(
        self, state: State, radius: Tensor, tangent: Tensor, normal: Tensor, velocity: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the velocities of the surfaces (B, P, 3) [m/s] and the levers (B, P, 3) [m].

        Parameters
        ----------
        radius : (.., P) contact radii [m].
        tangent, normal : (B, P, 3).
        velocity : (B, P, 3) of the centre lines [m/s].
        """
        vectors = (x.permute(2, 1, 0) for x in (tangent, normal, velocity))
        rows = _SURFACE_MOTION(len(self.angles), self._spin(state).t(), sizes_of(radius), *vectors)
        motion, lever = rows.permute(2, 1, 0).split(3, dim=2)
        return motion, lever

    def _spin(self, state: State) -> Tensor:
        """Return the spins (B, P) of rods at the points [rad/s]."""
        return (state.velocity[:, self.angles] * self.shares).sum(-1)

    def torques(self, lever: Tensor, force: Tensor, n_dofs: int) -> Tensor:
        """Return the torques that forces (B, P, 3) on the points exert on rods, as generalised forces (B, n) [N m]."""
        parts = (lever * force).sum(-1, keepdim=True) * self.shares
        return force.new_zeros(len(force), n_dofs).index_add(1, self.angles.flatten(), parts.flatten(1))

    def blocks(self) -> list[Block]:
        """Return the dofs of the derivatives that involve angles: three blocks for each `_PointsOfOneKind`."""
        return [block for kind in self._point_kinds for block in kind.blocks()]

    def derivatives(
        self, state: State, radius: Tensor, surface: Surface, force: Tensor, by_x: Tensor, by_velocity: Tensor
    ) -> tuple[Tensor, Derivatives]:
        """Return the derivatives (B, P, 3, 3) of forces by the points' positions, and the derivatives for `blocks`.

        Parameters
        ----------
        radius : (.., P) contact radii [m].
        force : (B, P, 3) on the points [N].
        by_x, by_velocity : (B, P, 3, 3) derivatives of the force by the points' positions, with levers held fixed, and
            by the velocity of the surface. The first result adds how levers turn with the normals.
        """
        assert surface.axis is not None and surface.lever is not None
        vectors = (x.permute(2, 1, 0) for x in (surface.axis, surface.lever, force))
        matrices = (x.permute(2, 3, 1, 0) for x in (surface.curvature, by_x, by_velocity))
        arguments = (self._spin(state).t(), sizes_of(radius), *vectors, *matrices)
        rows = _DERIVATIVES(len(self.angles), *arguments).permute(2, 1, 0)
        of_points, *of_angles = rows.split([9, 3, 3, 3, 1], dim=2)
        derivatives = [both for kind in self._point_kinds for both in kind.derivatives(*of_angles)]
        return of_points.unflatten(2, (3, 3)), derivatives

    @property
    def _point_kinds(self) -> list[_PointsOfOneKind]:
        return list(self._kinds)  # type: ignore[arg-type]


class _PointsOfOneKind(nn.Module):
    """The points on rods with the same number of nodes k: 1 for points at nodes, 2 for points on edges.

    Parameters
    ----------
    points : (S,) their numbers among all points.
    nodes, weights : (S, k) their nodes, and the weights of these.
    angles, shares : (S, 2) the dofs of their edges' angles, and the weights of these rates in the spin.
    """

    points: Tensor
    weights: Tensor
    shares: Tensor

    def __init__(self, points: Tensor, nodes: Tensor, weights: Tensor, angles: Tensor, shares: Tensor):
        super().__init__()
        self.register_buffer("shares", shares, persistent=False)
        self.register_buffer("points", points, persistent=False)
        self.register_buffer("weights", weights, persistent=False)
        self._places = (3 * nodes.unsqueeze(-1) + torch.arange(3, device=nodes.device)).flatten(1).cpu().numpy()
        self._angles = angles.cpu().numpy()

    def blocks(self) -> list[Block]:
        """Return the dofs of three blocks: force by angle, torque by position, torque by angle."""
        places, angles = self._places, self._angles
        return [Block(places, angles), Block(angles, places), Block(angles, angles)]

    def derivatives(
        self, torque_by_x: Tensor, torque_by_velocity: Tensor, by_spin: Tensor, torque_by_spin: Tensor
    ) -> Derivatives:
        """Return the derivatives by position and by velocity for each of `blocks`.

        Parameters
        ----------
        torque_by_x, torque_by_velocity, by_spin : (B, P, 3) of all points, as `_derivatives` finds them.
        torque_by_spin : (B, P, 1) likewise.
        """
        of_all_points = torque_by_x, torque_by_velocity, by_spin, torque_by_spin
        torque_by_x, torque_by_velocity, by_spin, torque_by_spin = (x[:, self.points] for x in of_all_points)
        of_both = self.shares[:, :, None] * self.shares[:, None, :]
        return [
            (None, self._on_angles(by_spin).mT),
            (self._on_angles(torque_by_x), self._on_angles(torque_by_velocity)),
            (None, torque_by_spin.unsqueeze(-1) * of_both),
        ]

    def _on_angles(self, by_points: Tensor) -> Tensor:
        """Return blocks (B, S, 2, 3 k) between both angles and the nodes' coordinates, from vectors (B, S, 3)."""
        on_places = (self.weights.unsqueeze(-1) * by_points.unsqueeze(-2)).flatten(-2)
        return self.shares.unsqueeze(-1) * on_places.unsqueeze(-2)


def _surface_motion(spin: Tensor, radius: Tensor, tangent: Tensor, normal: Tensor, velocity: Tensor) -> tuple:
    """Return the velocities of the surfaces (3) and the levers (3), by components."""
    t, n, v = (Vec3(*x.unbind(0)) for x in (tangent, normal, velocity))
    lever = t.cross(n).times(-radius)
    return *(v + lever.times(spin)).components(), *lever.components()


def _derivatives(
    spin: Tensor,
    radius: Tensor,
    tangent: Tensor,
    lever: Tensor,
    force: Tensor,
    curvature: Tensor,
    by_x: Tensor,
    by_velocity: Tensor,
) -> list:
    """Return the derivatives of forces and torques at points on rods that roll, by components.

    These are the derivatives of the force by position (9), of the torque by position (3) and by the velocity of the
    surface (3), of the force by the spin (3), and of the torque by the spin (1).
    """
    t, a, f = (Vec3(*x.unbind(0)) for x in (tangent, lever, force))
    by_v = [Vec3(*row.unbind(0)) for row in by_velocity.unbind(0)]
    # derivatives of the lever by each coordinate of the point (the curvature is symmetric: its rows are its columns),
    # then of the force, which changes with the surface's velocity as the lever does
    turns = [t.cross(Vec3(*row.unbind(0))).times(-radius) for row in curvature.unbind(0)]
    grown = [
        [x + row.dot(turn) * spin for x, turn in zip(old.unbind(0), turns, strict=True)]
        for old, row in zip(by_x.unbind(0), by_v, strict=True)
    ]
    torque_by_x = [
        a.dot(Vec3(*column)) + f.dot(turn) for column, turn in zip(zip(*grown, strict=True), turns, strict=True)
    ]
    by_spin = Vec3(*(row.dot(a) for row in by_v))
    torque_by_velocity = [a.dot(Vec3(*column)) for column in zip(*(row.components() for row in by_v), strict=True)]
    return [
        *(x for row in grown for x in row),
        *torque_by_x,
        *torque_by_velocity,
        *by_spin.components(),
        a.dot(by_spin),
    ]


_SURFACE_MOTION = Fused(_surface_motion, "motion of surfaces that roll")
_DERIVATIVES = Fused(_derivatives, "derivatives of forces on surfaces that roll")
