"""Closest points of segments, and of points and triangles, in all regions and where they degenerate.

Two independent solvers judge the distances: golden-section search, since the distance of a point on a line to a convex
set is convex along the line (all pairs, whatever their shape), and trimesh (points and proper triangles).
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import trimesh
from scipy.optimize import lsq_linear

from torchdismech.geometry.distances import FLAT, PARALLEL, closest_on_triangle, closest_segments
from torchdismech.geometry.vec3 import Vec3

COUNT = 10_000  # pairs of each kind, ten kinds
KERNELS = {"segments": closest_segments, "triangle": closest_on_triangle}
FIRST = {"segments": 2, "triangle": 1}  # nodes of the first primitive


def vectors(points: np.ndarray | torch.Tensor) -> tuple[Vec3, ...]:
    """Return four nodes of points (K, 4, 3)."""
    return tuple(Vec3(*node.unbind(-1)) for node in torch.as_tensor(points).unbind(1))


def distance(kernel: Callable, points) -> torch.Tensor:
    """Return the distances (K,) of pairs of nodes (K, 4, 3)."""
    nodes = vectors(points)
    r = kernel(*nodes).difference(nodes)
    return r.dot(r).sqrt()


def directions(rng, count: int) -> np.ndarray:
    """Return random unit vectors."""
    v = rng.normal(size=(count, 3))
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def segment_pairs() -> dict[str, np.ndarray]:
    """Return pairs of segments (K, 4, 3) by kind, of size one."""
    rng = np.random.default_rng(0)
    a0, e, f, g = (rng.normal(size=(COUNT, 3)) for _ in range(4))
    s, t, c = (rng.uniform(size=(COUNT, 1)) for _ in range(3))
    sign = rng.choice([-1.0, 1.0], size=(COUNT, 1))
    flip = rng.uniform(size=(COUNT, 1)) < 0.5
    tilt = 10 ** rng.uniform(-12, -1, size=(COUNT, 1))
    x, y, z = np.eye(3)[rng.permuted(np.tile(np.arange(3), (COUNT, 1)), axis=1)].transpose(1, 0, 2)
    whole = rng.integers(-3, 4, size=(COUNT, 3)).astype(float)
    i, j, k = rng.integers(1, 4, size=(3, COUNT, 1))
    zero = np.zeros_like(e)

    def pairs(a0, e, b0, f):
        return np.stack([a0, a0 + e, b0, b0 + f], axis=1)

    return {
        "random": pairs(a0, e, a0 + g, f),
        "parallel": pairs(a0, e, a0 + g, sign * (0.2 + c) * e),
        "nearly parallel": pairs(a0, e, a0 + s * e + g * np.where(flip, 1, 0.1 * tilt), c * sign * e + tilt * f),
        "collinear": pairs(a0, e, a0 + 3 * (s - 0.5) * e, sign * (0.2 + c) * e),
        "touching": pairs(a0, e, a0 + s * e, f),
        "crossing": pairs(a0, e, a0 + s * e - t * f, f),
        "shared end": pairs(a0, e, np.where(flip, a0, a0 + e), f),
        "points": pairs(a0, np.where(flip, zero, e), a0 + np.where(s < 0.3, zero, g), np.where(c < 0.5, zero, f)),
        # (most of) these cross or touch along the axes of coordinates, in round numbers
        "axis-aligned": pairs(whole - i * x, 2 * i * x, whole - j * y + k * z * flip, 2 * j * y),
        "same": pairs(a0, e, np.where(flip, a0, a0 + e), np.where(flip, e, -e)),
    }  # fmt: skip


def point_triangle_pairs() -> dict[str, np.ndarray]:
    """Return points with triangles (K, 4, 3) by kind, of size one."""
    rng = np.random.default_rng(1)
    t0, e, f, g = (rng.normal(size=(COUNT, 3)) for _ in range(4))
    s, t, c = (rng.uniform(size=(COUNT, 1)) for _ in range(3))
    low, high = np.minimum(s, t), np.maximum(s, t)
    u, v = low, high - low  # u + v < 1
    normal = np.cross(e, f)
    flip = rng.uniform(size=(COUNT, 1)) < 0.5
    thin = 10 ** rng.uniform(-12, -1, size=(COUNT, 1))
    corner = rng.integers(0, 3, size=(COUNT, 1))
    whole = rng.integers(-3, 4, size=(COUNT, 3)).astype(float)
    x, y, z = np.eye(3)[rng.permuted(np.tile(np.arange(3), (COUNT, 1)), axis=1)].transpose(1, 0, 2)
    i, j, k = rng.integers(-3, 4, size=(3, COUNT, 1))
    i, j = np.where(i == 0, 1, i), np.where(j == 0, 2, j)

    def pairs(p, e, f):
        return np.stack([p, t0, t0 + e, t0 + f], axis=1)

    corners = np.where(corner == 0, 0 * e, np.where(corner == 1, e, f))
    return {
        "random": pairs(t0 + g, e, f),
        "above": pairs(t0 + u * e + v * f + (c - 0.5) * normal, e, f),
        "within": pairs(t0 + u * e + v * f, e, f),
        "on a side": pairs(t0 + np.where(flip, s * e, e + s * (f - e)), e, f),
        "at a corner": pairs(t0 + corners, e, f),
        "above a corner": pairs(t0 + corners + c * normal, e, f),
        "thin": pairs(t0 + g, e, (2 * s - 0.5) * e + thin * f),
        "flat": pairs(t0 + np.where(flip, g, (3 * s - 1) * e), e, (3 * t - 1) * e),
        "a point": pairs(t0 + g, np.where(flip, 0.0, e), 0 * f),
        "axis-aligned": np.stack([whole + k * z, whole, whole + i * x, whole + j * y], axis=1),
    }  # fmt: skip


PAIRS = {"segments": segment_pairs, "triangle": point_triangle_pairs}


@pytest.fixture(scope="module", params=list(KERNELS))
def kind(request) -> str:
    """Name the pair of primitives."""
    return request.param


@pytest.fixture(scope="module")
def pairs(kind) -> dict[str, np.ndarray]:
    """Return all pairs of a kind."""
    return PAIRS[kind]()


def to_segment(points: np.ndarray, start: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return the distances of points to segments by projection."""
    square = (direction**2).sum(1)
    share = ((points - start) * direction).sum(1) / np.where(square > 0, square, 1)
    return np.linalg.norm(points - start - np.clip(share, 0, 1)[:, None] * direction, axis=1)


