"""The point of a flat round plate that is closest to an obstacle, by the obstacle's signed distance function.

The point of the plate at which the distance is least is found by Newton's method in the plate's plane: on its rim by
the angle, inside of it (where the plate's face lies against something round) by both coordinates. The minimum is unique
for convex obstacles that the plate does not enter deeply. A plate that lies flat on a face, or along an edge, touches
it in many points at once; one of them is found, and contact acts at that point only.

Inside a box, a cylinder or a mesh the distance has kinks, at which the deepest point has no derivatives; outside it is
smooth. So plates touch obstacles with edges at the distance `EDGE` from their middle plane, as if they were twice as
thick as that and rounded at the rim: at rest in contact, they are where the distance is smooth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.obstacles.shapes import HalfSpace

__all__ = ["Deepest", "deepest"]

ITERATIONS = 50
CLOSE = 1e-10  # the search ends where the next step would move the point by less than this part of the radius
ROUNDING = 1e-15  # a step is accepted if it makes the distance larger by no more than this part of the lengths in it
FLAT = 1e-7  # tilt, or curvature times radius, below which the distance counts as constant across the plate
ON_RIM = 1e-9  # part of the squared radius by which a point on the rim may be inside of it
EDGE = 2e-4  # distance [m] at which a plate touches obstacles with edges; plates that lie flat rock by less


@dataclass(frozen=True)
class Deepest:
    """The point of each plate that is closest to an obstacle.

    Attributes
    ----------
    gap : (B, P) signed distance there [m], less `EDGE` from obstacles with edges; negative where the plate is inside.
    point, normal : (B, P, 3) that point [m], and the obstacle's unit normal there, towards the plate.
    """

    gap: Tensor
    point: Tensor
    normal: Tensor


def deepest(shape: Shape, middle: Tensor, axes: Tensor, radius: Tensor) -> Deepest:
    """Return the deepest points of plates, with derivatives by all that autograd records.

    Parameters
    ----------
    middle : (B, P, 3) centres of the plates [m].
    axes : (B, P, 3, 2) two orthogonal unit vectors in the plane of each plate.
    radius : () or (B, 1) of the plates [m].
    """
    radius = radius.expand(middle.shape[:2])
    with torch.no_grad():
        coordinates = _search(shape, middle, axes, radius)
        coordinates = coordinates / radius[..., None]
    if torch.is_grad_enabled():
        coordinates = _implicit(shape, middle, axes, radius, coordinates)
    point = _points_at(middle, axes, radius[..., None] * coordinates)
    distance, normal, _ = shape.distance_and_derivatives(point)
    return Deepest(distance - _touching_distance(shape, distance), point, normal)


def _touching_distance(shape: Shape, like: Tensor) -> Tensor:
    """Return the distance from its middle plane at which a plate touches a shape: `EDGE` if that has edges, else 0."""
    edged = torch.zeros_like(shape.sharpest) if isinstance(shape, HalfSpace) else shape.sharpest == 0
    return EDGE * edged.to(like)


def _points_at(middle: Tensor, axes: Tensor, coordinates: Tensor) -> Tensor:
    """Return the points (B, P, 3) in space [m] at `coordinates` (B, P, 2) in the plates' planes [m]."""
    return middle + (axes @ coordinates[..., None])[..., 0]


def _search(shape: Shape, middle: Tensor, axes: Tensor, radius: Tensor) -> Tensor:
    """Return the coordinates (B, P, 2) in the plates' planes at which the distance is least [m]."""
    normal = shape.distance_and_derivatives(middle)[1]
    down = -(normal[..., None, :] @ axes)[..., 0, :]
    tilt = torch.linalg.vector_norm(down, dim=-1, keepdim=True)
    coordinates = torch.where(tilt > FLAT, radius[..., None] * down / tilt.clamp(min=FLAT), 0.0)
    if isinstance(shape, HalfSpace):  # the slope is the same everywhere, so this is the minimum
        return coordinates
    distance, slope, bend = _derivatives(shape, middle, axes, coordinates)
    rounding = ROUNDING * (radius + distance.abs() + torch.linalg.vector_norm(middle, dim=-1))
    share = torch.ones_like(distance)
    for _ in range(ITERATIONS):
        turn, step = _step(coordinates, *_reduced_function(distance + shape.sharpest, slope, bend, radius), radius)
        if not bool((torch.maximum(turn.abs(), torch.linalg.vector_norm(step, dim=-1) / radius) > CLOSE).any()):
            break
        trial = _moved(_turned(coordinates, share * turn), share[..., None] * step, radius)
        trial_distance, trial_slope, trial_bend = _derivatives(shape, middle, axes, trial)
        better = trial_distance <= distance + rounding  # the last steps change the distance by rounding only
        coordinates = torch.where(better[..., None], trial, coordinates)
        slope = torch.where(better[..., None], trial_slope, slope)
        bend = torch.where(better[..., None, None], trial_bend, bend)
        distance = torch.where(better, trial_distance, distance)
        share = torch.where(better, (2 * share).clamp(max=1.0), 0.25 * share)
    return coordinates


