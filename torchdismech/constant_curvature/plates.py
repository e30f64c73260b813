"""Where a flat round plate comes closest to an obstacle, by the obstacle's signed distance and its derivatives.

The point of the plate at which the distance is least is found by Newton's method in the plate's plane: on its rim by
the angle, inside of it (where the plate's face lies against something round) by both coordinates. It is the only one
for convex obstacles that the plate does not enter deeply. A plate that lies flat on a face, or along an edge, touches
it everywhere; what is found is then one of these points, and contact there holds one point only.

Inside of a box, a cylinder or a mesh the distance has kinks, beside which the deepest point has no derivatives. Outside
it is smooth. So plates touch what has edges at `EDGE` from their middle plane, as if they were twice as thick and
rounded at the rim: at rest in contact they are where distances are smooth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.obstacles.shapes import HalfSpace

__all__ = ["Deepest", "deepest"]

ITERATIONS = 50
CLOSE = 1e-10  # part of the radius that the next step would move the point by where the search ends
ROUNDING = 1e-15  # part of the radius that a step may make the distance larger by
FLAT = 1e-7  # of the tilt, of curvature times radius, of what a step's bend is: below it all points are as deep
ON_RIM = 1e-9  # of the squared radius: points so near to the rim are on it
EDGE = 2e-4  # m: so far from its middle plane a plate touches what has edges; more than plates rock by that lie flat


@dataclass(frozen=True)
class Deepest:
    """The point of each plate that is closest to an obstacle.

    Attributes
    ----------
    gap : (B, P) signed distance there [m], less `EDGE` from obstacles with edges; negative where the plate is inside.
    point, normal : (B, P, 3) where it is [m], and the obstacle's normal there, towards the plate.
    """

    gap: Tensor
    point: Tensor
    normal: Tensor


def deepest(shape: Shape, middle: Tensor, axes: Tensor, radius: Tensor) -> Deepest:
    """Return the deepest points of plates, with derivatives by all that autograd records.

    Parameters
    ----------
    middle : (B, P, 3) of the plates [m].
    axes : (B, P, 3, 2) two unit vectors across each other in each plate.
    radius : () or (B, 1) of the plates [m].
    """
    radius = radius.expand(middle.shape[:2])
    with torch.no_grad():
        place = _search(shape, middle, axes, radius)
        place = place / radius[..., None]
    if torch.is_grad_enabled():
        place = _implicit(shape, middle, axes, radius, place)
    point = _at(middle, axes, radius[..., None] * place)
    distance, normal, _ = shape.distance_and_derivatives(point)
    return Deepest(distance - _thickness(shape, distance), point, normal)


def _thickness(shape: Shape, like: Tensor) -> Tensor:
    """Return how far from its middle plane a plate touches a shape [m]: zero but for shapes with edges."""
    edged = torch.zeros_like(shape.sharpest) if isinstance(shape, HalfSpace) else shape.sharpest == 0
    return EDGE * edged.to(like)


def _at(middle: Tensor, axes: Tensor, place: Tensor) -> Tensor:
    """Return the points (B, P, 3) at places (B, P, 2) in the plates."""
    return middle + (axes @ place[..., None])[..., 0]


def _search(shape: Shape, middle: Tensor, axes: Tensor, radius: Tensor) -> Tensor:
    """Return the places (B, P, 2) in the plates where the distance is least [m]."""
    normal = shape.distance_and_derivatives(middle)[1]
    down = -(normal[..., None, :] @ axes)[..., 0, :]
    tilt = torch.linalg.vector_norm(down, dim=-1, keepdim=True)
    place = torch.where(tilt > FLAT, radius[..., None] * down / tilt.clamp(min=FLAT), 0.0)
    if isinstance(shape, HalfSpace):  # the same slope everywhere: that is the minimum
        return place
    distance, slope, bend = _derivatives(shape, middle, axes, place)
    part = torch.ones_like(distance)
    for _ in range(ITERATIONS):
        turn, step = _step(place, *_searched(distance + shape.sharpest, slope, bend, radius), radius)
        if not bool((torch.maximum(turn.abs(), torch.linalg.vector_norm(step, dim=-1) / radius) > CLOSE).any()):
            break
        trial = _moved(_turned(place, part * turn), part[..., None] * step, radius)
        tried = _derivatives(shape, middle, axes, trial)
        better = tried[0] <= distance + ROUNDING * radius  # the last steps change the distance by rounding only
        place, slope = (torch.where(better[..., None], new, old) for new, old in ((trial, place), (tried[1], slope)))
        bend = torch.where(better[..., None, None], tried[2], bend)
        distance = torch.where(better, tried[0], distance)
        part = torch.where(better, (2 * part).clamp(max=1.0), 0.25 * part)
    return place


def _derivatives(shape: Shape, middle: Tensor, axes: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distance (B, P) and its derivatives by the place, (B, P, 2) and (B, P, 2, 2)."""
    distance, normal, curvature = shape.distance_and_derivatives(_at(middle, axes, place))
    return distance, (normal[..., None, :] @ axes)[..., 0, :], axes.mT @ curvature @ axes