def golden(distance: Callable) -> np.ndarray:
    """Return the least of convex functions distance(share (K,)) on [0, 1]."""
    ratio = (np.sqrt(5) - 1) / 2
    low, high = np.zeros(COUNT), np.ones(COUNT)
    least = np.minimum(distance(low), distance(high))
    for _ in range(90):  # 0.618^90 = 1e-19
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        at_left, at_right = distance(left), distance(right)
        least = np.minimum(least, np.minimum(at_left, at_right))
        low, high = np.where(at_left < at_right, low, left), np.where(at_left < at_right, right, high)
    return least


def searched(kind: str, nodes: np.ndarray) -> np.ndarray:
    """Return the distances (K,) by a search along one side of the first primitive."""
    x0, x1, x2, x3 = nodes.transpose(1, 0, 2)
    if kind == "segments":
        return golden(lambda s: to_segment(x0 + s[:, None] * (x1 - x0), x2, x3 - x2))
    # across the triangle: lines of constant share along its first side
    return golden(lambda u: to_segment(x0, x1 + u[:, None] * (x2 - x1), (1 - u)[:, None] * (x3 - x1)))


def allowed(kind: str, nodes: np.ndarray) -> np.ndarray:
    """Return the allowed errors (K,) of a distance.

    Rounding of the positions, 1e-13 of the size. Of directions almost alike (sin^2 = q) the places are known to eps/q,
    which lets the distance err by eps/sqrt(q) of the size. Where q counts as zero the distance is that of parallel
    segments, or to the sides of a triangle: wrong by half a width sqrt(q) at most.
    """
    x0, x1, x2, x3 = nodes.transpose(1, 0, 2)
    e, f = (x1 - x0, x3 - x2) if kind == "segments" else (x2 - x1, x3 - x1)
    square, ee, ff = (np.cross(e, f) ** 2).sum(1), (e**2).sum(1), (f**2).sum(1)
    scale, limit = (ee * ff, PARALLEL) if kind == "segments" else ((ee + ff) ** 2, FLAT)
    q = square / np.where(scale > 0, scale, 1)
    size = np.abs(nodes - nodes[:, :1]).max((1, 2))
    reach = np.abs(nodes).max((1, 2))
    ill = np.where(q > 2 * limit, 1e-15 / np.sqrt(np.maximum(q, limit)), np.sqrt(2 * limit))
    return 1e-13 * reach + np.where(scale > 0, ill, 0) * size


