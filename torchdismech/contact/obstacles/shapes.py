"""The library's shapes of obstacles: half-space, sphere, capsule, cylinder and box; `shape.Shape` is their base."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdismech.contact.obstacles.directions import (
    identity,
    one_hot,
    outer_square,
    per_point,
    perpendicular,
    polar,
    rounding,
    unit,
)
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.obstacles.shape_parameters import (
    refuse_mixed,
    refuse_nonpositive,
    refuse_other_rotation,
    refuse_zero,
)
from torchdismech.forces.base import scalar, vector
from torchdismech.geometry.quaternions import rotation_of_vector
from torchdismech.values import Given, untrained

__all__ = ["Box", "Capsule", "Cylinder", "HalfSpace", "Sphere"]


class HalfSpace(Shape):
    """All points behind a plane; a floor at height h is `HalfSpace((0, 0, h), (0, 0, 1))`.

    Parameters
    ----------
    point : a point of the plane, (3,) or (B, 3) [m].
    normal : of the plane, (3,) or (B, 3), of any length; it points away from the half-space.

    Raises
    ------
    InputError
        A normal of zero length; parameters of a wrong shape or not finite.
    """

    per_robot = ("point", "normal")
    endless = True

    def __init__(self, point: Given, normal: Given):
        super().__init__()
        self.point = untrained(vector(point, "HalfSpace.point"))
        self.normal = untrained(vector(normal, "HalfSpace.normal"))
        refuse_zero(self.normal, "HalfSpace.normal: expected a vector of some length", normal)
        refuse_mixed(self)

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the plane, its normal, and zero curvature."""
        normal = per_point(unit(self.normal))
        distance = ((points - per_point(self.point)) * normal).sum(-1)
        return distance, normal.expand_as(points), points.new_zeros(()).expand(*points.shape, 3)

    @property
    def depth(self) -> Tensor:
        """Infinite: a half-space has no far side."""
        return self.point.new_tensor(math.inf)


class Sphere(Shape):
    """A ball.

    Parameters
    ----------
    center : (3,) or (B, 3) [m].
    radius : () or (B, 1) [m].

    Raises
    ------
    InputError
        A radius that is not positive; parameters of a wrong shape or not finite.
    """

    per_robot = ("center", "radius")
    not_negative = positive = ("radius",)

    def __init__(self, center: Given, radius: Given):
        super().__init__()
        self.center = untrained(vector(center, "Sphere.center"))
        self.radius = untrained(scalar(radius, "Sphere.radius"))
        refuse_nonpositive(self.radius, "Sphere.radius", radius)
        refuse_mixed(self)

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the sphere with normals and curvatures; at its centre the normal is z."""
        away = points - per_point(self.center)
        up = torch.eye(3, dtype=away.dtype, device=away.device)[2]
        length, normal, inverse = polar(away, rounding(self.radius), up)
        curvature = inverse[..., None, None] * (identity(normal) - outer_square(normal))
        return length - self.radius, normal, curvature

    @property
    def depth(self) -> Tensor:
        """The radius."""
        return self.radius

    @property
    def sharpest(self) -> Tensor:
        """Its radius."""
        return self.radius


class _AroundSegment(Shape):
    """Base of capsules and cylinders: axis from `start` to `end`, (3,) or (B, 3), and `radius`, () or (B, 1) [m]."""

    per_robot = ("start", "end", "radius")
    not_negative = positive = ("radius",)
    otherwise = ""  # advice for the error message where both ends are the same point

    def __init__(self, start: Given, end: Given, radius: Given):
        super().__init__()
        name = type(self).__name__
        self.start = untrained(vector(start, f"{name}.start"))
        self.end = untrained(vector(end, f"{name}.end"))
        self.radius = untrained(scalar(radius, f"{name}.radius"))
        refuse_nonpositive(self.radius, f"{name}.radius", radius)
        refuse_mixed(self)
        message = f"{name}.end: expected another point than {name}.start{self.otherwise}"
        refuse_zero(self.end - self.start, message, end)


class Capsule(_AroundSegment):
    """A capsule: all points within a radius of a segment, which is a cylinder with hemispherical ends.

    Parameters
    ----------
    start, end : of the segment, (3,) or (B, 3) [m].
    radius : () or (B, 1) [m].

    Raises
    ------
    InputError
        A segment without length (take a sphere); a radius that is not positive; parameters of a wrong shape or not
        finite.
    """

    otherwise = " (or take a Sphere)"

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the capsule with normals and curvatures.

        On its axis the normal is a fixed direction perpendicular to it.
        """
        start, end = per_point(self.start), per_point(self.end)
        axis = per_point(unit(self.end - self.start))
        from_start, from_end = points - start, points - end
        along = (from_start * axis).sum(-1, keepdim=True)
        before, past = along < 0, (from_end * axis).sum(-1, keepdim=True) > 0
        away = torch.where(before, from_start, torch.where(past, from_end, from_start - along * axis))
        # Subtracting the component along the axis leaves rounding errors of that component's size, even on the axis.
        smallest = rounding(self.radius + along.detach().squeeze(-1).abs())
        length, normal, inverse = polar(away, smallest, perpendicular(axis))
        barrel = (~(before | past)).to(axis.dtype)[..., None]
        tangential = identity(normal) - outer_square(normal) - barrel * outer_square(axis)
        return length - self.radius, normal, inverse[..., None, None] * tangential

    @property
    def depth(self) -> Tensor:
        """The radius."""
        return self.radius

    @property
    def sharpest(self) -> Tensor:
        """Its radius."""
        return self.radius


