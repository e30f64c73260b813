"""Obstacles' signed distances, with their first and second derivatives.

A shape is fixed in its own frame; where the obstacle moves, the caller subtracts the motion from the points first. The
distance d is negative inside, its gradient is the unit normal n (outwards), its Hessian the curvature. Everything is
torch code that autograd follows, by the points and by the shape's sizes; autograd of d is n, of n the curvature.

A distance has kinks: the centre of a sphere, the axis of a capsule, inside a box or a cylinder the points with two
nearest faces. There the values are those of one side, so nothing is infinite or NaN: at a centre or an axis d is
replaced, within rounding, by the plane through it with a fixed normal and no curvature. A box's curvature jumps where
the nearest feature changes (face, edge, corner); a capsule's where its caps begin.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.forces.base import scalar, vector
from torchdismech.fused import Fused
from torchdismech.geometry.quaternions import rotation_of_vector
from torchdismech.geometry.vec3 import Vec3
from torchdismech.values import Given, batch_sizes

__all__ = ["Box", "Capsule", "Cylinder", "HalfSpace", "Shape", "Sphere", "polar", "refuse_matrix", "rounding", "square"]


class Shape(nn.Module):
    """A region of space that bodies cannot enter, by its signed distance.

    Attributes
    ----------
    records : whether recordings of steps may hold a shape of one's own: its methods read nothing that changes but their
        arguments, parameters and registered tensors, and no number of a tensor; see `forces.Force`.
    """

    records = False
    per_robot: tuple[str, ...] = ()  # names of parameters that may have a leading robot dimension
    not_negative: tuple[str, ...] = ()  # names of those that a step refuses below zero
    positive: tuple[str, ...] = ()  # and at zero
    endless = False  # whether it has no other side, so that nothing gets through it
    walled = False  # whether some places are much thinner than `depth` says; then `passed` looks at what gets through

    def distance(self, points: Tensor) -> Tensor:
        """Return the signed distances (B, N) [m] of the points (B, N, 3), negative inside."""
        return self.distance_and_derivatives(points)[0]

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the signed distances with their derivatives by the points.

        Parameters
        ----------
        points : (B, N, 3) in the frame of the obstacle [m].

        Returns
        -------
        distance : (B, N) [m], negative inside.
        normal : (B, N, 3) gradient of the distance, a unit vector.
        curvature : (B, N, 3, 3) Hessian of the distance [1/m].
        """
        raise TypeError(f"{type(self).__name__} has to define distance_and_derivatives(points)")

    def passed(self, start: Tensor, end: Tensor, distances: tuple[Tensor, Tensor]) -> Tensor:
        """Return which points (K,) get through, going straight from `start` to `end` (K, 3), at distances (K,) [m].

        For shapes that are `walled`: points whose way is longer than both distances together.
        """
        raise TypeError(f"{type(self).__name__} is walled, so it has to define passed(start, end, distances)")

    @property
    def depth(self) -> Tensor:
        """Largest depth that a point can have inside, () or (B, 1) [m]."""
        raise TypeError(f"{type(self).__name__} has to define depth")

    @property
    def width(self) -> Tensor:
        """Second smallest of its three sizes, () or (B, 1) [m]: what is farther apart than that may pass it by."""
        return 2 * self.depth

    @property
    def sharpest(self) -> Tensor:
        """Radius [m] of its surface where that is the most curved, () or (B, 1); zero where there may be edges."""
        return torch.zeros((), device="cpu")


class HalfSpace(Shape):
    """All on the far side of a plane; a floor at height h is `HalfSpace((0, 0, h), (0, 0, 1))`.

    Parameters
    ----------
    point : a point of the plane, (3,) or (B, 3) [m].
    normal : out of the half-space, (3,) or (B, 3), of any length.

    Raises
    ------
    InputError
        A normal of zero length; parameters of a wrong shape or not finite.
    """

    per_robot = ("point", "normal")
    endless = True

    def __init__(self, point: Given, normal: Given):
        super().__init__()
        self.point = _parameter(vector, point, "HalfSpace.point")
        self.normal = _parameter(vector, normal, "HalfSpace.normal")
        _refuse_zero(self.normal, "HalfSpace.normal: expected a vector of some length", normal)
        _refuse_mixed(self)

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the plane, its normal and no curvature."""
        normal = _per_point(_unit(self.normal))
        distance = ((points - _per_point(self.point)) * normal).sum(-1)
        return distance, normal.expand_as(points), points.new_zeros(()).expand(*points.shape, 3)

    @property
    def depth(self) -> Tensor:
        """Infinite, as it is endless."""
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
        self.center = _parameter(vector, center, "Sphere.center")
        self.radius = _parameter(scalar, radius, "Sphere.radius")
        _refuse_nonpositive(self.radius, "Sphere.radius", radius)
        _refuse_mixed(self)

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the sphere; at its centre the normal is z."""
        away = points - _per_point(self.center)
        up = torch.eye(3, dtype=away.dtype, device=away.device)[2]
        length, normal, inverse = polar(away, rounding(self.radius), up)
        curvature = inverse[..., None, None] * (_identity(normal) - square(normal))
        return length - self.radius, normal, curvature

    @property
    def depth(self) -> Tensor:
        """The radius."""
        return self.radius

    @property
    def sharpest(self) -> Tensor:
        """Its radius."""
        return self.radius