def scales(seed: int) -> np.ndarray:
    """Return sizes from 1e-6 to 1e6."""
    return 10 ** np.random.default_rng(seed).uniform(-6, 6, size=(COUNT, 1, 1))


def test_distances(kind, pairs):
    """Match the search in all kinds of pairs, from micrometres to megametres."""
    for name, nodes in pairs.items():
        nodes = nodes * scales(2)
        error = np.abs(distance(KERNELS[kind], nodes).numpy() - searched(kind, nodes))
        assert (error <= allowed(kind, nodes)).all(), (name, (error / allowed(kind, nodes)).max())


def test_distances_that_are_known(kind, pairs):
    """Find nothing between primitives that meet, up to rounding of the size."""
    meet = {
        "segments": ["touching", "crossing", "shared end", "same"],
        "triangle": ["within", "on a side", "at a corner"],
    }
    for name in meet[kind]:
        assert (distance(KERNELS[kind], pairs[name]).numpy() <= allowed(kind, pairs[name])).all(), name


def test_segments_as_bounded_least_squares():
    """Match scipy's solver of the least-squares problem in two bounded parameters."""
    for name, nodes in segment_pairs().items():
        for x0, x1, x2, x3 in nodes[:20]:
            found = lsq_linear(np.stack([x1 - x0, x2 - x3], axis=1), x2 - x0, bounds=(0, 1), tol=1e-14, method="bvls")
            own = float(distance(closest_segments, np.stack([x0, x1, x2, x3])[None])[0])
            # of the two the iterative solver can be the farther one: by the square root of what it stops at
            bound = allowed("segments", np.stack([x0, x1, x2, x3])[None])[0]
            assert -1e-7 <= own - np.sqrt(2 * found.cost) <= bound or name == "same", name
            assert own <= np.sqrt(2 * found.cost) + bound, name


def test_proper_triangles_as_in_trimesh():
    """Match trimesh's closest points where triangles have an area."""
    for name, nodes in point_triangle_pairs().items():
        if name in ("thin", "flat", "a point"):
            continue
        weights = torch.stack(closest_on_triangle(*vectors(nodes)).weights, -1).numpy()
        own = -(weights[:, 1:, None] * nodes[:, 1:]).sum(1)
        error = np.linalg.norm(own - trimesh.triangles.closest_point(nodes[:, 1:], nodes[:, 0]), axis=1)
        area = np.linalg.norm(np.cross(nodes[:, 2] - nodes[:, 1], nodes[:, 3] - nodes[:, 1]), axis=1)
        # random triangles are thin, too: places get inexact as eps / sin^2
        assert (error <= 1e-13 * (1 + np.abs(nodes).max((1, 2)) ** 4 / area**2)).all(), name


