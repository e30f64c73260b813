"""Pictures of triangles by numpy alone: no display, no graphics driver, the same pixels everywhere.

A sample is a point of the picture, and a pixel the mean of two by two samples. For each sample the nearest triangle
there is found (a z-buffer), and shaded. Triangles whose boxes of samples have similar sizes are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["Camera", "Triangles", "draw"]

SAMPLES = 2  # along each side of a pixel
ANGLE = 0.5  # of the view from top to bottom [rad]
MARGIN = 1.08  # how much more than the robots the view shows
SAMPLES_AT_ONCE = 1 << 16  # samples that are evaluated at a time: few enough for a processor's cache
BACKGROUND = np.array([245, 247, 250], dtype=np.uint8)
AMBIENT, DIFFUSE, SHINE, EXPONENT = 0.38, 0.62, 0.18, 24.0
LIGHT = np.array([-0.35, 0.55, 0.76])  # direction to the light: right, up, towards the eye


@dataclass(frozen=True)
class Triangles:
    """Triangles to be drawn.

    Attributes
    ----------
    vertices, normals, colours : (V, 3) [m], (V, 3) unit vectors, (V, 3) uint8.
    faces : (F, 3) vertices of each triangle, counter-clockwise seen from its front.
    both_sides : (F,) bool, whether a triangle is seen from its back, too.
    """

    vertices: np.ndarray
    normals: np.ndarray
    colours: np.ndarray
    faces: np.ndarray
    both_sides: np.ndarray

    @classmethod
    def joined(cls, parts: list[Triangles]) -> Triangles:
        """Return the triangles of all parts as one object."""
        starts = np.cumsum([0, *(len(part.vertices) for part in parts)])
        return cls(
            np.concatenate([part.vertices for part in parts]),
            np.concatenate([part.normals for part in parts]),
            np.concatenate([part.colours for part in parts]),
            np.concatenate([part.faces + start for part, start in zip(parts, starts, strict=False)]),
            np.concatenate([part.both_sides for part in parts]),
        )


@dataclass(frozen=True)
class Camera:
    """A camera with perspective.

    Attributes
    ----------
    eye : (3,) where the camera stands [m].
    axes : (3, 3) unit vectors as rows: to the right, up, and back, against the direction of view.
    width, height : of the picture [pixels].
    angle : of the view from top to bottom [rad].
    """

    eye: np.ndarray
    axes: np.ndarray
    width: int
    height: int
    angle: float

    @classmethod
    def finding(
        cls,
        low: np.ndarray,
        high: np.ndarray,
        azimuth: float,
        elevation: float,
        width: int,
        height: int,
        angle: float = ANGLE,
    ) -> Camera:
        """Return a camera that sees all of a box from a direction.

        Parameters
        ----------
        low, high : (3,) corners of the box [m].
        azimuth, elevation : of the direction to the eye, about z from x and up from the x-y plane [degrees].
        width, height : of the picture [pixels].
        angle : of the view from top to bottom [rad].
        """
        a, e = np.radians([azimuth, elevation])
        back = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
        right = np.array([-np.sin(a), np.cos(a), 0.0])
        axes = np.stack([right, np.cross(back, right), back])
        corners = np.stack(np.meshgrid(*np.stack([low, high], axis=1)), axis=-1).reshape(-1, 3)
        middle = 0.5 * (low + high)
        local = (corners - middle) @ axes.T
        tangent = np.tan(0.5 * angle) * np.array([width / height, 1.0]) / MARGIN
        distance = (np.abs(local[:, :2]) / tangent + local[:, 2:]).max()
        return cls(middle + max(distance, 1e-9) * back, axes, width, height, angle)

    def seen(self, points: np.ndarray, scale: int) -> tuple[np.ndarray, np.ndarray]:
        """Return places (V, 2) in the picture and depths (V,) [m] of points (V, 3).

        Places are in samples, `scale` per pixel, to the right and down from the upper left corner.
        """
        local = (points - self.eye) @ self.axes.T
        depths = -local[:, 2]
        focal = 0.5 * scale * self.height / np.tan(0.5 * self.angle)
        with np.errstate(divide="ignore", invalid="ignore"):
            projected = focal * local[:, :2] / depths[:, None] * np.array([1.0, -1.0])
        return projected + 0.5 * scale * np.array([self.width, self.height]), depths


def draw(camera: Camera, scene: Triangles) -> np.ndarray:
    """Return the picture (height, width, 3) uint8 of triangles as a camera sees them."""
    width, height = SAMPLES * camera.width, SAMPLES * camera.height
    places, depths = camera.seen(scene.vertices.astype(np.float64), SAMPLES)
    corners, faces = _visible_triangles(places, depths, scene)
    nearest = np.zeros(width * height)
    owner = np.full(width * height, -1)
    for triangles, samples, inverse_depths in _samples(corners, 1 / depths[faces], width, height):
        np.maximum.at(nearest, samples, inverse_depths)
        best = inverse_depths == nearest[samples]
        owner[samples[best]] = triangles[best]
    covered = np.flatnonzero(owner >= 0)
    colours = _shaded(camera, scene, covered, owner[covered], corners, faces, depths, width)
    return _mixed(camera, covered, colours)


def _mixed(camera: Camera, covered: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Return the picture (height, width, 3) uint8; `covered` (P,) are the samples with `colours` (P, 3).

    All other samples have the colour of the background.
    """
    size, width = camera.width * camera.height, SAMPLES * camera.width
    pixel = covered // width // SAMPLES * camera.width + covered % width // SAMPLES
    count = np.bincount(pixel, minlength=size)
    covered_pixels = np.flatnonzero(count)
    total = np.stack([np.bincount(pixel, colours[:, k], size)[covered_pixels] for k in range(3)], axis=1)
    background = (SAMPLES**2 - count[covered_pixels])[:, None] * BACKGROUND.astype(np.float64)
    picture = np.tile(BACKGROUND, (size, 1))
    picture[covered_pixels] = ((total + background) / SAMPLES**2).round()
    return picture.reshape(camera.height, camera.width, 3)


