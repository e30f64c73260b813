"""Contacts of an arm's plates with its obstacles: gaps, frames, and Jacobians of the touching points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.plates import deepest
from torchdismech.constant_curvature.posture import Posture

__all__ = ["Contacts", "contact_frames", "contacts_at", "jacobian"]


@dataclass(frozen=True)
class Contacts:
    """Every plate against every obstacle: C = obstacles x P plates, the plates of the first obstacle first.

    Attributes
    ----------
    gap : (B, C) [m], negative where a plate is inside.
    point, normal : (B, C, 3) the plate's deepest point [m], and the obstacle's unit normal there.
    obstacle_motion : (B, C, 3) displacement of the obstacle over the step [m].
    mu : (B, C) coefficients of friction.
    gap_correction : (B, C) by how much gaps at the end of the step exceed their linear prediction, as an earlier
        attempt at the step found it; zero in the first [m].
    """

    gap: Tensor
    point: Tensor
    normal: Tensor
    obstacle_motion: Tensor
    mu: Tensor
    gap_correction: Tensor

    def chosen(self, index: Tensor) -> Contacts:
        """Return the contacts with the indices `index` (B, K) of each row."""
        vectors = index[..., None].expand(-1, -1, 3)
        return Contacts(*(x.gather(1, index if x.dim() == 2 else vectors) for x in vars(self).values()))

    def approach(self, posture: Posture, rate: Tensor) -> Tensor:
        """Return the velocities (B, C, 3) of the plates' points for rates (3, S, B) of the arm's shapes [m/s]."""
        middle = posture.points[:, :, posture.first :].flatten(1, 2)
        velocity, spin = (x.flatten(1, 2) for x in posture.motion(rate))
        count = self.gap.shape[1] // middle.shape[1]
        middle, velocity, spin = (x.permute(2, 1, 0).repeat(1, count, 1) for x in (middle, velocity, spin))
        return velocity + torch.linalg.cross(spin, self.point - middle)


def contacts_at(arm: PneumaticArm, posture: Posture, time: Tensor, until: Tensor) -> Contacts:
    """Return the contacts with the obstacles as placed at `time` (B,), and their displacements from then to `until`."""
    middle, frames = arm.plates(posture)
    parts = []
    for obstacle in arm.obstacles:
        displacement = obstacle.displacement(time)
        obstacle_motion = obstacle.displacement(until) - displacement
        closest = deepest(obstacle.shape, middle - displacement[:, None], frames[..., :2], arm.plate_radius)
        friction = obstacle.law.friction
        mu = closest.gap.new_zeros(()) if friction is None else friction.coefficient
        parts.append(
            (
                closest.gap,
                closest.point + displacement[:, None],
                closest.normal,
                obstacle_motion[:, None].expand_as(middle),
                mu.expand_as(closest.gap),
                torch.zeros_like(closest.gap),
            )
        )
    return Contacts(*(torch.cat(x, 1) for x in zip(*parts, strict=True)))


def contact_frames(normal: Tensor) -> Tensor:
    """Return the matrices (..., 3, 3) of rows (normal, tangent 1, tangent 2) of unit normals (..., 3).

    The tangents are continuous in the normal except where its z changes sign (Duff et al., "Building an orthonormal
    basis, revisited", 2017). On the second-order cone no result depends on their choice.
    """
    x, y, z = normal.unbind(-1)
    sign = torch.where(z < 0, -1.0, 1.0).to(z.dtype)
    a = -1 / (sign + z)
    b = x * y * a
    first = torch.stack((1 + sign * x * x * a, sign * b, -sign * x), -1)
    second = torch.stack((b, sign + y * y * a, -y), -1)
    return torch.stack((normal, first, second), -2)


def jacobian(arm: PneumaticArm, posture: Posture, contacts: Contacts, plate: Tensor) -> Tensor:
    """Return the derivatives (B, K, 3, n) of contact points by the elongations; `plate` (B, K) is each one's plate."""
    sections, per_section = arm.sections, arm.disks + 1
    section = plate // per_section
    inner = [x.permute(3, 2, 1, 0)[:, :, None] for x in posture.twists_of(plate)]  # (B, K, 1, 3 shapes, 3)
    ends = [x.permute(3, 2, 1, 0)[:, None] for x in posture.twists]  # (B, 1, S, 3, 3)
    order = torch.arange(sections, device=plate.device)
    earlier = (order < section[..., None])[..., None, None]
    own = (order == section[..., None])[..., None, None]
    zero = contacts.point.new_zeros(())
    spin, origin = (
        torch.where(earlier, end, torch.where(own, inside, zero)) for end, inside in zip(ends, inner, strict=True)
    )
    by_shapes = origin + torch.linalg.cross(spin, contacts.point[:, :, None, None].expand_as(spin))  # (B, K, S, 3, 3)
    to_shapes = arm.to_shapes()
    return by_shapes.flatten(2, 3).mT @ (to_shapes[:, None] if to_shapes.dim() == 3 else to_shapes)
