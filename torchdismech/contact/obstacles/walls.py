"""Whether straight paths of points lead through a mesh, judged by its thickness where they cross it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchdismech.contact.obstacles.mesh import Mesh

__all__ = ["crossings", "through_walls"]

BESIDE = 1e-9  # tolerance of barycentric coordinates: a path through an edge meets at least one of its two triangles
LOOKS = (0.125, 0.3125, 0.5, 0.6875, 0.875)  # fractions of a path between two crossings where the depth is evaluated
DIP = 0.5  # of half the local thickness: paths that get so much deeper than both of their ends lead through
MOST_PAIRS = 1 << 20  # pairs of a path and a triangle that are evaluated at a time, some 100 bytes each


def through_walls(mesh: Mesh, start: Tensor, end: Tensor, distances: tuple[Tensor, Tensor]) -> Tensor:
    """Return which points (K,) pass through the wall of a mesh as they move straight from `start` to `end` (K, 3).

    A path leads through if somewhere it gets deeper than at both of its ends by a quarter of the local thickness, which
    is the distance through the body from the nearest surface to the one behind it. So paths that cut across an edge of
    a thick body do not count.

    Parameters
    ----------
    distances : (K,) each, signed, of both ends [m].
    """
    way = end - start
    path, place = _middles(*crossings(mesh, start, way), len(start))
    passed = torch.zeros(len(start), dtype=torch.bool, device=start.device)
    points = start[path] + place.unsqueeze(1) * way[path]
    distance, normal, _ = (t[0] for t in mesh.distance_and_derivatives(points[None]))
    deeper = -distance - torch.maximum(-distances[0], -distances[1]).clamp_min(0)[path]
    chosen = (deeper > 0).nonzero().squeeze(1)
    behind = -normal[chosen] * (2 * torch.linalg.vector_norm(mesh.size))
    ray, share = crossings(mesh, points[chosen], behind)
    nearest = torch.ones(len(chosen), dtype=share.dtype, device=share.device).scatter_reduce(0, ray, share, "amin")
    thickness = nearest * torch.linalg.vector_norm(behind, dim=1) - distance[chosen]
    passed[path[chosen[deeper[chosen] > 0.5 * DIP * thickness]]] = True
    return passed


def crossings(mesh: Mesh, start: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
    """Return where straight paths from `start` along `way` (K, 3) meet triangles of the mesh.

    A path through an edge meets both of its triangles. A path in the plane of a triangle does not meet it.

    Returns
    -------
    number : (C,) index of the path of each crossing.
    share : (C,) fraction of the path at which it is, between 0 and 1.
    """
    corners = mesh.vertices[mesh.triangles]
    parts = []
    for chunk in torch.arange(len(start), device=start.device).split(max(1, MOST_PAIRS // len(corners))):
        way_number, share = _met(corners, start[chunk], way[chunk])
        parts.append((chunk[way_number], share))
    return torch.cat([number for number, _ in parts]), torch.cat([share for _, share in parts])


def _met(corners: Tensor, start: Tensor, way: Tensor) -> tuple[Tensor, Tensor]:
    """Return path numbers and fractions (C,) of crossings, as `crossings` does, for all paths (K, 3) at once.

    By barycentric coordinates (Moeller and Trumbore).
    """
    origin, first, second = corners[:, 0], corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    way = way.unsqueeze(1)  # (K, 1, 3)
    across = torch.linalg.cross(way, second.unsqueeze(0))
    volume = (across * first).sum(-1)
    from_corner = start.unsqueeze(1) - origin
    turned = torch.linalg.cross(from_corner, first.expand_as(from_corner))
    u, v, share = (across * from_corner).sum(-1), (turned * way).sum(-1), (turned * second).sum(-1)
    u, v, share = (x / torch.where(volume == 0, torch.inf, volume) for x in (u, v, share))
    met = (volume != 0) & (u >= -BESIDE) & (v >= -BESIDE) & (u + v <= 1 + BESIDE) & (share > 0) & (share < 1)
    number, triangle = met.nonzero().unbind(1)
    return number, share[number, triangle]


def _middles(path: Tensor, share: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return places at which to evaluate the depth: `LOOKS` between all neighbouring crossings of each path.

    Both ends of a path count as crossings, too.

    Parameters
    ----------
    path, share : (C,) path number and fraction of each crossing.
    count : number of paths.

    Returns
    -------
    path, share : (M,) path number and fraction of each place.
    """
    every = torch.arange(count, device=path.device)
    path = torch.cat([every, path, every])
    share = torch.cat([torch.zeros_like(every, dtype=share.dtype), share, torch.ones_like(every, dtype=share.dtype)])
    order = share.argsort(stable=True)
    order = order[path[order].argsort(stable=True)]
    path, share = path[order], share[order]
    followed = (path[1:] == path[:-1]).nonzero().squeeze(1)
    low, high = share[followed], share[followed + 1]
    parts = torch.tensor(LOOKS, dtype=share.dtype, device=share.device)
    return path[followed].repeat_interleave(len(parts)), torch.lerp(low[:, None], high[:, None], parts).flatten()