def _visible_triangles(places: np.ndarray, depths: np.ndarray, scene: Triangles) -> tuple[np.ndarray, np.ndarray]:
    """Return corners (P, 3, 2) in the picture and faces (P, 3), wound alike, of the triangles that the camera may see.

    They are in front of it, and face it or are seen from both sides. `places`, `depths` are of `Camera.seen`.
    """
    faces = scene.faces[(depths[scene.faces] > 0).all(1)]
    both_sides = scene.both_sides[(depths[scene.faces] > 0).all(1)]
    area = _cross(places[faces])
    # rows count downwards, so triangles that face the eye have negative areas
    visible = (area < 0) | (both_sides & (area > 0))
    faces = np.where((area < 0)[:, None], faces[:, ::-1], faces)[visible]
    return places[faces], faces


def _cross(corners: np.ndarray) -> np.ndarray:
    """Return twice the signed areas (P,) of triangles (P, 3, 2)."""
    u, v = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    return u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]


def _samples(
    corners: np.ndarray, inverse_depths: np.ndarray, width: int, height: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (triangle, sample, 1 / depth), each (k,), of the samples inside triangles, for many triangles at a time.

    `corners` (P, 3, 2) are in samples, `inverse_depths` (P, 3) are those of these corners. A sample inside of several
    triangles comes once for each.
    """
    first = np.maximum(np.ceil(corners.min(1) - 0.5), 0)
    last = np.minimum(np.floor(corners.max(1) - 0.5), [width - 1, height - 1])
    count = (last - first + 1).astype(np.int64)
    inside = np.flatnonzero((count > 0).all(1))
    powers = np.ceil(2 * np.log2(count[inside])).astype(np.int64)  # boxes are sorted by powers of the root of two
    kinds = 64 * powers[:, 0] + powers[:, 1]
    for kind in np.unique(kinds).tolist():
        members = inside[kinds == kind]
        size = max(1, SAMPLES_AT_ONCE // int(count[members].max(0).prod()))
        for k in range(0, len(members), size):
            some = members[k : k + size]
            yield _inside(corners, inverse_depths, first, last, some, count[some].max(0), width)


def _inside(
    corners: np.ndarray,
    inverse_depths: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    members: np.ndarray,
    box: np.ndarray,
    width: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (triangle, sample, 1 / depth), each (k,), of the samples inside the triangles `members`.

    Parameters
    ----------
    first, last : (P, 2) column and row of the first and last sample of the box around each triangle.
    box : (2,) columns and rows of the largest of the members' boxes.
    width : samples in a row of the picture.
    """
    x, y = (first[members, k, None] + np.arange(box[k]) for k in range(2))
    x = np.where(x > last[members, :1], np.nan, x)  # beyond a triangle's own box: NaN is inside of no triangle
    y = np.where(y > last[members, 1:], np.nan, y)
    member_corners = corners[members]
    weights = [
        _edge(member_corners[:, (k + 1) % 3], member_corners[:, (k + 2) % 3], x + 0.5, y + 0.5) for k in range(3)
    ]
    triangle, row, column = np.nonzero((weights[0] >= 0) & (weights[1] >= 0) & (weights[2] >= 0))
    member = members[triangle]
    total = sum(w[triangle, row, column] * inverse_depths[member, k] for k, w in enumerate(weights))
    sample = y[triangle, row].astype(np.int64) * width + x[triangle, column].astype(np.int64)
    return member, sample, total / _cross(member_corners)[triangle]


def _edge(a: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return twice the signed areas (P, rows, columns) of the triangles of a, b and each point of a grid.

    a, b are (P, 2), the grid's coordinates x (P, columns) and y (P, rows).
    """
    along = b - a
    down, right = along[:, :1] * (y - a[:, 1:]), along[:, 1:] * (x - a[:, :1])
    return down[:, :, None] - right[:, None, :]


def _shaded(
    camera: Camera,
    scene: Triangles,
    samples: np.ndarray,
    owner: np.ndarray,
    corners: np.ndarray,
    faces: np.ndarray,
    depths: np.ndarray,
    width: int,
) -> np.ndarray:
    """Return the shaded colours (P, 3) of `samples` (P,), of which the triangles `owner` (P,) are the nearest."""
    triangle, point = corners[owner], np.stack([samples % width, samples // width], axis=1) + 0.5
    area = _cross(triangle)
    # barycentric coordinates in space: those in the picture over the depths of the corners, scaled to a sum of one
    weights = np.stack(
        [
            _cross(np.stack([point, triangle[:, (k + 1) % 3], triangle[:, (k + 2) % 3]], axis=1)) / area
            for k in range(3)
        ],
        axis=1,
    )
    weights = weights / depths[faces[owner]]
    weights = (weights / weights.sum(1, keepdims=True))[..., None]
    normal = (weights * scene.normals[faces[owner]]).sum(1) @ camera.axes.T
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    normal = np.where(normal[:, 2:] < 0, -normal, normal)  # a triangle seen from its back has the opposite normal
    light = LIGHT / np.linalg.norm(LIGHT)
    half = light + np.array([0, 0, 1.0])
    lit = AMBIENT + DIFFUSE * np.maximum(normal @ light, 0)
    shine = 255 * SHINE * np.maximum(normal @ (half / np.linalg.norm(half)), 0) ** EXPONENT
    colour = (weights * scene.colours[faces[owner]]).sum(1)
    return np.minimum(colour * lit[:, None] + shine[:, None], 255)