def test_weights(kind, pairs):
    """Give finite weights between the nodes: 1 in sum on the first primitive, -1 on the second; slides sum to 0."""
    first = FIRST[kind]
    for name, nodes in pairs.items():
        for dtype in (torch.float64, torch.float32):
            closest = KERNELS[kind](*vectors(torch.as_tensor(nodes * scales(3), dtype=dtype)))
            weights, slides = torch.stack(closest.weights), torch.stack([torch.stack(s) for s in closest.slides])
            rounding = 4 * torch.finfo(dtype).eps
            assert bool(torch.isfinite(weights).all() and torch.isfinite(slides).all()), name
            assert float((weights[:first].sum(0) - 1).abs().max()) <= rounding, name
            assert float((weights[first:].sum(0) + 1).abs().max()) <= rounding, name
            assert float(weights[:first].min()) >= 0 and float(weights[first:].max()) <= rounding, name
            assert bool((slides[:, :first].sum(1) == 0).all() and (slides[:, first:].sum(1) == 0).all()), name


def test_slides_are_independent(kind, pairs):
    """Have slides that are zero, or of some length and not along each other."""
    for name, nodes in pairs.items():
        points = vectors(nodes)
        e, f = KERNELS[kind](*points).slid(points)
        ee, ff, ef = e.dot(e), f.dot(f), e.dot(f)
        both = (ee > 0) & (ff > 0)
        limit = PARALLEL if kind == "segments" else FLAT / 4
        assert bool((ee * ff - ef**2 > 0.9 * limit * ee * ff)[both].all()), name


def test_symmetric_in_the_segments():
    """Give the same distance whichever segment, and whichever of its ends, comes first."""
    for name, nodes in segment_pairs().items():
        own = distance(closest_segments, nodes)
        for order in ([2, 3, 0, 1], [1, 0, 2, 3], [0, 1, 3, 2], [3, 2, 1, 0]):
            error = (distance(closest_segments, nodes[:, order]) - own).abs().numpy()
            assert (error <= allowed("segments", nodes)).all(), (name, order)


def test_symmetric_in_the_corners():
    """Give the same distance whichever corner of the triangle comes first."""
    for name, nodes in point_triangle_pairs().items():
        own = distance(closest_on_triangle, nodes)
        for order in ([0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2]):
            error = (distance(closest_on_triangle, nodes[:, order]) - own).abs().numpy()
            bound = np.maximum(allowed("triangle", nodes), allowed("triangle", nodes[:, order]))
            assert (error <= bound).all(), (name, order)


def test_moved_rigidly(kind, pairs):
    """Give the same distance after a rotation and a shift."""
    turn = torch.linalg.matrix_exp(torch.tensor([[0, -0.7, 0.2], [0.7, 0, -1.1], [-0.2, 1.1, 0]])).double()
    turn = torch.linalg.qr(turn)[0].numpy()
    for name, nodes in pairs.items():
        moved = nodes @ turn.T + [0.3, -2.0, 1.0]
        error = (distance(KERNELS[kind], moved) - distance(KERNELS[kind], nodes)).abs().numpy()
        assert (error <= allowed(kind, moved) + allowed(kind, nodes)).all(), name


def region(closest) -> torch.Tensor:
    """Return a number (K,) for where the closest points are: which weights are zero, which slides are free."""
    weights = torch.stack(closest.weights)
    bits = torch.cat([weights.abs() < 1e-14, torch.stack([torch.stack(s) for s in closest.slides]).flatten(0, 1) != 0])
    return (bits * (2 ** torch.arange(len(bits)))[:, None]).sum(0)


def gradients(kernel, nodes: torch.Tensor) -> torch.Tensor:
    """Return the gradients w_i n (K, 4, 3) of the distances."""
    closest = kernel(*vectors(nodes))
    normal = torch.stack(closest.difference(vectors(nodes)).components(), -1) / distance(kernel, nodes)[:, None]
    return torch.stack(closest.weights, -1).unsqueeze(-1) * normal.unsqueeze(1)


