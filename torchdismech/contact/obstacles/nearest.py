"""The nearest triangle of a rigid mesh to each of many points, by a hierarchy of bounding discs.

The triangles are ordered by halving groups of them again and again along the longest side of their bounding box. A flat
disc around each group, centred at a point of the surface, bounds the distance to the group's nearest triangle: the
distance to the disc from below, that to its centre from above. A group whose lower bound is above an upper bound of a
point is dropped, so that a few triangles a point remain, wherever the point is. Where very many triangles are equally
near, as at the centre of a sphere, all are evaluated.

On a CPU compiled code (`native/nearest.cpp`) takes one point after the other down the hierarchy. By operations of torch
all points descend together, level by level. Both compute distances from triangles alike to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.fused import compiled_code_accepts, traced
from torchdismech.native import function_of, in_threads

__all__ = ["NearestTriangle"]

Rows = Tensor | Sequence[Tensor]

# Groups at the first level, all of which are tested for each point: 2^6 (`MOST` in native/nearest.cpp); then 2^9, ...
FIRST_LEVEL = 6
LEVEL_STEP = 3
# Pairs of point and group that are tested at a time, about 300 bytes each: on the CPU as many as caches hold (a quarter
# faster than four times as many), on other devices enough to be worth the launches of kernels.
MOST_PAIRS = {"cpu": 1 << 16}
MOST_PAIRS_ELSEWHERE = 1 << 20
A_THREAD = 1 << 10  # points of a thread of compiled code, about 1 ms


class NearestTriangle(nn.Module):
    """Search of the nearest triangle of a mesh to each of many points.

    Parameters
    ----------
    vertices : (V, 3) [m].
    triangles : (F, 3) indices of vertices.

    Attributes
    ----------
    discs_k : (8, G) discs of the groups of level k, see `_discs`; at the last level each group is one triangle.
    children_k : (G, C) indices of the groups of level k + 1 in each group of level k, padded by -1.
    order : (F,) index of the triangle at each place of the order in which groups are consecutive.
    frames : (21, F) coordinates of each triangle, in that order, for `_square_distance`.
    """

    order: Tensor
    frames: Tensor

    def __init__(self, vertices: np.ndarray, triangles: np.ndarray):
        super().__init__()
        corners = vertices[triangles]
        bounds = _level_bounds(len(triangles))
        order = _halved(corners.mean(axis=1), bounds)
        self.levels = len(bounds) + 1
        singles = np.arange(len(triangles) + 1)
        for level, bound in enumerate([*bounds, singles]):
            self.register_buffer(f"discs_{level}", torch.from_numpy(_discs(corners[order], bound)))
        for level, (coarse, fine) in enumerate(pairwise([*bounds, singles])):
            self.register_buffer(f"children_{level}", torch.from_numpy(_children(coarse, fine)))
        self.register_buffer("order", torch.from_numpy(order))
        self.register_buffer("frames", torch.from_numpy(_frames(corners[order])))

    @torch.no_grad()
    def forward(self, points: Tensor) -> Tensor:
        """Return the index (P,) of the triangle nearest to each point (P, 3), the smallest index if several are.

        For a point that is not finite, or so far away that squares overflow, it is an arbitrary triangle.
        """
        usable = (points.abs() < torch.finfo(points.dtype).max ** 0.25).all(-1, keepdim=True)
        points = torch.where(usable, points, 0.0)
        found = self._compiled(points)
        if found is not None:
            return found
        pairs = MOST_PAIRS.get(points.device.type, MOST_PAIRS_ELSEWHERE)
        chunks = points.split(pairs // self.get_buffer("discs_0").shape[1])
        return torch.cat([self._search(chunk, pairs) for chunk in chunks])

    def _compiled(self, points: Tensor) -> Tensor | None:
        """Return the indices (P,) by compiled code; None where torch has to find them."""
        ours = compiled_code_accepts(points, self.frames) and points.dtype == self.frames.dtype and not traced()
        function = function_of("nearest_triangles", points.dtype) if ours else None
        if function is None:
            return None
        discs = [self.get_buffer(f"discs_{level}") for level in range(self.levels)]
        children = [self.get_buffer(f"children_{level}") for level in range(self.levels - 1)]
        table = np.zeros((self.levels, 4), dtype=np.int64)
        table[:, :2] = [(of.shape[1], of.data_ptr()) for of in discs]
        table[:-1, 2:] = [(of.shape[1], of.data_ptr()) for of in children] or 0
        found = torch.empty(len(points), dtype=torch.int64, device="cpu")
        arguments = self.levels, table, len(self.order), self.frames, self.order, points.contiguous(), found
        in_threads(function, arguments, len(points), len(points) // A_THREAD, [*discs, *children], [found])
        return found

    def _search(self, points: Tensor, most_pairs: int) -> Tensor:
        count, x = len(points), points.T.contiguous()
        lower, upper = _distance_bounds(x.unsqueeze(2), self.get_buffer("discs_0").unsqueeze(1))
        point, group = (lower <= upper.amin(1, keepdim=True)).nonzero().unbind(1)
        for level in range(1, self.levels):
            children = self.get_buffer(f"children_{level - 1}")
            if len(group) * children.shape[1] > most_pairs and count > 1:
                return torch.cat([self._search(half, most_pairs) for half in points.chunk(2)])
            group = children.index_select(0, group)
            point, group = point.unsqueeze(1).expand_as(group)[group >= 0], group[group >= 0]
            lower, upper = _distance_bounds(_columns(x, point), _columns(self.get_buffer(f"discs_{level}"), group))
            near = (lower <= _smallest(upper, point, count)[point]).nonzero().squeeze(1)
            point, group = point[near], group[near]
        squared = _square_distance(_columns(x, point), _columns(self.frames, group))
        nearest = (squared == _smallest(squared, point, count)[point]).nonzero().squeeze(1)
        return _smallest(self.order[group[nearest]], point[nearest], count)


def _columns(table: Tensor, index: Tensor) -> list[Tensor]:
    """Return the chosen columns of a table (R, G) as a list of contiguous rows: much faster than as one tensor."""
    return [row.index_select(0, index) for row in table]


def _smallest(values: Tensor, point: Tensor, count: int) -> Tensor:
    """Return the smallest value (count,) of each point, of values (K,) that belong to the points `point` (K,)."""
    worst = torch.inf if values.dtype.is_floating_point else torch.iinfo(values.dtype).max
    return values.new_full((count,), worst).scatter_reduce_(0, point, values, "amin")


def _distance_bounds(x: Rows, discs: Rows) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds of the distances from points to the nearest triangle within discs.

    Parameters
    ----------
    x : three rows, the coordinates of points.
    discs : eight rows as in `_discs`, which broadcast against these.
    """
    vx, vy, vz = x[0] - discs[0], x[1] - discs[1], x[2] - discs[2]
    height = vx * discs[3] + vy * discs[4] + vz * discs[5]
    # the component across the normal as a vector: computed from a difference of squares it would lose half its digits
    tx, ty, tz = vx - height * discs[3], vy - height * discs[4], vz - height * discs[5]
    beside = (tx * tx + ty * ty + tz * tz).sqrt() - discs[6]
    above = height.abs() - discs[7]
    upper = (vx * vx + vy * vy + vz * vz).sqrt()
    lower = (beside.clamp(min=0).square() + above.clamp(min=0).square()).sqrt()
    return torch.minimum(lower, upper), upper  # rounding could put them in the wrong order