class Cylinder(_AroundSegment):
    """A cylinder with flat ends.

    Parameters
    ----------
    start, end : centres of its ends, (3,) or (B, 3) [m].
    radius : () or (B, 1) [m].

    Raises
    ------
    InputError
        A cylinder without length; a radius that is not positive; parameters of a wrong shape or not finite.

    Notes
    -----
    Inside, the normal is that of the barrel or of an end, whichever is nearer, and of the barrel if both are equally
    near. On the axis the barrel's normal is a fixed direction perpendicular to it. Half-way between the ends, that at
    `end` counts as the nearer one.
    """

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the cylinder with normals and curvatures.

        In the plane through the point and the axis, they are those from a rectangle.
        """
        start, end = per_point(self.start), per_point(self.end)
        length = (end - start).norm(dim=-1, keepdim=True)
        axis = (end - start) / length
        from_center = points - (start + end) / 2
        along = (from_center * axis).sum(-1, keepdim=True)
        smallest = rounding(self.radius + along.detach().squeeze(-1).abs())
        from_axis, radial, over_radius = polar(from_center - along * axis, smallest, perpendicular(axis))
        side = torch.where(along < 0, -1.0, 1.0).to(along.dtype)
        upward = (side * axis).expand_as(radial)
        beyond = torch.stack([from_axis - self.radius, (along * side - length / 2).squeeze(-1)], dim=-1)
        over = beyond > 0
        nearest, face = beyond.max(-1)
        fallback = one_hot(face, 2).to(along.dtype)
        edge = rounding(torch.minimum(self.radius, length.squeeze(-1)))
        outside, outward, inverse = polar(torch.where(over, beyond, 0.0), edge, fallback)
        normal = outward[..., :1] * radial + outward[..., 1:] * upward
        plane = [
            part[..., None, None] * outer_square(v)
            for part, v in zip(over.to(along.dtype).unbind(-1), (radial, upward), strict=True)
        ]
        round_about = identity(normal) - outer_square(radial) - outer_square(upward)
        curvature = inverse[..., None, None] * (sum(plane) - outer_square(normal))
        curvature = curvature + (outward[..., 0] * over_radius)[..., None, None] * round_about
        return torch.where(inverse > 0, outside, nearest), normal, curvature

    @property
    def depth(self) -> Tensor:
        """The radius or half the length, whichever is less."""
        half = (self.end - self.start).norm(dim=-1) / 2
        return torch.minimum(self.radius, half[:, None] if half.dim() else half)

    @property
    def width(self) -> Tensor:
        """The diameter."""
        return 2 * self.radius


class Box(Shape):
    """A box with any orientation.

    Parameters
    ----------
    center : (3,) or (B, 3) [m].
    size : lengths of the sides, (3,) or (B, 3) [m].
    rotation : rotation vector (axis times angle) from the box's axes to the world's, (3,) or (B, 3) [rad].

    Raises
    ------
    InputError
        A side that is not positive; a rotation matrix, or more than a turn; parameters of a wrong shape or not
        finite.

    Notes
    -----
    Inside, the normal is that of the nearest face. Where faces on two axes are equally near, that of the first of x, y,
    z counts; where both faces of an axis are, that on the positive side.
    """

    per_robot = ("center", "size", "rotation")
    not_negative = positive = ("size",)

    def __init__(self, center: Given, size: Given, rotation: Given = (0.0, 0.0, 0.0)):
        super().__init__()
        self.center = untrained(vector(center, "Box.center"))
        self.size = untrained(vector(size, "Box.size"))
        self.rotation = untrained(vector(rotation, "Box.rotation"))
        refuse_nonpositive(self.size, "Box.size", size)
        refuse_other_rotation(self.rotation, "Box.rotation")
        refuse_mixed(self)

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the surface of the box with normals and curvatures."""
        turn = rotation_of_vector(self.rotation)  # (3, 3) or (B, 3, 3)
        local = (points - per_point(self.center)) @ turn
        side = torch.where(local < 0, -1.0, 1.0).to(local.dtype)
        beyond = local * side - per_point(self.size) / 2  # signed distances from the nearer face on each axis
        over = beyond > 0
        excess = torch.where(over, beyond, 0.0)
        # Within rounding of the surface the nearest face decides, as inside.
        face_distance, face = beyond.max(-1)
        face_normal = one_hot(face, 3).to(local.dtype)
        smallest = rounding(self.size.amin(-1, keepdim=True))
        length, outward, inverse = polar(excess, smallest, face_normal)
        distance = torch.where(inverse > 0, length, face_distance)
        tangential = torch.diag_embed(over.to(local.dtype)) - outer_square(outward)
        mirrored = side[..., :, None] * tangential * side[..., None, :]
        world = turn if turn.dim() == 2 else turn[:, None]
        curvature = inverse[..., None, None] * (world @ mirrored @ world.mT)
        return distance, (side * outward) @ turn.mT, curvature

    @property
    def depth(self) -> Tensor:
        """Half the smallest side."""
        smallest = self.size.amin(-1) / 2
        return smallest[:, None] if smallest.dim() else smallest

    @property
    def width(self) -> Tensor:
        """The second smallest side."""
        second = self.size.sort(-1).values[..., 1]
        return second[:, None] if second.dim() else second
