"""The deepest points of plates against searches over the whole plate, and their derivatives."""

import math

import pytest
import torch

from torchdismech.constant_curvature import plates
from torchdismech.constant_curvature.plates import EDGE, deepest
from torchdismech.contact import Box, Capsule, Cylinder, HalfSpace, Mesh, Sphere

RADIUS = torch.tensor(0.05, dtype=torch.float64)


def cube() -> Mesh:
    """Return a cube of .2 m as a mesh."""
    corner = torch.tensor([[x, y, z] for x in (-0.1, 0.1) for y in (-0.1, 0.1) for z in (-0.1, 0.1)])
    faces = [[0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1]]
    faces += [[2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]]
    return Mesh(corner.double().numpy(), torch.tensor(faces).numpy())


SHAPES = {
    "half-space": HalfSpace((0.0, 0.0, 0.1), (0.2, 0.1, 1.0)),
    "sphere": Sphere((0.0, 0.0, 0.0), 0.1),
    "box": Box((0.0, 0.0, 0.0), (0.2, 0.2, 0.2), (0.1, 0.0, 0.2)),
    "cylinder": Cylinder((0.0, 0.0, -0.1), (0.0, 0.02, 0.1), 0.1),
    "capsule": Capsule((-0.2, 0.0, 0.0), (0.2, 0.0, 0.0), 0.1),
    "mesh": cube(),
}
EDGED = ("box", "cylinder", "mesh")