def _searched(reach: Tensor, slope: Tensor, bend: Tensor, radius: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return slope (B, P, 2) and bend (B, P, 2, 2) of what a step makes less, and by how much its bend is damped.

    That is half the square of the distance from what is sharpest in an obstacle, `reach` (B, P): from a face, an edge,
    a corner, a centre or an axis it is quadratic, where the distance itself has a bend of 1 / reach across an edge and
    none beside. Where there is nothing so far inside, it is the distance, damped by the slope, without which steps from
    far away go too far.
    """
    steep = torch.linalg.vector_norm(slope, dim=-1)
    outside = reach > 0.1 * EDGE
    factor = torch.where(outside, reach, 1.0)
    squared = torch.where(outside, 1.0, 0.0)[..., None, None] * slope[..., None] * slope[..., None, :]
    damping = torch.where(outside, FLAT, (steep + FLAT) / radius)
    return factor[..., None] * slope, squared + factor[..., None, None] * bend, damping


def _step(place: Tensor, slope: Tensor, bend: Tensor, damping: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return Newton's step: an angle (B, P) along the rim where it gets less outwards, else one in the plane (B, P, 2).

    Where one of the two is taken the other is zero.
    """
    outward = place / radius[..., None]
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


def _turned(place: Tensor, angle: Tensor) -> Tensor:
    """Return places (B, P, 2), turned about the middle by angles (B, P)."""
    x, y = place.unbind(-1)
    sin, cos = angle.sin(), angle.cos()
    return torch.stack((cos * x - sin * y, sin * x + cos * y), -1)


def _moved(place: Tensor, step: Tensor, radius: Tensor) -> Tensor:
    """Return places (B, P, 2) after a step, which ends at the rim; from the rim on it is led along it."""
    onward, reach = (place * step).sum(-1), step.square().sum(-1)
    room = (radius.square() - place.square().sum(-1)).clamp(min=0.0)
    # the share at which the rim is reached: the positive root of reach s^2 + 2 onward s = room
    share = room / (onward + torch.sqrt(onward.square() + reach * room)).clamp(min=1e-300)
    inside = room > ON_RIM * radius.square()
    trial = place + torch.where(inside, share.clamp(max=1.0), 1.0)[..., None] * step
    length = torch.linalg.vector_norm(trial, dim=-1)
    return torch.where((length > radius)[..., None], trial * (radius / length.clamp(min=1e-300))[..., None], trial)


def _implicit(shape: Shape, middle: Tensor, axes: Tensor, radius: Tensor, place: Tensor) -> Tensor:
    """Return places (B, P, 2), in units of the radius, with the derivatives of the point where the distance is least.

    One step of Newton's method, whose matrix is held constant, on the condition that the slope vanishes: at the minimum
    it moves nothing but brings the derivatives of the implicit function.
    """
    _, slope, bend = _derivatives(shape, middle, axes, radius[..., None] * place)
    with torch.no_grad():
        bend = bend * radius[..., None, None]
        pressed = -(slope * place).sum(-1)
        on_rim = (place.square().sum(-1) > 1 - ON_RIM) & (pressed >= 0)
        along = torch.stack((-place[..., 1], place[..., 0]), -1)
        bent = (along[..., None, :] @ bend @ along[..., None])[..., 0, 0].clamp(min=0.0)
        stiff = pressed + bent
        yields = torch.where(stiff > FLAT, 1 / stiff.clamp(min=FLAT), 0.0)
        rim = yields[..., None, None] * along[..., None] * along[..., None, :]
        inverse = torch.where(on_rim[..., None, None], rim, _inverse(bend))
    return place - (inverse @ (slope - slope.detach())[..., None])[..., 0]


def _inverse(bend: Tensor) -> Tensor:
    """Return the pseudo-inverses of symmetric matrices (B, P, 2, 2), eigenvalues up to `FLAT` taken as zero.

    Along a direction in which the distance is flat, as along a capsule that the face lies on, the point keeps its place
    in the plate.
    """
    a, b, d = bend[..., 0, 0], bend[..., 0, 1], bend[..., 1, 1]
    half = torch.sqrt((0.5 * (a - d)).square() + b.square())
    least, most = 0.5 * (a + d) - half, 0.5 * (a + d) + half
    round_, curved = least > FLAT, most > FLAT
    safe, wide = torch.where(round_, least, 1.0), torch.where(curved, most, 1.0)
    adjugate = torch.stack((d, -b, -b, a), -1).unflatten(-1, (2, 2)) / (safe * wide)[..., None, None]
    line = torch.where(curved[..., None, None], bend / wide.square()[..., None, None], 0.0)
    return torch.where(round_[..., None, None], adjugate, line)
