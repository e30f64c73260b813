"""Signed distances of half-space, sphere, capsule, cylinder and box, with their derivatives."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from tests.contact.shape_derivatives import assert_derivatives_of_autograd, assert_derivatives_of_differences
from torchdismech import forces
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.contact import Friction, Penalty
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.obstacles.shapes import Box, Capsule, Cylinder, HalfSpace, Sphere
from torchdismech.errors import InputError

# Three robots' own parameters, and one set for all.
CENTER = np.array([[0.1, -0.2, 0.3], [0.0, 0.0, 0.0], [-0.4, 0.5, 0.6]])
RADIUS = np.array([[0.3], [0.2], [0.5]])
END = np.array([[0.8, 0.1, 0.2], [-0.5, 0.3, 0.1], [-0.4, 0.5, 1.4]])
NORMAL = np.array([[0.0, 0.0, 2.0], [1.0, -1.0, 0.5], [-0.3, 0.0, 0.1]])
SIZE = np.array([[0.8, 0.6, 1.1], [0.5, 0.5, 0.5], [1.2, 0.3, 0.7]])
ROTATION = np.array([[0.0, 0.0, 0.0], [0.3, -0.7, 1.1], [2.0, 1.5, -0.4]])
PER_ROBOT = {
    "half-space": lambda rows: HalfSpace(CENTER[rows], NORMAL[rows]),
    "sphere": lambda rows: Sphere(CENTER[rows], RADIUS[rows]),
    "capsule": lambda rows: Capsule(CENTER[rows], END[rows], RADIUS[rows]),
    "cylinder": lambda rows: Cylinder(CENTER[rows], END[rows], RADIUS[rows]),
    "box": lambda rows: Box(CENTER[rows], SIZE[rows], ROTATION[rows]),
}
FOR_ALL = {
    "half-space": lambda: HalfSpace(CENTER[1], NORMAL[1]),
    "sphere": lambda: Sphere(CENTER[2], 0.4),
    "capsule": lambda: Capsule(CENTER[0], END[0], 0.4),
    "cylinder": lambda: Cylinder(CENTER[0], END[0], 0.4),
    "box": lambda: Box(CENTER[0], SIZE[0], ROTATION[2]),
}
NAMES = list(PER_ROBOT)
EVERY = slice(None)


def scattered(count: int, batch: int = 3, seed: int = 0) -> torch.Tensor:
    """Return points (batch, count, 3) in and around the shapes."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.rand(batch, count, 3, generator=generator, dtype=torch.float64) - 1.5


def half_space_distance(x, b):
    """Return the distance by the equation of the plane n.x = c."""
    length = math.sqrt(sum(NORMAL[b] ** 2))
    return x @ NORMAL[b] / length - CENTER[b] @ NORMAL[b] / length


def sphere_distance(x, b):
    """Return the distance by the norm."""
    return np.linalg.norm(x - CENTER[b], axis=1) - RADIUS[b, 0]


def capsule_distance(x, b):
    """Return the distance by the area of the triangle of point and segment, or by the nearer end."""
    u, v, axis = x - CENTER[b], x - END[b], END[b] - CENTER[b]
    line = np.linalg.norm(np.cross(u, v), axis=1) / np.linalg.norm(axis)
    ends = np.minimum(np.linalg.norm(u, axis=1), np.linalg.norm(v, axis=1))
    return np.where((u @ axis > 0) & (v @ axis < 0), line, ends) - RADIUS[b, 0]


def cylinder_distance(x, b):
    """Return the distance by the nearest point of the cylinder, inside by the nearer of barrel and ends."""
    u, axis = x - CENTER[b], END[b] - CENTER[b]
    length = np.linalg.norm(axis)
    along = u @ axis / length
    across = np.linalg.norm(np.cross(u, axis), axis=1) / length
    inside = (across < RADIUS[b, 0]) & (along > 0) & (along < length)
    gaps = np.stack([across - np.clip(across, 0, RADIUS[b, 0]), along - np.clip(along, 0, length)])
    deep = np.minimum(np.minimum(along, length - along), RADIUS[b, 0] - across)
    return np.where(inside, -deep, np.linalg.norm(gaps, axis=0))


def box_distance(x, b):
    """Return the distance by the nearest point of the box, inside by that on each of the six faces."""
    local = Rotation.from_rotvec(ROTATION[b]).inv().apply(x - CENTER[b])
    low, high = -SIZE[b] / 2, SIZE[b] / 2
    outside = np.linalg.norm(local - np.clip(local, low, high), axis=1)
    return np.where(outside > 0, outside, -np.minimum(local - low, high - local).min(axis=1))