def random_plates(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return middles (1, P, 3) some centimetres outside of shapes of .1 m, and axes (1, P, 3, 2)."""
    generator = torch.Generator().manual_seed(0)
    away = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    away = away / away.norm(dim=1, keepdim=True)
    middle = away * (0.16 + 0.1 * torch.rand(count, 1, generator=generator, dtype=torch.float64))
    frame = torch.linalg.qr(torch.randn(count, 3, 3, generator=generator, dtype=torch.float64))[0]
    return middle[None], frame[None, :, :, :2]


def sampled(shape, middle, axes) -> torch.Tensor:
    """Return the least distance (1, P) over 30 rings of 72 points."""
    angle = torch.arange(72, dtype=torch.float64) * (2 * math.pi / 72)
    ring = torch.linspace(0, 1, 30, dtype=torch.float64)
    place = 0.05 * (ring[:, None, None] * torch.stack([angle.cos(), angle.sin()], -1)).flatten(0, 1)
    points = middle[:, :, None] + (axes[:, :, None] @ place[:, :, None])[..., 0]
    return shape.distance(points.flatten(1, 2)).unflatten(1, (middle.shape[1], -1)).amin(2)


@pytest.mark.parametrize("name", SHAPES)
def test_no_point_of_the_plate_is_deeper(name):
    """Search 60 random plates point by point; the grid is within .1 mm or so of the least distance."""
    shape = SHAPES[name]
    middle, axes = random_plates(60)
    found = deepest(shape, middle, axes, RADIUS)
    gap = found.gap + (EDGE if name in EDGED else 0.0)
    least = sampled(shape, middle, axes)
    assert (gap - least).max() < 1e-9
    assert (gap - least).min() > -1e-3  # the grid's coarseness
    offset = found.point - middle
    assert offset.norm(dim=2).max() < 0.05 + 1e-12
    assert torch.linalg.cross(axes[..., 0], axes[..., 1]).mul(offset).sum(2).abs().max() < 1e-12


def resting_plates(shape, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return plates as `random_plates` does, moved along the line to the origin until they touch a shape with edges."""
    middle, axes = random_plates(count)
    outward = middle / middle.norm(dim=2, keepdim=True)
    near, far = torch.zeros_like(middle[..., :1]), torch.full_like(middle[..., :1], 0.4)
    for _ in range(40):
        half = (near + far) / 2
        inside = deepest(shape, half * outward, axes, RADIUS).gap[..., None] < 0
        near, far = torch.where(inside, half, near), torch.where(inside, far, half)
    return far * outward, axes


@pytest.mark.parametrize("name", EDGED)
def test_the_point_that_touches_an_edge_is_the_deepest(name):
    """Let 200 plates touch edges, corners and rims; look for deeper points along the rim and over the face near by."""
    shape = SHAPES[name]
    middle, axes = resting_plates(shape, 200)
    found = deepest(shape, middle, axes, RADIUS)
    place = ((found.point - middle)[..., None, :] @ axes)[..., 0, :]
    direction = torch.arange(64, dtype=torch.float64) * (2 * math.pi / 64)
    circle = torch.stack([direction.cos(), direction.sin()], -1)
    for size in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        around = place[:, :, None] + size * circle
        around = around * (RADIUS / around.norm(dim=3, keepdim=True)).clamp(max=1.0)
        points = middle[:, :, None] + (axes[:, :, None] @ around[..., None])[..., 0]
        least = shape.distance(points.flatten(1, 2)).unflatten(1, (200, 64)).amin(2)
        # the distance is convex outside but for what rounding adds to it
        assert (found.gap + EDGE - least).max() < 1e-15, size


@pytest.mark.parametrize("name", ["half-space", "sphere", "capsule", "box touched", "cylinder touched"])
def test_derivatives_follow_the_deepest_point(name):
    """Hold gap, point and normal against central differences by the plate's place, its tilt and its radius."""
    shape = SHAPES[name.split()[0]]
    middle, axes = resting_plates(shape, 40) if "touched" in name else random_plates(40)
    third = torch.linalg.cross(axes[..., 0], axes[..., 1])[..., None]
    frame = torch.cat([axes, third], 3)

    def found(change: torch.Tensor) -> torch.Tensor:
        x, y, z = change[3:6]
        zero = torch.zeros_like(x)
        skew = torch.stack([torch.stack(r) for r in ((zero, -z, y), (z, zero, -x), (-y, x, zero))])
        turned = (torch.linalg.matrix_exp(skew) @ frame)[..., :2]
        d = deepest(shape, middle + change[:3], turned, RADIUS + change[6])
        return torch.cat([d.gap[..., None], d.point, d.normal], 2)[0]

    zero = torch.zeros(7, dtype=torch.float64)
    exact = torch.autograd.functional.jacobian(found, zero)
    h, unit = 1e-6, torch.eye(7, dtype=torch.float64)
    with torch.no_grad():
        measured = torch.stack([(found(h * e) - found(-h * e)) / (2 * h) for e in unit], -1)
    error = (exact - measured).abs().flatten(1).amax(1)
    # plates within 1e-3 rad of lying flat, and those whose deepest point leaves the rim, are at a kink
    assert (error < 1e-5).double().mean() > 0.85, error.sort()[0]


def test_a_plate_above_a_small_ball_touches_with_its_face():
    """Find the point of the face right above the ball's centre."""
    middle = torch.tensor([[[0.01, -0.02, 0.03]]], dtype=torch.float64)
    axes = torch.eye(3, dtype=torch.float64)[None, None, :, :2]
    found = deepest(Sphere((0.0, 0.0, 0.0), 0.025), middle, axes, RADIUS)
    assert torch.allclose(found.point, torch.tensor([0.0, 0.0, 0.03], dtype=torch.float64), atol=1e-9)
    assert abs(found.gap.item() - 0.005) < 1e-12


@pytest.mark.parametrize("degrees", [0.0, 30.0, 45.0])
def test_a_plate_on_a_capsule_touches_along_its_axis(degrees):
    """Hold derivatives of a face lying on a capsule, where any point of a line is as deep, against differences."""
    angle = math.radians(degrees)
    end = torch.tensor([0.1 * math.cos(angle), 0.1 * math.sin(angle), 0.0], dtype=torch.float64)
    shape, axes = Capsule(-end, end, 0.02), torch.eye(3, dtype=torch.float64)[None, None, :, :2]

    def found(place: torch.Tensor) -> torch.Tensor:
        d = deepest(shape, place[None, None], axes, RADIUS)
        return torch.cat([d.gap[..., None], d.point], 2)[0, 0]

    middle = torch.tensor([0.0, 0.0, 0.03], dtype=torch.float64)
    exact = torch.autograd.functional.jacobian(found, middle)
    h, unit = 1e-4, torch.eye(3, dtype=torch.float64)
    measured = torch.stack([(found(middle + h * e) - found(middle - h * e)) / (2 * h) for e in unit], -1)
    # all is linear here; the search leaves the point where 1e-10 of the radius would be gained, a ten thousandth of h
    assert (exact - measured).abs().max() < 1e-5


@pytest.mark.parametrize("name", SHAPES)
def test_a_search_ends_where_rounding_hides_what_a_step_does(monkeypatch, name):
    """Find the deepest points of plates a quarter of a metre away in few steps, also where a step gains nothing."""
    middle, axes = random_plates(200)
    seen, derivatives = [], plates._derivatives
    monkeypatch.setattr(plates, "_derivatives", lambda *args: seen.append(1) or derivatives(*args))
    deepest(SHAPES[name], 1.5 * middle, axes, RADIUS)
    assert len(seen) < 30
