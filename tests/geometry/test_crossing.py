"""Closest points of smooth lines that cross: where the lines are, against a dense search, each point counted once."""

import numpy as np
import pytest
import torch

from torchdismech.geometry.crossing import BEYOND, closest_crossing
from torchdismech.geometry.vec3 import Vec3

DISTANCE = 0.3  # of two lines, in edges


def vectors(nodes: torch.Tensor) -> tuple[Vec3, ...]:
    """Return the nodes of pairs (K, 8, 3)."""
    return tuple(Vec3(*node.unbind(-1)) for node in nodes.unbind(1))


def line(nodes: torch.Tensor, goes_on: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the points (K, T, 3) of lines, whose nodes (K, 4, 3) are start, end, before and after."""
    start, end, before, after = nodes.unsqueeze(1).unbind(2)
    first = (before - 2 * start + end) * goes_on[:, None, :1]
    second = (start - 2 * end + after) * goes_on[:, None, 1:]
    t = t[:, None]
    return (1 - t) * start + t * end + (1 - t) ** 2 * (1 - 4 * t) / 12 * first + t**2 * (4 * t - 3) / 12 * second


def pairs(count: int = 400, spread: float = 0.9) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nodes (K, 8, 3) of pairs of edges of length one that cross, and where they go on (K, 4)."""
    generator = torch.Generator().manual_seed(0)
    a = [[-0.5, 0, 0], [0.5, 0, 0], [-1.5, 0, 0], [1.5, 0, 0]]
    straight = torch.tensor([*a[:2], *a[:2], *a[2:], *a[2:]], dtype=torch.float64)
    nodes = straight + 0.06 * torch.randn(count, 8, 3, dtype=torch.float64, generator=generator)
    angle = 0.6 + 1.9 * torch.rand(count, dtype=torch.float64, generator=generator)
    shift = spread * (2 * torch.rand(count, 2, dtype=torch.float64, generator=generator) - 1)
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    for k in (2, 3, 6, 7):
        x, y, z = nodes[:, k].unsqueeze(-1).unbind(1)
        turned = torch.cat([cosine * x - sine * y, sine * x + cosine * y], 1) + shift
        nodes[:, k] = torch.cat([turned, z - DISTANCE], 1)
    goes_on = torch.rand(count, 4, generator=generator) < 0.8
    return nodes, goes_on.double()


def found(nodes: torch.Tensor, goes_on: torch.Tensor):
    """Return the closest points of pairs."""
    return closest_crossing(*vectors(nodes), *goes_on.unbind(1))


def test_against_a_dense_search():
    """Find the least distance of all points of both lines, inside and at ends."""
    nodes, goes_on = pairs()
    closest = found(nodes, goes_on)
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    a = line(nodes[:, [0, 1, 4, 5]], goes_on[:, :2], t)
    b = line(nodes[:, [2, 3, 6, 7]], goes_on[:, 2:], t)
    least = torch.cdist(a, b).flatten(1).amin(1)
    distance = closest.squared_distance(vectors(nodes)).sqrt()
    # beyond a line's end by BEYOND; between points of the search by (1/200)^2 / (2 distance) of both lines, at least
    assert bool((distance <= least + 1e-12).all()) and bool((least - distance < 3e-4).all())
    own = closest.share == 1
    assert 50 < int(own.sum()) < len(nodes) - 50  # others have closer points beyond a node


def test_closest_points_are_stationary():
    """Reach rounding within the rounds that are made: no free parameter lowers the distance."""
    nodes, goes_on = pairs()
    closest = found(nodes, goes_on)
    own = closest.share > 0
    r, slides = closest.difference(vectors(nodes)), closest.slid(vectors(nodes))
    assert all(float(r.dot(slide).abs()[own].max()) < 1e-14 for slide in slides)
    free = torch.stack([torch.stack(slide).abs().sum(0) > 0 for slide in closest.slides]).sum(0)
    assert free[own].bincount(minlength=3).min() > 2


def chains(offset, count: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all pairs of edges of two bent chains that cross, the second one moved by `offset` (2,)."""
    place = torch.arange(count + 1, dtype=torch.float64) - count // 2
    bent = 0.03 * place**2 + 0.004 * place**3
    nothing = torch.zeros_like(place)
    first = torch.stack([place, nothing, -bent], 1)
    second = torch.stack([nothing + offset[0], place + offset[1], bent - DISTANCE], 1)
    around = torch.stack([place[:-1], place[1:], place[:-1] - 1, place[1:] + 1], 1).long() + count // 2
    goes_on = torch.stack([around[:, 2] >= 0, around[:, 3] <= count], 1).double()
    around = around.clamp(0, count)
    i, j = (x.flatten() for x in torch.meshgrid(torch.arange(count), torch.arange(count), indexing="ij"))
    a, b = first[around][i], second[around][j]
    return torch.cat([a[:, :2], b[:, :2], a[:, 2:], b[:, 2:]], 1), torch.cat([goes_on[i], goes_on[j]], 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("at", ["nodes", "beside nodes", "anywhere"])
def test_a_point_counts_once(at, dtype):
    """Have shares that add up to one, wherever two chains cross, and one distance."""
    generator = np.random.default_rng(0)
    whole = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    beside = {"nodes": 0.0, "beside nodes": 2 * BEYOND, "anywhere": 0.5}[at]
    for place in whole:
        offset = np.array(place) + beside * generator.uniform(-1, 1, 2)
        nodes, goes_on = (x.to(dtype) for x in chains(offset))
        closest = found(nodes, goes_on)
        # rounding of a place, some times that of one, over the width in which neighbours share
        rounding = 5 * torch.finfo(dtype).eps
        assert float(closest.share.sum()) == pytest.approx(1.0, abs=rounding / BEYOND)
        distance = closest.squared_distance(vectors(nodes)).sqrt()[closest.share > 0]
        # within that width a parabola rises by its square
        assert float(distance.max() - distance.min()) < 0.1 * BEYOND**2 + rounding


def test_lines_are_smooth_and_as_far_inside_as_edges_are():
    """Join with one tangent at nodes; lie inside of a circle through the nodes by kappa h^2 / 12 everywhere."""
    step = 0.1  # rad, of edges on a circle of radius one
    angle = step * torch.arange(-1, 4, dtype=torch.float64)
    nodes = torch.stack([angle.cos(), angle.sin(), 0 * angle], 1)
    goes_on = torch.ones(1, 2, dtype=torch.float64)
    ends = torch.tensor([0.0, 1e-6, 1 - 1e-6, 1.0], dtype=torch.float64)
    first, second = (line(nodes[None, [k, k + 1, k - 1, k + 2]], goes_on, ends)[0] for k in (1, 2))
    assert torch.allclose(first[3], second[0], atol=1e-15)
    # differences over 1e-6
    assert torch.allclose(first[3] - first[2], second[1] - second[0], rtol=0, atol=1e-12)
    inside = 1 - line(nodes[None, [1, 2, 0, 3]], goes_on, torch.linspace(0, 1, 11, dtype=torch.float64)).norm(dim=-1)
    # of higher order in the step
    assert torch.allclose(inside, torch.full_like(inside, step**2 / 12), rtol=5e-3)


def test_edges_without_neighbours_are_straight():
    """Do not look at nodes beyond a rod's ends."""
    nodes, goes_on = pairs()
    elsewhere = nodes.clone()
    elsewhere[:, 4:] = 7.0
    closest, other = found(nodes, 0 * goes_on), found(elsewhere, 0 * goes_on)
    assert torch.equal(torch.stack(closest.weights), torch.stack(other.weights))
    assert float(torch.stack(closest.weights[4:]).abs().max()) == 0
    assert bool((closest.share == 1).all())