EXPECTED = {
    "half-space": half_space_distance,
    "sphere": sphere_distance,
    "capsule": capsule_distance,
    "cylinder": cylinder_distance,
    "box": box_distance,
}


@pytest.mark.parametrize("name", NAMES)
def test_distance_is_the_independent_one(name):
    """Measure 3 x 10^4 points, inside and outside, by formulas written differently."""
    points = scattered(10_000)
    distance = PER_ROBOT[name](EVERY).distance(points)
    expected = np.stack([EXPECTED[name](points[b].numpy(), b) for b in range(3)])
    assert (expected < 0).any() and (expected > 0).any()
    # rounding: a few ulps of coordinates up to 3
    np.testing.assert_allclose(distance.numpy(), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_normal_and_curvature_are_the_autograd_derivatives(name):
    """Differentiate distance and normal by autograd."""
    assert_derivatives_of_autograd(PER_ROBOT[name](EVERY), scattered(10_000))


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_the_central_differences(name):
    """Differentiate by central differences."""
    assert_derivatives_of_differences(PER_ROBOT[name](EVERY), scattered(2000, seed=1))


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_the_robots_alone(name):
    """Give each robot its own parameters: row i is what robot i has alone, to the last bit."""
    points = scattered(500)
    together = PER_ROBOT[name](EVERY).distance_and_derivatives(points)
    for b in range(3):
        alone = PER_ROBOT[name](b) if name == "half-space" else PER_ROBOT[name]([b])
        for all_rows, row in zip(together, alone.distance_and_derivatives(points[b : b + 1]), strict=True):
            torch.testing.assert_close(all_rows[b : b + 1], row, rtol=0, atol=1e-15 * (1 + row.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_one_parameter_serves_all_robots(name):
    """Repeat a parameter of all robots for each of them."""
    shape, points = FOR_ALL[name](), scattered(500)
    values = shape.distance_and_derivatives(points)
    for parameter in shape.parameters():
        parameter.data = parameter.data.expand(3, -1 if parameter.dim() else 1).clone()
    for one, each in zip(values, shape.distance_and_derivatives(points), strict=True):
        torch.testing.assert_close(one, each, rtol=1e-13, atol=1e-13)


def with_parameters(shape: Shape, points: torch.Tensor):
    """Return all outputs as a function of points and parameters, and the inputs."""
    names = [name for name, _ in shape.named_parameters()]

    def outputs(x, *values):
        with_values = torch.func.functional_call
        # functional_call goes through forward
        shape.forward = shape.distance_and_derivatives
        return with_values(shape, dict(zip(names, values, strict=True)), (x,))

    inputs = [points, *(p.detach().clone() for p in shape.parameters())]
    return outputs, [x.requires_grad_() for x in inputs]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("per_robot", [True, False])
def test_autograd_goes_through_points_and_parameters_twice(name, per_robot):
    """Compare first and second autograd derivatives by points, centres, sizes and turns with finite differences."""
    shape = PER_ROBOT[name](EVERY) if per_robot else FOR_ALL[name]()
    outputs, inputs = with_parameters(shape, scattered(4, seed=3))
    # differences over 2e-6: rounding of 1e-16 and truncation leave 1e-9
    assert torch.autograd.gradcheck(outputs, inputs, eps=1e-6, atol=1e-7, rtol=1e-6)
    assert torch.autograd.gradgradcheck(lambda *x: outputs(*x)[:2], inputs, eps=1e-6, atol=1e-7, rtol=1e-6)


def test_parameters_move_the_surface():
    """Grow and shift: the distance falls by the radius, and by the normal's component of the shift."""
    sphere, points = Sphere(CENTER, RADIUS).requires_grad_(True), scattered(50)
    distance, normal, _ = sphere.distance_and_derivatives(points)
    by_radius, by_center = torch.autograd.grad(distance.sum(), [sphere.radius, sphere.center])
    torch.testing.assert_close(by_radius, torch.full((3, 1), -50.0, dtype=torch.float64))
    torch.testing.assert_close(by_center, -normal.sum(1))


# Kinks and surface points of the shapes at the origin.
SPECIAL = {
    "half-space": (lambda: HalfSpace((0, 0, 0), (0, 0, 1)), [(0, 0, 0), (1, 2, 0)]),
    "sphere": (lambda: Sphere((0, 0, 0), 0.5), [(0, 0, 0), (0.5, 0, 0), (1e-200, 0, 0), (1e-30, 1e-30, 0)]),
    "capsule": (
        lambda: Capsule((0, 0, 0), (1, 0, 0), 0.5),
        [(0, 0, 0), (0.3, 0, 0), (1, 0, 0), (0.3, 0.5, 0), (0, 0.2, 0), (1, 0, 0.5), (1.5, 0, 0), (-0.5, 0, 0)],
    ),
    "cylinder": (
        lambda: Cylinder((0, 0, 0), (1, 0, 0), 0.4),
        [(0.5, 0, 0), (0.2, 0, 0), (0.3, 0.4, 0), (0, 0.4, 0), (1, 0, 0.4), (1, 0.1, 0), (1.2, 0, 0), (0.1, 0.3, 0)]
        + [(1.2, 0.6, 0), (0.5, 0.9, 0), (0.5, 1e-200, 0)],
    ),
    "slanted capsule": (
        lambda: Capsule((0, 0, 0), (0.3, 0.7, -0.2), 0.5),
        [tuple(s * np.array((0.3, 0.7, -0.2))) for s in np.linspace(0, 1, 11)],
    ),
    "box": (
        lambda: Box((0, 0, 0), (1, 2, 3)),
        [(x, y, z) for x in (-0.5, 0, 0.5) for y in (-1, 0, 0.5, 1) for z in (-1.5, 0, 1.5, 2)]
        + [(0.5 + 1e-300, 1, 1.5), (0.5 + 1e-16, 1 + 1e-16, 1.5)],
    ),
    "cube": (lambda: Box((0, 0, 0), (1, 1, 1)), [(0, 0, 0), (0.2, 0.2, 0.1), (0.2, -0.2, 0.2), (0.5, 0.5, 0.5)]),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kinks_have_finite_one_sided_values(name, dtype):
    """Evaluate on surfaces, axes, centres, edges and corners: all values and two autograd derivatives are finite."""
    build, special = SPECIAL[name]
    shape = build().to(dtype).requires_grad_(True)
    points = torch.tensor(np.array(special)[None], dtype=dtype, requires_grad=True)
    distance, normal, curvature = shape.distance_and_derivatives(points)
    torch.testing.assert_close(normal.norm(dim=-1), torch.ones_like(distance))
    (slope,) = torch.autograd.grad(distance.sum(), points, create_graph=True)
    torch.testing.assert_close(slope, normal)  # the plane that stands for the kink has this normal
    inputs = [points, *shape.parameters()]
    weights = torch.linspace(1, 2, 9, dtype=dtype).view(3, 3)
    total = distance.sum() + (normal * weights[0]).sum() + (curvature * weights).sum() + (slope**2 * weights[1]).sum()
    first = torch.autograd.grad(total, inputs, allow_unused=True)
    for value in (distance, normal, curvature, *first):
        assert value is None or torch.isfinite(value).all()


def test_normal_on_an_axis_is_across_it():
    """Ask on the axis of a slanted capsule: the normal is a unit vector across it and the depth is the radius."""
    build, special = SPECIAL["slanted capsule"]
    shape = build()
    distance, normal, _ = shape.distance_and_derivatives(torch.tensor(np.array(special)[None]))
    torch.testing.assert_close(distance, torch.full_like(distance, -0.5), rtol=0, atol=1e-15)
    torch.testing.assert_close(normal @ (shape.end - shape.start), torch.zeros_like(distance), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["sphere", "capsule", "cylinder", "box"])
def test_depth_is_the_largest_one(name):
    """Look for the deepest point in a dense set around the deepest ones: no deeper than `depth`, and nearly as deep."""
    shape = PER_ROBOT[name](EVERY)
    deep = (CENTER + END) / 2 if name == "cylinder" else CENTER
    points = torch.from_numpy(deep)[:, None] + 0.02 * scattered(2000)
    deepest = -shape.distance(points).amin(1, keepdim=True)
    assert shape.depth.shape == (3, 1)
    assert (deepest <= shape.depth + 1e-15).all() and (deepest > shape.depth - 0.01).all()
    assert FOR_ALL[name]().depth.shape == ()


def test_depth_of_a_half_space_is_infinite():
    """Sink without end."""
    assert HalfSpace((0, 0, 0), (0, 0, 1)).depth == math.inf


def test_box_without_rotation_stands_along_the_axes():
    """Leave the rotation out, and turn by a quarter about z."""
    point = torch.tensor([[[1.0, 0.0, 0.0]]], dtype=torch.float64)
    assert Box((0, 0, 0), (1, 2, 3)).distance(point).item() == 0.5
    turned = Box((0, 0, 0), (1, 2.4, 3), (0, 0, math.pi / 2)).distance(point).item()
    assert turned == pytest.approx(-0.2, abs=1e-15)


def test_shapes_keep_their_parameters_to_themselves():
    """Build from a tensor and an integer tensor: the shape has copies in floating point, without gradients."""
    center = torch.zeros(3, dtype=torch.float64)
    sphere = Sphere(center, torch.tensor(2))
    center += 1
    assert (sphere.center == 0).all() and sphere.radius.dtype == torch.float64
    assert not any(p.requires_grad for p in sphere.parameters())


REFUSED = {
    "zero normal": (lambda: HalfSpace((0, 0, 0), (0, 0, 0)), "HalfSpace.normal: expected a vector of some length"),
    "one zero normal": (lambda: HalfSpace((0, 0, 0), [[0, 0, 1], [0, 0, 0]]), "HalfSpace.normal"),
    "point of two": (lambda: HalfSpace((0, 0), (0, 0, 1)), r"HalfSpace.point: expected shape \(3,\) or \(B, 3\)"),
    "nan": (lambda: HalfSpace((0, 0, math.nan), (0, 0, 1)), "HalfSpace.point: expected finite numbers"),
    "text": (lambda: Sphere("origin", 1), "Sphere.center: expected numbers"),
    "ragged": (lambda: Sphere([(0, 0, 0), (1, 0)], 1), "Sphere.center: expected numbers"),
    "negative radius": (lambda: Sphere((0, 0, 0), -1), "Sphere.radius: expected lengths above 0, got -1"),
    "zero radius": (lambda: Sphere((0, 0, 0), 0), "Sphere.radius"),
    "infinite radius": (lambda: Sphere((0, 0, 0), math.inf), "Sphere.radius: expected finite"),
    "radii of shape (B,)": (lambda: Sphere((0, 0, 0), [1, 2]), r"Sphere.radius: expected one number, .* \(B, 1\)"),
    "two and three robots": (lambda: Sphere(np.zeros((2, 3)), np.ones((3, 1))), r"Sphere: .* got \[2, 3\]"),
    "no segment": (lambda: Capsule((0, 1, 0), (0, 1, 0), 1), "Capsule.end: expected another point than Capsule.start"),
    "one without segment": (lambda: Capsule((0, 1, 0), [(0, 1, 0), (1, 1, 1)], 1), "Capsule.end"),
    "flat cylinder": (lambda: Cylinder((0, 1, 0), (0, 1, 0), 1), "Cylinder.end: expected another point"),
    "negative capsule": (lambda: Capsule((0, 0, 0), (0, 1, 0), -1), "Capsule.radius"),
    "flat box": (lambda: Box((0, 0, 0), (1, 1, 0)), "Box.size: expected lengths above 0"),
    "one side": (lambda: Box((0, 0, 0), 1), "Box.size: expected shape"),
    "rotation matrix": (lambda: Box((0, 0, 0), (1, 1, 1), np.eye(3)), "looks like a rotation matrix"),
    "degrees": (
        lambda: Box((0, 0, 0), (1, 1, 1), (0, 0, 90)),
        r"Box.rotation: expected a turn or less, .* got 90: see",
    ),
    "degrees of one": (lambda: Box((0, 0, 0), (1, 1, 1), [(0, 0, 1), (0, 30, 0)]), "got 30: see math.radians"),
    "matrices": (lambda: Box((0, 0, 0), (1, 1, 1), np.ones((2, 3, 3))), "Box.rotation: expected shape"),
}


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_malformed_shape_is_refused(build, message):
    """Refuse a shape that is none, naming shape and parameter."""
    with pytest.raises(InputError, match=message):
        build()


def test_shapes_and_laws_print_their_numbers():
    """Show the numbers of shapes, laws and forces, and the shapes of those of several robots; absent ones are none."""
    assert repr(Sphere((0, 0, 1), 0.5)) == "Sphere(center=[0.0, 0.0, 1.0], radius=0.5)"
    assert repr(Penalty(20.0, 0.5)) == "Penalty(stiffness=20.0, tolerance=0.5)"
    assert repr(Friction(torch.zeros(4, 1), 0.5)) == "Friction(coefficient=(4, 1), slip_velocity=0.5)"
    assert repr(forces.Gravity((0, 0, -10))) == "Gravity(acceleration=[0.0, 0.0, -10.0])"
    assert repr(Tendons([AtNodes([0, 1])], tension=[2.0])).startswith(
        "Tendons(tension=[2.0]"
    )  # no offset before a robot