def test_derivative_in_each_region(kind, pairs):
    """Have w_i n as the derivative of the distance by node i, against central differences, in all regions."""
    kernel, nodes = KERNELS[kind], torch.as_tensor(np.concatenate(list(pairs.values())))
    here, gradient = region(kernel(*vectors(nodes))), gradients(kernel, nodes)
    held = (torch.stack([torch.stack(s) for s in kernel(*vectors(nodes)).slides]) == 0).flatten(0, 1).all(0)
    # beside each other the closest points are not unique, and a step turns the segments by more than what parts them
    proper = torch.as_tensor(conditioning(kind, nodes.numpy()) > 1e-4) | held
    h = 1e-6
    same, worst = (distance(kernel, nodes) > 0.05) & proper, torch.zeros(len(nodes))
    for i in range(4):
        for axis in range(3):
            step = torch.zeros_like(nodes)
            step[:, i, axis] = h
            ends = nodes + step, nodes - step
            difference = (distance(kernel, ends[0]) - distance(kernel, ends[1])) / (2 * h)
            worst = torch.maximum(worst, (difference - gradient[:, i, axis]).abs())
            for end in ends:
                same &= region(kernel(*vectors(end))) == here
    # h^2 / distance^2, where directions are alike (h / sin)^2, and rounding 1e-16 / h; measured 4e-7
    assert float(worst[same].max()) < 1e-6
    regions, count = here[same].unique(return_counts=True)
    # nine of segments, seven of a triangle
    assert int((count > 50).sum()) >= {"segments": 9, "triangle": 7}[kind]


def test_gradient_is_continuous(kind, pairs):
    """Change the gradient little by little on a way through the regions."""
    kernel, rng = KERNELS[kind], np.random.default_rng(5)
    start, way = rng.normal(size=(100, 1, 4, 3)), rng.normal(size=(100, 1, 4, 3))
    steps = 4000
    nodes = (start + np.linspace(0, 2, steps)[:, None, None] * way).reshape(-1, 4, 3)
    sides = np.linalg.norm(nodes[:, [0, 1, 2, 3]] - nodes[:, [1, 2, 3, 1]], axis=2)[:, 1 if kind == "triangle" else 0 :]
    well = torch.as_tensor((conditioning(kind, nodes) > 0.1) & (sides.min(1) > 0.3))
    well &= distance(kernel, torch.as_tensor(nodes)) > 0.1
    gradient = gradients(kernel, torch.as_tensor(nodes)).view(100, steps, 12)
    visited = region(kernel(*vectors(nodes))).view(100, steps)
    change = gradient.diff(dim=1).abs().amax(-1)
    both = well.view(100, steps)[:, 1:] & well.view(100, steps)[:, :-1]
    # steps of 1e-3; a gradient changes by 1 / distance or 1 / sin^2 / length: where it jumped it would change by 1
    assert float(change[both].max()) < 0.2
    assert int((visited.diff(dim=1) != 0).sum()) > 100  # ways lead through regions


def conditioning(kind: str, nodes: np.ndarray) -> np.ndarray:
    """Return sin^2 (K,) of the angle between the two directions that span a pair; 1 where one is missing."""
    x0, x1, x2, x3 = nodes.transpose(1, 0, 2)
    e, f = (x1 - x0, x3 - x2) if kind == "segments" else (x2 - x1, x3 - x1)
    scale = (e**2).sum(1) * (f**2).sum(1)
    return np.where(scale > 0, (np.cross(e, f) ** 2).sum(1) / np.where(scale > 0, scale, 1), 1)


def test_differentiable_changes_nothing(kind, pairs):
    """Keep the weights when autograd is to follow them: the closest points are stationary already."""
    nodes = vectors(torch.as_tensor(pairs["random"]))
    closest = KERNELS[kind](*nodes)
    followed = closest.differentiable(nodes)
    error = (torch.stack(followed.weights) - torch.stack(closest.weights)).abs().amax(0).numpy()
    assert (error <= 1e-14 / conditioning(kind, pairs["random"]) + 1e-13).all()
