"""Shapes that users write: what is no distance, no normal or no curvature is refused when the model is built."""

import pytest
import torch

from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, straight
from torchdismech.contact import Barrier, Box, Complementarity, HalfSpace, Mesh, Obstacle, Penalty, Shape

LAWS = {"constraint": Complementarity, "penalty": lambda: Penalty(50.0, 1e-3), "barrier": lambda: Barrier(50.0, 1e-3)}


class Torus(Shape):
    """A ring of radius L and thickness 2 r about the z axis; some of it may be wrong."""

    def __init__(self, radius=0.06, thin=0.01, distance=1.0, normal=1.0, curvature=1.0):
        super().__init__()
        self.radius, self.thin, self.wrong = radius, thin, (distance, normal, curvature)

    def distance_and_derivatives(self, points):
        """Return the distance from a circle but for what is wrong, and its derivatives."""
        scale, normal, curvature = self.wrong
        x, y, z = points.unbind(-1)
        around = (x**2 + y**2).sqrt()
        out = torch.stack([x / around, y / around, torch.zeros_like(x)], dim=-1)
        up = torch.tensor([0.0, 0.0, 1.0], dtype=points.dtype).expand_as(points)
        length = ((around - self.radius) ** 2 + z**2).sqrt()
        n = ((around - self.radius)[..., None] * out + z[..., None] * up) / length[..., None]
        along = torch.linalg.cross(up, out)
        across = torch.linalg.cross(along, n)
        turning = along[..., :, None] * along[..., None, :] * ((n * out).sum(-1) / around)[..., None, None]
        bending = across[..., :, None] * across[..., None, :] / length[..., None, None]
        return scale * length - self.thin, normal * n, curvature * (turning + bending)

    @property
    def depth(self):
        """Half its thickness."""
        return torch.tensor(self.thin, dtype=torch.float64)


def touching(shape, law, dtype=torch.float64):
    """Return the model of a rod above a shape."""
    builder = RobotBuilder()
    builder.add_rod(straight((0.02, -0.1, 0.013), (0.02, 0.1, 0.013), 21), Circle(2e-3), Material(1e6, 1000.0))
    builder.add_contact(Obstacle(shape, law(), name="ring"))
    return builder.finalize(dtype=dtype)


WRONG = {
    "normals of twice the length": ({"normal": 2.0}, r"its normal is not the gradient of its distance: at \("),
    "normals that point inwards": ({"normal": -1.0}, r"its normal is not the gradient of its distance"),
    "distances that grow too fast": ({"distance": 1.3}, r"its normal is not the gradient of its distance"),
    "no distance": (
        {"distance": 1.3, "normal": 1.3, "curvature": 1.3},
        r"its normal at .* has the length 1.3; expected 1",
    ),
    "curvature": ({"curvature": 0.0}, r"its curvature is not the derivative of its normal"),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_shapes_are_refused_whatever_the_law(wrong, law):
    """Name the obstacle, its class and what of it is wrong."""
    given, message = WRONG[wrong]
    with pytest.raises(InputError, match=rf"obstacle 'ring': Torus: {message}"):
        touching(Torus(**given), LAWS[law])


class OfRobots(HalfSpace):
    """A floor whose height is off by where a point is in the mean over all robots."""

    def distance_and_derivatives(self, points):
        """Return the plane's, with the distance changed."""
        distance, *derivatives = super().distance_and_derivatives(points)
        return distance + (points.mean(0) - points)[..., 2].detach(), *derivatives


@pytest.mark.parametrize("law", LAWS)
def test_shapes_that_mix_robots_are_refused(law):
    """Name the obstacle whose distances depend on the batch, also where it is for several robots."""
    for place in ((0.0, 0.0, 0.0), torch.zeros(3, 3, dtype=torch.float64)):
        with pytest.raises(InputError, match="obstacle 'ring': OfRobots: .* depends on the other points, or robots"):
            touching(OfRobots(place, (0.0, 0.0, 1.0)), LAWS[law])


WRONG_SIZES = {
    "a depth that is a number": ({"depth": 0.01}, r"depth: expected a tensor of shape \(\) or \(B, 1\) .*, got float"),
    "a depth that is missing": ({"depth": Shape.depth}, "depth cannot be evaluated: TypeError: Wrong has to define"),
    "a width that is a number": ({"width": 0.02}, "width: expected a tensor .*, got float"),
    "a depth of each robot": ({"depth": torch.ones(2)}, r"depth: expected a tensor .*, got the shape \(2,\)"),
}


@pytest.mark.parametrize("wrong", WRONG_SIZES)
def test_wrong_sizes_are_refused(wrong):
    """Name the obstacle, its class, the size, and what came."""
    given, message = WRONG_SIZES[wrong]
    with pytest.raises(InputError, match=rf"obstacle 'ring': Wrong: {message}"):
        touching(type("Wrong", (Torus,), given)(), LAWS["penalty"])


@pytest.mark.parametrize("law", LAWS)
def test_right_shapes_are_taken(law):
    """Step a rod on a torus; take it in single precision, where the law does."""
    model = touching(Torus(), LAWS[law])
    ImplicitEuler(1e-3).step(model, model.initial_state(), throw=True)
    if law != "constraint":
        touching(Torus(), LAWS[law], torch.float32)


def test_shapes_with_kinks_are_taken():
    """Take a box and a mesh by other names: what has edges has several normals there."""

    class OwnBox(Box):
        """The library's, as a user's."""

    class OwnMesh(Mesh):
        """The library's, as a user's."""

    touching(OwnBox((0.0, 0.0, 0.0), (0.1, 0.1, 0.02), (0.0, 0.0, 0.3)), LAWS["constraint"])
    corners = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=torch.float64) * 0.05
    faces = [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]
    touching(OwnMesh(corners.numpy() - 0.06, faces), LAWS["constraint"])
