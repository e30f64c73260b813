"""Curves as arrays of points: straight lines, arcs, helices; and the writhe of a curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from torchdismech.errors import InputError, finite_number, shown, whole_number
from torchdismech.geometry.checks import array_of

__all__ = ["WHOLE_TURN", "arc", "helix", "polygon_writhe", "straight"]

WHOLE_TURN = 2 * np.pi * (1 + 1e-9)  # rad, rounded up, as a sum of parts of a turn may be a little more
ROUNDING = 1e-14  # a component that is not larger than this fraction of a length counts as zero
CLOSING_DISTANCE = 1e4  # m; distance at which an open curve is closed to compute its writhe


def straight(start: ArrayLike, end: ArrayLike, nodes: int) -> np.ndarray:
    """Return points (nodes, 3) evenly spaced from `start` to `end`."""
    count = whole_number(nodes, "straight: nodes", least=2)
    return np.linspace(_vector(start, "straight: start"), _vector(end, "straight: end"), count)


def arc(center: ArrayLike, start: ArrayLike, axis: ArrayLike, angle: float, nodes: int) -> np.ndarray:
    """Return points (nodes, 3) on the arc of `start` as it turns about `axis` through `center` by `angle` [rad].

    Raises
    ------
    InputError
        The angle is more than a turn, or an argument is one that `helix` would refuse.
    """
    if abs(turned := finite_number(angle, "arc: angle")) > WHOLE_TURN:
        raise InputError(f"arc: angle: expected a turn or less, -2 pi to 2 pi [rad], got {turned:g}: see math.radians")
    return _turned("arc", center, start, axis, turned, 0.0, nodes)


def helix(center: ArrayLike, start: ArrayLike, axis: ArrayLike, angle: float, height: float, nodes: int) -> np.ndarray:
    """Return points (nodes, 3) of `start` as it turns about `axis` through `center` by `angle`, and rises by `height`.

    Parameters
    ----------
    angle : total angle [rad], 2 pi n for n turns; above 0 turns by the right hand.
    height : from the first point to the last, along the axis [m].

    Raises
    ------
    InputError
        The axis is zero; points would be more than half a turn apart, as `nodes` are too few for the turns; or
        `start` is on the axis and the height is 0, so that all points would coincide.
    """
    return _turned("helix", center, start, axis, angle, height, nodes)


def _turned(
    kind: str, center: ArrayLike, start: ArrayLike, axis: ArrayLike, angle: float, height: float, nodes: int
) -> np.ndarray:
    """Return the points of a `helix`, or of the `kind` of curve that messages name."""
    count = whole_number(nodes, f"{kind}: nodes", least=2)
    direction, middle = _vector(axis, f"{kind}: axis"), _vector(center, f"{kind}: center")
    if not np.linalg.norm(direction) > 0:
        raise InputError(f"{kind}: axis: expected one that is not zero, got {axis!r}")
    direction = direction / np.linalg.norm(direction)
    arm = _vector(start, f"{kind}: start") - middle
    along = direction * (arm @ direction)
    radial = arm - along
    turned, risen = finite_number(angle, f"{kind}: angle"), finite_number(height, f"{kind}: height")
    if abs(turned) / (count - 1) > WHOLE_TURN / 2:
        raise InputError(
            f"{kind}: angle: {turned:g} rad in {count} points are {turned / (count - 1):.3g} rad from point to point, "
            "more than half a turn: expected more nodes, or an angle in rad (see math.radians)"
        )
    if risen == 0 and np.linalg.norm(radial) <= ROUNDING * np.linalg.norm(arm):
        raise InputError(f"{kind}: start: expected a point beside the axis through {center!r}, got {start!r} on it")
    turn = np.linspace(0.0, turned, count)[:, None]
    rise = np.linspace(0.0, risen, count)[:, None]
    spun = radial * np.cos(turn) + np.cross(direction, radial) * np.sin(turn)
    return middle + along + spun + direction * rise


def _vector(given: ArrayLike, where: str) -> np.ndarray:
    """Return a point or an axis (3,); refuse other shapes, and numbers that are not finite."""
    vector = array_of(given, where)
    if vector.shape != (3,) or not np.isfinite(vector).all():
        raise InputError(f"{where}: expected three finite numbers x, y, z, got {shown(given)}")
    return vector


def polygon_writhe(nodes: np.ndarray) -> float:
    """Return the writhe of an open polygon (n, 3), whose ends are extended straight to far away, where they meet.

    The Gauss integral over pairs of straight segments is the area of a quadrangle on the unit sphere (Klenin and
    Langowski, Biopolymers 2000, method 1a).
    """
    first, last = nodes[0] - nodes[1], nodes[-1] - nodes[-2]
    before = nodes[0] + CLOSING_DISTANCE * first / np.linalg.norm(first)
    after = nodes[-1] + CLOSING_DISTANCE * last / np.linalg.norm(last)
    line = np.concatenate([before[None], nodes, after[None]])
    start, end = line[:-1], line[1:]
    total = 0.0
    for i in range(len(start) - 2):
        total += _solid_angles(start[i], end[i], start[i + 2 :], end[i + 2 :]).sum()
    return total / (2 * np.pi)


def _solid_angles(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Return the signed areas (k,) on the unit sphere of all directions from segment a-b to each segment c-d."""
    corners = [c - a, d - a, d - b, c - b]
    with np.errstate(invalid="ignore", divide="ignore"):
        normals = [np.cross(corners[k], corners[(k + 1) % 4]) for k in range(4)]
        normals = [n / np.linalg.norm(n, axis=1, keepdims=True) for n in normals]
        angles = sum(np.arcsin(np.clip((normals[k] * normals[(k + 1) % 4]).sum(1), -1, 1)) for k in range(4))
    sign = np.sign((np.cross(d - c, b - a) * (c - a)).sum(1))
    return np.nan_to_num(angles * sign)  # for segments in one plane the area is zero, and the normals are NaN