def _square_distance(p: Rows, frames: Rows) -> Tensor:
    """Return the squared distances (K,) of points (3, K) from triangles, given as columns (21, K) of `_frames`."""
    ox, oy, oz, ux, uy, uz, vx, vy, vz, nx, ny, nz, bx, cx, cy, px, py, pl, qx, qy, ql = frames
    rx, ry, rz = p[0] - ox, p[1] - oy, p[2] - oz
    x, y, z = rx * ux + ry * uy + rz * uz, rx * vx + ry * vy + rz * vz, rx * nx + ry * ny + rz * nz
    first = _to_edge(x, -y, bx)
    second = _to_edge((x - bx) * px + y * py, (x - bx) * py - y * px, pl)
    third = _to_edge((x - cx) * qx + (y - cy) * qy, (x - cx) * qy - (y - cy) * qx, ql)
    inside = (y >= 0) & ((x - bx) * py <= y * px) & ((x - cx) * qy <= (y - cy) * qx)
    return torch.where(inside, 0.0, torch.minimum(torch.minimum(first, second), third)) + z * z


def _to_edge(along: Tensor, across: Tensor, length: Tensor) -> Tensor:
    """Return the squared distance from an edge, in its plane, of points with these coordinates along and across it."""
    past = along - torch.minimum(along.clamp(min=0), length)
    return past * past + across * across