class Capsule(Shape):
    """All within a radius of a segment: a cylinder with round ends.

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

    per_robot = ("start", "end", "radius")
    not_negative = positive = ("radius",)

    def __init__(self, start: Given, end: Given, radius: Given):
        super().__init__()
        self.start = _parameter(vector, start, "Capsule.start")
        self.end = _parameter(vector, end, "Capsule.end")
        self.radius = _parameter(scalar, radius, "Capsule.radius")
        _refuse_nonpositive(self.radius, "Capsule.radius", radius)
        _refuse_mixed(self)
        _refuse_zero(
            self.end - self.start, "Capsule.end: expected another point than Capsule.start (or take a Sphere)", end
        )

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the capsule; on its axis the normal is a fixed direction across it."""
        start, end = _per_point(self.start), _per_point(self.end)
        axis = _per_point(_unit(self.end - self.start))
        from_start, from_end = points - start, points - end
        along = (from_start * axis).sum(-1, keepdim=True)
        before, past = along < 0, (from_end * axis).sum(-1, keepdim=True) > 0
        away = torch.where(before, from_start, torch.where(past, from_end, from_start - along * axis))
        # Subtracting what is along the axis leaves rounding of its size, also on the axis itself.
        smallest = rounding(self.radius + along.detach().squeeze(-1).abs())
        length, normal, inverse = polar(away, smallest, _across(axis))
        barrel = (~(before | past)).to(axis.dtype)[..., None]
        tangential = _identity(normal) - square(normal) - barrel * square(axis)
        return length - self.radius, normal, inverse[..., None, None] * tangential

    @property
    def depth(self) -> Tensor:
        """The radius."""
        return self.radius

    @property
    def sharpest(self) -> Tensor:
        """Its radius."""
        return self.radius


