"""Where a flat round plate comes closest to an obstacle, by the obstacle's signed distance and its derivatives.

The point of the plate at which the distance is least is found by Newton's method in the plate's plane: on its rim by
the angle, inside of it (where the plate's face lies against something round) by both coordinates. It is the only one
for convex obstacles that the plate does not enter deeply. A plate that lies flat on a face touches it everywhere; what
is found is then one of these points, and contact there holds one point only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.contact.obstacles.shapes import HalfSpace, Shape

__all__ = ["Deepest", "deepest"]

ITERATIONS = 30
CLOSE = 1e-10  # part of the radius that the next step would move the point by where the search ends
ROUNDING = 1e-15  # part of the radius that a step may make the distance larger by
FLAT = 1e-7  # of the tilt or of curvature times radius: below it every point is as deep, to rounding


@dataclass(frozen=True)
class Deepest:
    """The point of each plate that is closest to an obstacle.

    Attributes
    ----------
    gap : (B, P) signed distance there [m], negative inside.
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
    return Deepest(distance, point, normal)


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
        step = _step(place, slope, bend, radius)
        if not bool((torch.linalg.vector_norm(step, dim=-1) > CLOSE * radius).any()):
            break
        trial = _within(place + part[..., None] * step, radius)
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


def _step(place: Tensor, slope: Tensor, bend: Tensor, radius: Tensor) -> Tensor:
    """Return Newton's step (B, P, 2): along the rim where the distance gets less outwards, in the plane elsewhere."""
    outward = place / radius[..., None]
    pressed = -(slope * outward).sum(-1)
    on_rim = (outward.square().sum(-1) > 1 - 1e-9) & (pressed >= 0)
    along = torch.stack((-outward[..., 1], outward[..., 0]), -1)
    across = (slope * along).sum(-1)
    bent = (along[..., None, :] @ bend @ along[..., None])[..., 0, 0].clamp(min=0.0)
    angle = -across / (pressed + radius * bent).clamp(min=1e-300)
    angle = torch.where(across == 0, 0.0, angle.clamp(-1.0, 1.0))
    turned = radius[..., None] * (angle.sin()[..., None] * along + (angle.cos() - 1)[..., None] * outward)
    # damped by the slope, without which steps from far away go too far; it vanishes at the minimum
    steep = torch.linalg.vector_norm(slope, dim=-1)
    damped = bend + torch.diag_embed((steep / radius + FLAT / radius)[..., None].expand_as(slope))
    straight = -torch.linalg.solve_ex(damped, slope[..., None])[0][..., 0]
    return torch.where(on_rim[..., None], turned, torch.where((steep > 0)[..., None], straight, 0.0))


def _within(place: Tensor, radius: Tensor) -> Tensor:
    """Return places (B, P, 2), brought back to the rim where they left the plate."""
    length = torch.linalg.vector_norm(place, dim=-1)
    return torch.where((length > radius)[..., None], place * (radius / length.clamp(min=1e-300))[..., None], place)


def _implicit(shape: Shape, middle: Tensor, axes: Tensor, radius: Tensor, place: Tensor) -> Tensor:
    """Return places (B, P, 2), in units of the radius, with the derivatives of the point where the distance is least.

    One step of Newton's method, whose matrix is held constant, on the condition that the slope vanishes: at the minimum
    it moves nothing but brings the derivatives of the implicit function.
    """
    _, slope, bend = _derivatives(shape, middle, axes, radius[..., None] * place)
    with torch.no_grad():
        bend = bend * radius[..., None, None]
        pressed = -(slope * place).sum(-1)
        on_rim = (place.square().sum(-1) > 1 - 1e-9) & (pressed >= 0)
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
