"""Triangle meshes of simple shapes: rectangle, disc, hexagon, hemisphere.

Flat meshes lie in the x-y plane; all triangles are wound counter-clockwise seen from +z (the hemisphere: from outside).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchdismech.errors import InputError, check_choice, finite_number, positive_number, whole_number

__all__ = ["Mesh", "disc", "hemisphere", "hexagon", "rectangle"]

RECTANGLE_PATTERNS = ("equilateral", "right", "cross", "random", "rotated")
ROUND_PATTERNS = ("regular", "random")
ROW_HEIGHT = math.sqrt(3) / 2  # of an equilateral triangle with sides 1
# Unstructured meshes: nodes move until no angle is below the first; a mesh with an angle below the second is refused.
WANTED_ANGLE, SMALLEST_ANGLE = math.radians(24), math.radians(20)
MOST_MOVES, MOVES_BEFORE_DROP = 120, 15  # typically fewer than 5 moves are enough
JITTER = 0.25  # standard deviation of the random shifts, in spacings
MOST_TRIANGLES = 2e7  # a mesh of more would take gigabytes; a spacing in other units than lengths asks for it
BORDER = 0.45  # no interior node starts closer to the border than this, in spacings
MOVABLE_BORDER = 1.6  # interior nodes of a turned grid move only if they are closer to the border than this

Triangulation = Callable[[np.ndarray], np.ndarray]
Projection = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Mesh:
    """A triangle mesh.

    Attributes
    ----------
    nodes : (N, 3) float64, positions [m].
    triangles : (F, 3) int64, indices of nodes.
    """

    nodes: np.ndarray
    triangles: np.ndarray


def rectangle(
    length: float, width: float, spacing: float, pattern: str = "equilateral", seed: int = 0, angle: float = 0.0
) -> Mesh:
    """Return a mesh of the rectangle [0, length] x [0, width].

    Parameters
    ----------
    length, width : sides along x and y [m].
    spacing : wanted length of edges [m]; the real ones differ so that the sides are met exactly.
    pattern : "equilateral": rows of nearly equilateral triangles along x, halves of them at the ends of the rows. Rows
        are as high as a whole number of them needs, so triangles may be flatter or higher, which matters to hinges
        (docs/shells.md); "right": squares, all halved along the same diagonal; "cross": squares, halved along
        alternating diagonals; "random": unstructured, evenly spaced on the sides; "rotated": equilateral triangles
        turned by `angle`, fitted to evenly spaced nodes on the sides.
    seed : of the random numbers; pattern "random" only.
    angle : [rad] of the rows to the x axis; pattern "rotated" only.

    Raises
    ------
    InputError
        Sizes that are not positive and finite, a spacing for which one row of triangles is higher than the shorter
        side, or that makes more than 20 million triangles, an unknown pattern, a seed or an angle that the pattern
        does not use.
    """
    length, width, spacing = _lengths(length=length, width=width, spacing=spacing)
    largest = min(length, width) / ROW_HEIGHT
    if spacing > largest * (1 + 1e-9):  # rounding of a spacing that was computed from the width
        raise InputError(
            f"spacing: expected at most {largest:g}, the side of equilateral triangles as high as the shorter side of "
            f"the rectangle {length:g} x {width:g}; got {spacing:g}: take a smaller spacing"
        )
    _check_count(length * width, spacing)
    check_choice("pattern", pattern, RECTANGLE_PATTERNS)
    _check_seed(seed, pattern)
    angle = finite_number(angle, "angle", "a finite angle in rad")
    if angle != 0 and pattern != "rotated":
        raise InputError(f"angle: only pattern 'rotated' is turned, got angle {angle!r} with pattern {pattern!r}")
    if pattern in ("right", "cross"):
        return _squares(length, width, spacing, alternate=pattern == "cross")
    grid = _rows(length, width, spacing)
    if pattern == "equilateral":
        return grid
    border, margin = _sides(length, width, spacing), BORDER * spacing
    inner = _turned_lattice(length, width, spacing, angle) if pattern == "rotated" else grid.nodes
    distance = _distance_to_sides(inner, length, width)
    inner, distance = inner[distance > margin], distance[distance > margin]
    movable = np.ones(len(inner), dtype=bool)
    if pattern == "rotated":
        movable = distance < MOVABLE_BORDER * spacing
    else:
        shifted = _jittered(inner, spacing, seed)
        inner = np.clip(shifted, (margin, margin, 0), (length - margin, width - margin, 0))
    return _relaxed(border, inner, movable, _planar, lambda nodes: nodes, spacing)


def disc(radius: float, spacing: float, pattern: str = "regular", seed: int = 0) -> Mesh:
    """Return a mesh of a disc around the origin; its rim is a regular polygon with corners on the circle.

    Parameters
    ----------
    radius : [m].
    spacing : wanted length of edges [m].
    pattern : "regular": rings of 6, 12, 18, .. nodes; "random": unstructured, evenly spaced on the rim.
    seed : of the random numbers; pattern "random" only.

    Raises
    ------
    InputError
        Sizes that are not positive and finite, a spacing above the radius, or that makes more than 20 million
        triangles, an unknown pattern, a seed that the pattern does not use.
    """
    radius, spacing = _checked_round(radius, spacing, pattern, seed)
    _check_count(math.pi * radius**2, spacing)
    divisions = round(radius / spacing)
    if pattern == "regular":
        ring, sector, triangles = _rings(divisions)
        azimuth = sector * (math.pi / 3)
        return Mesh(_flat(radius * ring / divisions, azimuth), triangles)
    distance = radius * np.arange(divisions + 1) / divisions
    ring, azimuth = _shuffled_rings(distance, spacing, seed)
    nodes = _flat(distance[ring], azimuth)
    rim = ring == divisions
    inner = _jittered(nodes[~rim], spacing, seed) * (1, 1, 0)
    outside = np.linalg.norm(inner, axis=1, keepdims=True) / (radius - BORDER * spacing)
    inner = inner / np.maximum(outside, 1.0)
    return _relaxed(nodes[rim], inner, np.ones(len(inner), dtype=bool), _planar, lambda nodes: nodes, spacing)


def hexagon(side: float, divisions: int) -> Mesh:
    """Return a mesh of a regular hexagon around the origin, a corner on +x: 6 divisions^2 equilateral triangles.

    Parameters
    ----------
    side : length of its sides [m].
    divisions : number of edges along a side.

    Raises
    ------
    InputError
        A side that is not positive and finite, divisions that are no whole number from 1.
    """
    (side,) = _lengths(side=side)
    ring, sector, triangles = _rings(whole_number(divisions, "divisions"))
    corners = _flat(np.array(1.0), np.arange(7) * (math.pi / 3))
    which = np.floor(sector).astype(np.int64)
    along = (sector - which)[:, None]
    nodes = (side * ring / divisions)[:, None] * ((1 - along) * corners[which] + along * corners[which + 1])
    return Mesh(nodes, triangles)


def hemisphere(radius: float, spacing: float, pattern: str = "regular", seed: int = 0) -> Mesh:
    """Return an open bell: the half z >= 0 of a sphere around the origin, nodes on the sphere, rim in the plane z = 0.

    The triangles are wound counter-clockwise seen from outside. Parameters and errors are those of `disc`.
    """
    radius, spacing = _checked_round(radius, spacing, pattern, seed)
    _check_count(2 * math.pi * radius**2, spacing)
    divisions = round(0.5 * math.pi * radius / spacing)
    if pattern == "regular":
        ring, sector, triangles = _rings(divisions)
        return Mesh(_spherical(radius, ring / divisions, sector * (math.pi / 3)), triangles)
    height = np.arange(divisions + 1) / divisions
    ring, azimuth = _shuffled_rings(radius * np.sin(height * (0.5 * math.pi)), spacing, seed)
    nodes = _spherical(radius, height[ring], azimuth)
    rim = ring == divisions

    def on_sphere(x: np.ndarray) -> np.ndarray:
        return radius * x / np.linalg.norm(x, axis=1, keepdims=True)

    inner = on_sphere(_jittered(nodes[~rim], spacing, seed))
    inner = inner[np.arcsin(inner[:, 2] / radius) * radius > BORDER * spacing]
    return _relaxed(nodes[rim], inner, np.ones(len(inner), dtype=bool), _seen_from_below, on_sphere, spacing)


def _lengths(**given: float) -> list[float]:
    """Return lengths as floats; refuse those that are not positive and finite."""
    return [positive_number(value, name, "a positive finite length in m") for name, value in given.items()]


def _check_seed(seed: int, pattern: str) -> None:
    whole_number(seed, "seed", least=0)
    if seed != 0 and pattern != "random":
        raise InputError(f"seed: only pattern 'random' uses random numbers, got seed {seed} with pattern {pattern!r}")


def _checked_round(radius: float, spacing: float, pattern: str, seed: int) -> list[float]:
    """Return radius and spacing of a round mesh as floats; refuse combinations that do not fit."""
    radius, spacing = _lengths(radius=radius, spacing=spacing)
    if spacing > radius:
        raise InputError(f"spacing: expected at most the radius {radius:g}, got {spacing:g}: take a smaller spacing")
    check_choice("pattern", pattern, ROUND_PATTERNS)
    _check_seed(seed, pattern)
    return [radius, spacing]


def _check_count(area: float, spacing: float) -> None:
    """Refuse a spacing [m] that would make more than `MOST_TRIANGLES` of an area [m^2]."""
    triangles = 2 * area / (ROW_HEIGHT * spacing**2)
    if triangles > MOST_TRIANGLES:
        raise InputError(
            f"spacing: {spacing:g} m makes some {triangles:.0e} triangles; expected at most {MOST_TRIANGLES:.0e}: take "
            "a larger spacing; are all lengths in m?"
        )


def _squares(length: float, width: float, spacing: float, alternate: bool) -> Mesh:
    """Return a grid of near squares, halved from the lower left corner; if `alternate`, every other from the right."""
    columns, rows = max(1, round(length / spacing)), max(1, round(width / spacing))
    x, y = np.meshgrid(np.linspace(0, length, columns + 1), np.linspace(0, width, rows + 1))
    nodes = np.stack([x.reshape(-1), y.reshape(-1), np.zeros(x.size)], axis=1)
    row, column = (i.reshape(-1) for i in np.indices((rows, columns)))
    a = row * (columns + 1) + column  # a b are the lower corners of the square, d c the upper ones
    b, c, d = a + 1, a + columns + 2, a + columns + 1
    rising = np.stack([np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)], axis=1)
    falling = np.stack([np.stack([a, b, d], axis=1), np.stack([b, c, d], axis=1)], axis=1)
    from_right = ((row + column) % 2 == 1) & alternate
    return Mesh(nodes, np.where(from_right[:, None, None], falling, rising).reshape(-1, 3))


def _rows(length: float, width: float, spacing: float) -> Mesh:
    """Return rows of nearly equilateral triangles; every other row of nodes is shifted by half an edge."""
    columns, rows = max(1, round(length / spacing)), max(1, round(width / (ROW_HEIGHT * spacing)))
    even = np.linspace(0, length, columns + 1)
    odd = np.concatenate([[0.0], 0.5 * (even[1:] + even[:-1]), [float(length)]])
    nodes, triangles, first = [], [], 0
    for row, y in enumerate(np.linspace(0, width, rows + 1)):
        x = odd if row % 2 else even
        nodes.append(np.stack([x, np.full(len(x), y), np.zeros(len(x))], axis=1))
        if row < rows:
            below, above = first, first + len(x)
            few, many = (above, below) if row % 2 else (below, above)
            # Edge k of the row with fewer nodes lies opposite to node k + 1 of the other; node k there to its edge k.
            k, m = np.arange(columns), np.arange(columns + 1)
            on_few = np.stack([few + k, few + k + 1, many + k + 1], axis=1)
            on_many = np.stack([many + m + 1, many + m, few + m], axis=1)
            strip = np.concatenate([on_few, on_many])
            triangles.append(strip[:, ::-1] if row % 2 else strip)
        first += len(x)
    return Mesh(np.concatenate(nodes), np.concatenate(triangles))


def _rings(divisions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a centre node with rings of 6 k nodes around it, joined by 6 divisions^2 triangles.

    Returns
    -------
    ring (N,) of each node, from 0; sector (N,) in [0, 6), its angle in sixths of a turn; triangles (F, 3).
    """
    ring, sector, triangles = [np.zeros(1, dtype=np.int64)], [np.zeros(1)], []
    for k in range(1, divisions + 1):
        ring.append(np.full(6 * k, k))
        sector.append(np.arange(6 * k) / k)
        sixth, j = (i.reshape(-1) for i in np.indices((6, k)))
        outer = 1 + 3 * k * (k - 1)
        inner = 1 + 3 * (k - 1) * (k - 2) if k > 1 else 0
        on_inner = inner + (sixth * (k - 1) + j) % max(1, 6 * (k - 1))
        on_outer, next_outer = outer + sixth * k + j, outer + (sixth * k + j + 1) % (6 * k)
        next_inner = inner + (sixth * (k - 1) + j + 1) % max(1, 6 * (k - 1))
        triangles.append(np.stack([on_inner, on_outer, next_outer], axis=1))
        between = j < k - 1
        triangles.append(np.stack([on_inner, next_outer, next_inner], axis=1)[between])
    return np.concatenate(ring), np.concatenate(sector), np.concatenate(triangles)