def _derivatives(shape: Shape, middle: Tensor, axes: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distance (B, P) with its gradient (B, P, 2) and Hessian (B, P, 2, 2) in the plate's plane."""
    distance, normal, curvature = shape.distance_and_derivatives(_points_at(middle, axes, coordinates))
    return distance, (normal[..., None, :] @ axes)[..., 0, :], axes.mT @ curvature @ axes


def _reduced_function(reach: Tensor, slope: Tensor, bend: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradient (B, P, 2) and Hessian (B, P, 2, 2) of the function that a step reduces, and a damping (B, P).

    The function is half the square of `reach` (B, P), the distance from the obstacle's sharpest feature: from a face,
    an edge, a corner, a centre or an axis it is quadratic, while the distance itself has the curvature 1 / reach across
    an edge and none beside. Where `reach` is tiny or negative, the function is the distance itself, with a damping in
    proportion to its slope, without which steps from far away overshoot.
    """
    steep = torch.linalg.vector_norm(slope, dim=-1)
    outside = reach > 0.1 * EDGE
    factor = torch.where(outside, reach, 1.0)
    squared = torch.where(outside, 1.0, 0.0)[..., None, None] * slope[..., None] * slope[..., None, :]
    damping = torch.where(outside, FLAT, (steep + FLAT) / radius)
    return factor[..., None] * slope, squared + factor[..., None, None] * bend, damping


def _step(coordinates: Tensor, slope: Tensor, bend: Tensor, damping: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return Newton's step: an angle (B, P) for points that the slope presses on the rim, else a vector (B, P, 2).

    For each plate one of the two is zero.
    """
    outward = coordinates / radius[..., None]
    pressed = -(slope * outward).sum(-1)
    on_rim = (outward.square().sum(-1) > 1 - ON_RIM) & (pressed >= 0)
    along = torch.stack((-outward[..., 1], outward[..., 0]), -1)
    across = (slope * along).sum(-1)
    bent = (along[..., None, :] @ bend @ along[..., None])[..., 0, 0].clamp(min=0.0)
    angle = -across / (pressed + radius * bent).clamp(min=1e-300)
    turn = torch.where(on_rim & (across != 0), angle.clamp(-1.0, 1.0), 0.0)
    damped = bend + torch.diag_embed(damping[..., None].expand_as(slope))
    straight = -torch.linalg.solve_ex(damped, slope[..., None])[0][..., 0]
    inside = ~on_rim & (slope != 0).any(-1)
    return turn, torch.where(inside[..., None], straight, 0.0)


def _turned(coordinates: Tensor, angle: Tensor) -> Tensor:
    """Return coordinates (B, P, 2), turned about the plate's centre by angles (B, P)."""
    x, y = coordinates.unbind(-1)
    sin, cos = angle.sin(), angle.cos()
    return torch.stack((cos * x - sin * y, sin * x + cos * y), -1)


def _moved(coordinates: Tensor, step: Tensor, radius: Tensor) -> Tensor:
    """Return coordinates (B, P, 2) after a step that does not leave the plate; on the rim it slides along it."""
    onward, reach = (coordinates * step).sum(-1), step.square().sum(-1)
    room = (radius.square() - coordinates.square().sum(-1)).clamp(min=0.0)
    # the share at which the rim is reached: the positive root of reach s^2 + 2 onward s = room
    share = room / (onward + torch.sqrt(onward.square() + reach * room)).clamp(min=1e-300)
    inside = room > ON_RIM * radius.square()
    trial = coordinates + torch.where(inside, share.clamp(max=1.0), 1.0)[..., None] * step
    length = torch.linalg.vector_norm(trial, dim=-1)
    return torch.where((length > radius)[..., None], trial * (radius / length.clamp(min=1e-300))[..., None], trial)


def _implicit(shape: Shape, middle: Tensor, axes: Tensor, radius: Tensor, coordinates: Tensor) -> Tensor:
    """Return `coordinates` (B, P, 2), in units of the radius, with the derivatives of the closest point.

    It is one Newton step, with its matrix held constant, on the condition that the slope vanishes. At the minimum the
    step is zero, but autograd finds in it the derivatives of the implicit function.
    """
    _, slope, bend = _derivatives(shape, middle, axes, radius[..., None] * coordinates)
    with torch.no_grad():
        bend = bend * radius[..., None, None]
        pressed = -(slope * coordinates).sum(-1)
        on_rim = (coordinates.square().sum(-1) > 1 - ON_RIM) & (pressed >= 0)
        along = torch.stack((-coordinates[..., 1], coordinates[..., 0]), -1)
        bent = (along[..., None, :] @ bend @ along[..., None])[..., 0, 0].clamp(min=0.0)
        stiff = pressed + bent
        yields = torch.where(stiff > FLAT, 1 / stiff.clamp(min=FLAT), 0.0)
        rim = yields[..., None, None] * along[..., None] * along[..., None, :]
        inverse = torch.where(on_rim[..., None, None], rim, _inverse(bend))
    return coordinates - (inverse @ (slope - slope.detach())[..., None])[..., 0]


def _inverse(bend: Tensor) -> Tensor:
    """Return the pseudo-inverses of symmetric matrices (B, P, 2, 2), eigenvalues up to `FLAT` taken as zero.

    Along a direction in which the distance is flat, as along a capsule that the face lies on, the point stays where it
    is in the plate.
    """
    a, b, d = bend[..., 0, 0], bend[..., 0, 1], bend[..., 1, 1]
    half = torch.sqrt((0.5 * (a - d)).square() + b.square())
    least, most = 0.5 * (a + d) - half, 0.5 * (a + d) + half
    round_, curved = least > FLAT, most > FLAT
    safe, wide = torch.where(round_, least, 1.0), torch.where(curved, most, 1.0)
    adjugate = torch.stack((d, -b, -b, a), -1).unflatten(-1, (2, 2)) / (safe * wide)[..., None, None]
    line = torch.where(curved[..., None, None], bend / wide.square()[..., None, None], 0.0)
    return torch.where(round_[..., None, None], adjugate, line)