def _level_bounds(count: int) -> list[np.ndarray]:
    """Return for each level where its groups begin (G + 1,) in the order of the triangles, the end included."""
    levels = range(FIRST_LEVEL, 64, LEVEL_STEP)
    return [np.arange(2**k + 1) * count // 2**k for k in levels if 2**k < count]


def _halved(centers: np.ndarray, bounds: list[np.ndarray]) -> np.ndarray:
    """Return the order (F,) of triangles in which the groups of all levels are consecutive and compact.

    Parameters
    ----------
    centers : (F, 3) of the triangles.
    bounds : of the levels, see `_level_bounds`.
    """
    count, order = len(centers), np.arange(len(centers))
    depth = int(np.log2(len(bounds[-1]) - 1)) if bounds else 0
    for k in range(depth):
        start = np.arange(2**k) * count // 2**k
        segment = np.searchsorted(start, np.arange(count), side="right") - 1
        x = centers[order]
        extent = np.maximum.reduceat(x, start) - np.minimum.reduceat(x, start)
        order = order[np.lexsort((np.take_along_axis(x, extent.argmax(axis=1)[segment, None], 1)[:, 0], segment))]
    return order


def _discs(corners: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return a flat disc around each group of triangles, (8, G): centre (3), normal (3), radius and half the thickness.

    The centre is that of one of the group's triangles, and so a point of the surface.

    Parameters
    ----------
    corners : (F, 3, 3) of the triangles, in the order of the groups.
    bound : (G + 1,) where the groups begin.
    """
    start, size = bound[:-1], np.diff(bound)
    group = np.repeat(np.arange(len(size)), size)
    middles = corners.mean(axis=1)
    mean = np.add.reduceat(middles, start) / size[:, None]
    off = np.linalg.norm(middles - mean[group], axis=1)
    center = middles[np.lexsort((off, group))[start]]  # of the triangle nearest to the mean
    area = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal = np.add.reduceat(area, start)
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    normal = np.where(length > 0, normal / np.where(length > 0, length, 1), (0.0, 0.0, 1.0))  # any would do
    from_center = corners - center[group][:, None]
    height = (from_center * normal[group][:, None]).sum(axis=2)
    beside = np.linalg.norm(from_center - height[..., None] * normal[group][:, None], axis=2)
    radius, thickness = (np.maximum.reduceat(np.abs(x).max(axis=1), start) for x in (beside, height))
    return np.concatenate([center, normal, radius[:, None], thickness[:, None]], axis=1).T.copy()


def _children(coarse: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """Return the indices (G, C) of the groups of a fine level in each group of a coarse one, padded by -1."""
    first = np.searchsorted(fine, coarse)
    children = first[:-1, None] + np.arange(np.diff(first).max())
    return np.where(children < first[1:, None], children, -1)


def _frames(corners: np.ndarray) -> np.ndarray:
    """Return the frame of each triangle and its corners in this frame, as (21, F) numbers for `_square_distance`.

    These are corner 0; the three axes of the frame, the first along edge 0, the last the triangle's normal; and in that
    frame x of corner 1, x and y of corner 2, and directions and lengths of edges 1 and 2.
    """
    a, ab, ac = corners[:, 0], corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    bx = np.linalg.norm(ab, axis=1)
    u = ab / bx[:, None]
    normal = np.cross(ab, ac)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    v = np.cross(normal, u)
    cx, cy = (ac * u).sum(axis=1), (ac * v).sum(axis=1)
    p, q = np.hypot(cx - bx, cy), np.hypot(cx, cy)
    plane = [bx, cx, cy, (cx - bx) / p, cy / p, p, -cx / q, -cy / q, q]
    return np.concatenate([a.T, u.T, v.T, normal.T, np.array(plane)])