def _shuffled_rings(distance: np.ndarray, spacing: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ring (N,) and azimuth (N,) of nodes on rings with radii (R,), all but the last turned at random."""
    counts = np.maximum(1, np.round(2 * math.pi * distance / spacing).astype(np.int64))
    start = np.random.default_rng(seed).uniform(0, 2 * math.pi, len(distance))
    start[-1] = 0.0
    ring = np.repeat(np.arange(len(distance)), counts)
    azimuth = [s + 2 * math.pi * np.arange(n) / n for s, n in zip(start, counts, strict=True)]
    return ring, np.concatenate(azimuth)


def _flat(distance: np.ndarray, azimuth: np.ndarray) -> np.ndarray:
    """Return nodes (N, 3) in the plane z = 0, from their distances to the origin and their angles to +x."""
    x, y = distance * np.cos(azimuth), distance * np.sin(azimuth)
    return np.stack([x, y, np.zeros_like(x)], axis=1)


def _spherical(radius: float, height: np.ndarray, azimuth: np.ndarray) -> np.ndarray:
    """Return nodes on the sphere; height 0 is the apex on +z, 1 the equator, exactly in the plane z = 0."""
    nodes = _flat(radius * np.sin(height * (0.5 * math.pi)), azimuth)
    nodes[:, 2] = np.where(height == 1, 0.0, radius * np.cos(height * (0.5 * math.pi)))
    return nodes


def _jittered(nodes: np.ndarray, spacing: float, seed: int) -> np.ndarray:
    return nodes + JITTER * spacing * np.random.default_rng(seed).standard_normal(nodes.shape)


def _sides(length: float, width: float, spacing: float) -> np.ndarray:
    """Return evenly spaced nodes on the sides of the rectangle, counter-clockwise from the origin."""
    columns, rows = max(1, round(length / spacing)), max(1, round(width / spacing))
    x, y = np.linspace(0, length, columns + 1), np.linspace(0, width, rows + 1)
    x = np.concatenate([x[:-1], np.full(rows, float(length)), x[:0:-1], np.zeros(rows)])
    y = np.concatenate([np.zeros(columns), y[:-1], np.full(columns, float(width)), y[:0:-1]])
    return np.stack([x, y, np.zeros(len(x))], axis=1)


def _distance_to_sides(nodes: np.ndarray, length: float, width: float) -> np.ndarray:
    """Return the distance (N,) to the nearest side of the rectangle, negative outside."""
    x, y = nodes[:, 0], nodes[:, 1]
    return np.minimum(np.minimum(x, length - x), np.minimum(y, width - y))


def _turned_lattice(length: float, width: float, spacing: float, angle: float) -> np.ndarray:
    """Return nodes of an equilateral grid, turned by the angle about the middle of the rectangle, which they cover."""
    reach = math.ceil(math.hypot(length, width) / spacing) + 1
    i, j = (k.reshape(-1) - reach for k in np.indices((2 * reach + 1, 2 * reach + 1)))
    x, y = spacing * (i + 0.5 * (j % 2)), spacing * ROW_HEIGHT * j
    turned_x = 0.5 * length + math.cos(angle) * x - math.sin(angle) * y
    turned_y = 0.5 * width + math.sin(angle) * x + math.cos(angle) * y
    return np.stack([turned_x, turned_y, np.zeros(len(x))], axis=1)


def _planar(nodes: np.ndarray) -> np.ndarray:
    """Return the Delaunay triangulation (F, 3) in the x-y plane, counter-clockwise."""
    from scipy.spatial import Delaunay  # takes a tenth of a second to import

    triangles = Delaunay(nodes[:, :2]).simplices.astype(np.int64)
    u, v = nodes[triangles[:, 1]] - nodes[triangles[:, 0]], nodes[triangles[:, 2]] - nodes[triangles[:, 0]]
    twice_area = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
    triangles = np.where((twice_area < 0)[:, None], triangles[:, [0, 2, 1]], triangles)
    # Delaunay may return three nodes on a straight side as a triangle without area.
    return triangles[np.abs(twice_area) > 1e-9 * twice_area.max()]


def _seen_from_below(nodes: np.ndarray) -> np.ndarray:
    """Return the Delaunay triangulation on a half sphere: planar in the projection from the pole at -z.

    That (stereographic) projection maps circles to circles, so it keeps the Delaunay property.
    """
    radius = np.linalg.norm(nodes, axis=1, keepdims=True)
    return _planar(nodes * (1, 1, 0) / (radius + nodes[:, 2:]))


def _relaxed(
    border: np.ndarray,
    inner: np.ndarray,
    movable: np.ndarray,
    triangulate: Triangulation,
    project: Projection,
    spacing: float,
) -> Mesh:
    """Return a mesh of fixed border nodes and inner nodes, moved until its triangles are well shaped.

    Each movable node goes to the mean of the centres of its triangles, weighted by area; then all nodes are
    triangulated anew. If small angles remain, there is a node too many, and one of the worst triangle is removed.
    """
    nodes = np.concatenate([border, inner])
    moving = np.concatenate([np.zeros(len(border), dtype=bool), movable])
    triangles = triangulate(nodes)
    best, smallest = Mesh(nodes, triangles), _angles(nodes, triangles).min()
    for move in range(1, MOST_MOVES + 1):
        if smallest >= WANTED_ANGLE:
            break
        nodes = np.where(moving[:, None], project(_patch_centres(nodes, triangles)), nodes)
        triangles = triangulate(nodes)
        angles = _angles(nodes, triangles)
        if angles.min() > smallest:
            best, smallest = Mesh(nodes, triangles), angles.min()
        worst = triangles[angles.min(axis=1).argmin()]
        if move % MOVES_BEFORE_DROP == 0 and moving[worst].any():
            kept = np.arange(len(nodes)) != worst[moving[worst]][0]
            nodes, moving = nodes[kept], moving[kept]
            triangles = triangulate(nodes)
    if smallest < SMALLEST_ANGLE:
        raise InputError(
            f"spacing: no mesh with angles above {math.degrees(SMALLEST_ANGLE):g} degrees was found for {spacing:g} "
            f"(best: {math.degrees(smallest):.1f} degrees): take a smaller spacing, another seed or another pattern"
        )
    return best


def _patch_centres(nodes: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """Return for each node (N, 3) the mean of the centres of its triangles, weighted by area."""
    x = nodes[triangles]
    area = np.linalg.norm(np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0]), axis=1)
    weighted = area[:, None] * x.mean(axis=1)
    total, weight = np.zeros_like(nodes), np.zeros(len(nodes))
    for k in range(3):
        np.add.at(total, triangles[:, k], weighted)
        np.add.at(weight, triangles[:, k], area)
    return total / weight[:, None]


def _angles(nodes: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """Return the angles (F, 3) of the triangles [rad]."""
    x = nodes[triangles]
    to_next, to_last = np.roll(x, -1, axis=1) - x, np.roll(x, 1, axis=1) - x
    sine = np.linalg.norm(np.cross(to_next, to_last), axis=2)
    return np.arctan2(sine, (to_next * to_last).sum(axis=2))
