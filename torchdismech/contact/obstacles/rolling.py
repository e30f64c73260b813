"""Rods that roll on an obstacle: friction feels how fast they spin about themselves, and turns them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdismech.contact.obstacles.rod_tangents import RodTangents
from torchdismech.contact.obstacles.touch_points import TouchPoints
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.robot.body import Body

__all__ = ["Rolling"]


class Rolling(nn.Module):
    """How the surfaces of rods move where they touch an obstacle, and how forces there turn the rods.

    A rod with the tangent t and the contact radius r touches an obstacle with the normal n (towards the rod) at -r n
    from its centre line. Its surface moves there by w a more than the centre line, of the spin w (the rate of its
    edges' angles, at a node the mean of both) and the lever a = -r t x n, and a force F on it is a torque a . F on the
    rod. Left out is that a rod turns as its tangent does: where one end is lifted, the surface moves along the rod, by
    r times the rate of the slope. Tangents are those of the start of a step. Beside rods they are zero, and so are
    levers.

    Parameters
    ----------
    body : of the robot.
    points : that touch.
    tangents : of rods at these points.
    """

    angles: Tensor

    def __init__(self, body: Body, points: TouchPoints, tangents: RodTangents):
        super().__init__()
        angles = 3 * body.n_nodes + tangents.edges
        self.register_buffer("angles", angles, persistent=False)  # (P, 2) where the angles of both edges stand in q
        corners = (points.weights > 0).sum(1)
        some = [torch.nonzero(tangents.on_rods & (corners == count)).squeeze(1) for count in (1, 2)]
        self._kinds = nn.ModuleList(
            _Alike(index, points.nodes[index, :count], points.weights[index, :count], angles[index])
            for count, index in enumerate(some, start=1)
            if len(index)
        )

    def lever(self, radius: Tensor, tangent: Tensor, normal: Tensor) -> Tensor:
        """Return the levers (B, P, 3) [m] of contact radii (.., P), of tangents and normals (B, P, 3)."""
        return -radius.unsqueeze(-1) * torch.linalg.cross(tangent, normal)

    def lever_by_place(self, radius: Tensor, tangent: Tensor, curvature: Tensor) -> Tensor:
        """Return the derivatives (B, P, 3, 3) of `lever` by the points, at which normals turn by (B, P, 3, 3) [1/m]."""
        turned = torch.linalg.cross(tangent.unsqueeze(-1).expand_as(curvature), curvature, dim=-2)
        return -radius[..., None, None] * turned

    def spin(self, velocity: Tensor) -> Tensor:
        """Return the spins (B, P, 1) [rad/s] at a velocity (B, n)."""
        return velocity[:, self.angles].mean(-1, keepdim=True)

    def torques(self, lever: Tensor, force: Tensor, n_dofs: int) -> Tensor:
        """Return the torques, as forces (B, n) on all dofs, of forces (B, P, 3) on the points."""
        half = 0.5 * (lever * force).sum(-1, keepdim=True).expand(-1, -1, 2)
        return force.new_zeros(len(force), n_dofs).index_add(1, self.angles.flatten(), half.flatten(1))

    def blocks(self) -> list[Block]:
        """Return where derivatives stand that have to do with angles: of each kind of points three blocks."""
        return [block for kind in self._alike for block in kind.blocks()]

    def derivatives(self, lever: Tensor, by_velocity: Tensor, torque_by_x: Tensor) -> Derivatives:
        """Return the derivatives by position and by velocity for `blocks`.

        Parameters
        ----------
        lever : (B, P, 3).
        by_velocity : (B, P, 3, 3) the derivatives of forces on the points by the velocities of surfaces.
        torque_by_x : (B, P, 3) those of the torques by the places of the points.
        """
        found = (kind.derivatives(lever, by_velocity, torque_by_x) for kind in self._alike)
        return [both for of_kind in found for both in of_kind]

    @property
    def _alike(self) -> list[_Alike]:
        return list(self._kinds)  # type: ignore[arg-type]


class _Alike(nn.Module):
    """Points on rods that lie at, or between, as many nodes each.

    Parameters
    ----------
    points : (S,) which they are.
    nodes, weights : (S, k) that they lie between.
    angles : (S, 2) where the angles of their edges stand in q.
    """

    points: Tensor
    weights: Tensor

    def __init__(self, points: Tensor, nodes: Tensor, weights: Tensor, angles: Tensor):
        super().__init__()
        self.register_buffer("points", points, persistent=False)
        self.register_buffer("weights", weights, persistent=False)
        self._places = (3 * nodes.unsqueeze(-1) + torch.arange(3, device=nodes.device)).flatten(1).cpu().numpy()
        self._angles = angles.cpu().numpy()

    def blocks(self) -> list[Block]:
        """Return where forces change with spins, torques with places and velocities, and torques with spins."""
        places, angles = self._places, self._angles
        return [Block(places, angles), Block(angles, places), Block(angles, angles)]

    def derivatives(self, lever: Tensor, by_velocity: Tensor, torque_by_x: Tensor) -> Derivatives:
        """Return what `Rolling.derivatives` does for `blocks`."""
        lever, by_velocity, torque_by_x = (x[:, self.points] for x in (lever, by_velocity, torque_by_x))
        by_spin = (by_velocity @ lever.unsqueeze(-1)).squeeze(-1)
        torque_by_velocity = (by_velocity.mT @ lever.unsqueeze(-1)).squeeze(-1)
        torque_by_spin = (lever * by_spin).sum(-1)
        return [
            (None, self._on_places(by_spin).unsqueeze(-1).expand(-1, -1, -1, 2)),
            (self._on_angles(torque_by_x), self._on_angles(torque_by_velocity)),
            (None, 0.25 * torque_by_spin[..., None, None].expand(-1, -1, 2, 2)),
        ]

    def _on_angles(self, by_points: Tensor) -> Tensor:
        """Return how both angles' torques (B, S, 2, 3 k) change, of their sum by the points (B, S, 3)."""
        return self._on_places(by_points).unsqueeze(-2).expand(-1, -1, 2, -1)

    def _on_places(self, vectors: Tensor) -> Tensor:
        """Return halves of vectors (B, S, 3), which two angles share, on the coordinates of nodes (B, S, 3 k)."""
        return 0.5 * (self.weights.unsqueeze(-1) * vectors.unsqueeze(-2)).flatten(-2)