class Cylinder(Shape):
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
    Inside, the normal is that of the nearer of barrel and end; where both are equally near, that of the barrel. On the
    axis it is a fixed direction across it; half-way along it the end at `end` counts as the nearer one.
    """

    per_robot = ("start", "end", "radius")
    not_negative = positive = ("radius",)

    def __init__(self, start: Given, end: Given, radius: Given):
        super().__init__()
        self.start = _parameter(vector, start, "Cylinder.start")
        self.end = _parameter(vector, end, "Cylinder.end")
        self.radius = _parameter(scalar, radius, "Cylinder.radius")
        _refuse_nonpositive(self.radius, "Cylinder.radius", radius)
        _refuse_mixed(self)
        _refuse_zero(self.end - self.start, "Cylinder.end: expected another point than Cylinder.start", end)

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the cylinder: those from a rectangle, in the plane of the point and the axis."""
        start, end = _per_point(self.start), _per_point(self.end)
        length = (end - start).norm(dim=-1, keepdim=True)
        axis = (end - start) / length
        from_center = points - (start + end) / 2
        along = (from_center * axis).sum(-1, keepdim=True)
        smallest = rounding(self.radius + along.detach().squeeze(-1).abs())
        from_axis, radial, over_radius = polar(from_center - along * axis, smallest, _across(axis))
        side = torch.where(along < 0, -1.0, 1.0).to(along.dtype)
        upward = (side * axis).expand_as(radial)
        beyond = torch.stack([from_axis - self.radius, (along * side - length / 2).squeeze(-1)], dim=-1)
        over = beyond > 0
        nearest, face = beyond.max(-1)
        fallback = _one_of(face, 2).to(along.dtype)
        edge = rounding(torch.minimum(self.radius, length.squeeze(-1)))
        outside, outward, inverse = polar(torch.where(over, beyond, 0.0), edge, fallback)
        normal = outward[..., :1] * radial + outward[..., 1:] * upward
        plane = [
            part[..., None, None] * square(v)
            for part, v in zip(over.to(along.dtype).unbind(-1), (radial, upward), strict=True)
        ]
        round_about = _identity(normal) - square(radial) - square(upward)
        curvature = inverse[..., None, None] * (sum(plane) - square(normal))
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
    """A box, turned about its centre.

    Parameters
    ----------
    center : (3,) or (B, 3) [m].
    size : lengths of the sides, (3,) or (B, 3) [m].
    rotation : from the box's axes to the world's, as a rotation vector, (3,) or (B, 3) [rad]: axis times angle.

    Raises
    ------
    InputError
        A side that is not positive; a rotation matrix; parameters of a wrong shape or not finite.

    Notes
    -----
    Inside, the normal is that of the nearest face, of the first of x, y, z where two are equally near; in a plane
    through the centre the face on the positive side counts as the nearer one.
    """

    per_robot = ("center", "size", "rotation")
    not_negative = positive = ("size",)

    def __init__(self, center: Given, size: Given, rotation: Given = (0.0, 0.0, 0.0)):
        super().__init__()
        self.center = _parameter(vector, center, "Box.center")
        self.size = _parameter(vector, size, "Box.size")
        self.rotation = _parameter(vector, rotation, "Box.rotation")
        _refuse_nonpositive(self.size, "Box.size", size)
        refuse_matrix(self.rotation, "Box.rotation")
        _refuse_mixed(self)

    def distance_and_derivatives(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distances from the surface of the box."""
        turn = rotation_of_vector(self.rotation)  # (3, 3) or (B, 3, 3)
        local = (points - _per_point(self.center)) @ turn
        side = torch.where(local < 0, -1.0, 1.0).to(local.dtype)
        beyond = local * side - _per_point(self.size) / 2  # past each pair of faces
        over = beyond > 0
        excess = torch.where(over, beyond, 0.0)
        # Within rounding of the surface the nearest face decides, as inside.
        face_distance, face = beyond.max(-1)
        face_normal = _one_of(face, 3).to(local.dtype)
        smallest = rounding(self.size.amin(-1, keepdim=True))
        length, outward, inverse = polar(excess, smallest, face_normal)
        distance = torch.where(inverse > 0, length, face_distance)
        tangential = torch.diag_embed(over.to(local.dtype)) - square(outward)
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


def polar(away: Tensor, smallest: Tensor, fallback: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the length (..., ) of vectors (..., 3), their direction and 1 / length.

    A vector no longer than `smallest` has the direction `fallback`, its component in that direction as its length and
    0 as its inverse length: the plane that touches the cone |v| there.
    """
    squared = (away * away).sum(-1)
    apart = squared > smallest * smallest
    length = torch.where(apart, squared, 1.0).sqrt()  # 1: the branch that is not taken needs a finite gradient too
    inverse = torch.where(apart, 1 / length, 0.0)
    direction = torch.where(apart[..., None], away / length[..., None], fallback)
    return torch.where(apart, length, (away * fallback).sum(-1)), direction, inverse


def rounding(size: Tensor) -> Tensor:
    """Return the length below which a difference of positions in a shape of this size has no direction."""
    return 4 * torch.finfo(size.dtype).eps * size.detach()


def _per_point(parameter: Tensor) -> Tensor:
    """Return a vector parameter (3,) or (B, 3) so that it broadcasts against points (B, N, 3)."""
    return parameter if parameter.dim() == 1 else parameter[:, None]


def _unit(vectors: Tensor) -> Tensor:
    """Return vectors (..., 3) scaled to length one."""
    return _UNIT.of_columns(vectors.reshape(-1, 3).t()).t().reshape(vectors.shape)


_UNIT = Fused(lambda vectors: Vec3(*vectors.unbind(0)).unit().components(), "unit vectors")


def square(vectors: Tensor) -> Tensor:
    """Return the outer product (..., 3, 3) of each vector (..., 3) with itself."""
    return vectors[..., :, None] * vectors[..., None, :]


def _identity(like: Tensor) -> Tensor:
    return torch.eye(3, dtype=like.dtype, device=like.device)


def _one_of(index: Tensor, count: int) -> Tensor:
    """Return (.., count) bool, where each index (..) is: `one_hot`, which looks at the numbers on the host."""
    return torch.arange(count, device=index.device) == index.unsqueeze(-1)


def _across(axis: Tensor) -> Tensor:
    """Return a unit vector across each unit vector (..., 3)."""
    # The coordinate axis that is farthest from it.
    other = _one_of(axis.abs().argmin(-1), 3).to(axis.dtype)
    across = torch.linalg.cross(axis, other)
    return _unit(across)


def _parameter(kind, value, what: str) -> nn.Parameter:
    """Return a parameter, checked by `kind` (`scalar` or `vector`); a copy, so that no two shapes share one."""
    return nn.Parameter(kind(value, what).clone(), requires_grad=False)


def _refuse_nonpositive(parameter: Tensor, what: str, value) -> None:
    if not (parameter > 0).all():
        raise InputError(f"{what}: expected lengths above 0, got {value}")


def _refuse_zero(vectors: Tensor, message: str, value) -> None:
    # Squares are summed: below this length they are no normal floating-point numbers.
    if not (vectors.norm(dim=-1) > math.sqrt(torch.finfo(vectors.dtype).tiny)).all():
        raise InputError(f"{message}, got {value}")


def refuse_matrix(rotation: Tensor, where: str) -> None:
    """Refuse a rotation matrix, which would read as the rotation vectors of three robots."""
    if rotation.shape == (3, 3) and torch.allclose(rotation @ rotation.mT, _identity(rotation), atol=1e-6):
        raise InputError(
            f"{where}: expected a rotation vector (axis times angle), (3,) or (B, 3), got what looks like a "
            "rotation matrix: convert it, for instance by scipy.spatial.transform.Rotation.as_rotvec"
        )


def _refuse_mixed(shape: Shape) -> None:
    """Refuse parameters that are given for different numbers of robots."""
    numbers = batch_sizes(shape)
    if len(numbers) > 1:
        shapes = ", ".join(f"{name} {tuple(getattr(shape, name).shape)}" for name in shape.per_robot)
        raise InputError(
            f"{type(shape).__name__}: expected parameters for one number of robots, got {sorted(numbers)}: {shapes}"
        )
