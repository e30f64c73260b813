"""Checks of shapes that users write: distances, their gradients and curvatures near the surface, by differences.

With a potential, wrong derivatives of the force would show some such mistakes; with a constraint nothing shows them,
and steps end in wrong states.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from torchdismech.contact.obstacles.shape import Shape
from torchdismech.errors import InputError
from torchdismech.origin import class_name, is_of_user
from torchdismech.values import batch_sizes, every_module, with_rows

__all__ = ["refuse_wrong_shape"]

TRIED = 64  # points at which a shape is tried
PROJECTION_ROUNDS = 20  # Newton iterations that take these points to the surface
STEP = 1e-6  # of differences, in sizes of the robot
OFF = 1e-3  # relative error of derivatives that is refused: differences are good to 1e-8 where features are not tiny
LENGTH = 1e-2  # by which a normal's length may differ from 1: approximate distances, as learned ones, push nearly right

ShapeValues = tuple[Tensor, Tensor, Tensor]


@torch.no_grad()
def refuse_wrong_shape(shape: Shape, obstacle: str, nodes: Tensor, radius: float) -> None:
    """Refuse a user's shape whose normal, curvature or sizes are wrong.

    The normal has to be a unit vector and the gradient of the distance, the curvature the derivative of the normal, and
    depth, width and sharpest radius tensors; each point has to be for itself. The shape is tried at points of its
    surface, and at a distance from it, that are found from starting points around the robot. Points at kinks are left
    out.

    Parameters
    ----------
    obstacle : the obstacle's name, for messages.
    nodes : (N, 3) of the robot, around which points start.
    radius : the distance from the surface at which the shape is tried, too [m].
    """
    if not any(map(is_of_user, every_module(shape))):
        return
    name = f"obstacle {obstacle!r}: {class_name(shape)}"
    _refuse_other_sizes(shape, name)
    shape = shape if nodes.dtype == torch.float64 else copy.deepcopy(shape).double()
    nodes = nodes.double()
    size = float((nodes.amax(0) - nodes.amin(0)).norm())
    if not size > 0:
        return
    count = max(batch_sizes(shape), default=1)
    points = _around(nodes, size).expand(count, -1, -1)

    def at(x: Tensor) -> ShapeValues:
        return _evaluated(shape, x, name)

    _refuse_mixing(shape, points, size, name)
    on_surface = _on_surface(at, points, STEP * size)
    for x, off in ((on_surface, 0.0), (on_surface, radius)):
        x = x + off * _gradient(at, x, STEP * size)[0]
        _refuse_gradient(at, x, STEP * size, name, shape)
        _refuse_curvature(at, x, STEP * size, name)


def _refuse_other_sizes(shape: Shape, name: str) -> None:
    """Refuse a depth, width or sharpest radius that is no tensor of one number, or of one for each robot."""
    for size in ("depth", "width", "sharpest"):
        try:
            value = getattr(shape, size)
        except Exception as error:
            raise InputError(f"{name}: {size} cannot be evaluated: {type(error).__name__}: {error}") from error
        if not isinstance(value, Tensor) or (value.numel() != 1 and tuple(value.shape) != (len(value), 1)):
            got = f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"{name}: {size}: expected a tensor of shape () or (B, 1) [m], got {got}")


def _evaluated(shape: Shape, x: Tensor, name: str) -> ShapeValues:
    """Return distances (B, N), normals (B, N, 3) and curvatures (B, N, 3, 3) at x (B, N, 3); refuse other results."""
    try:
        values = shape.distance_and_derivatives(x)
        shapes = [tuple(part.shape) for part in values]
    except Exception as error:
        raise InputError(
            f"{name}: distance_and_derivatives cannot be evaluated at points of shape {tuple(x.shape)}: "
            f"{type(error).__name__}: {error}; expected distances, normals and curvatures of points (B, N, 3)"
        ) from error
    expected = [tuple(x.shape[:2]), tuple(x.shape), (*x.shape, 3)]
    if shapes != expected:
        raise InputError(
            f"{name}: distance_and_derivatives: expected distance, normal and curvature of the shapes {expected} at "
            f"points {tuple(x.shape)}, got {shapes}"
        )
    return values


def _refuse_mixing(shape: Shape, points: Tensor, size: float, name: str) -> None:
    """Refuse a shape whose distances to a robot's points (B, N, 3) depend on other points, or on other robots."""
    robots = max(len(points), 2)
    apart = size * torch.arange(robots, dtype=points.dtype, device="cpu")[:, None, None]
    x = points[:1] + apart
    among = _evaluated(shape, x, name)[0][:1, ::2]
    with with_rows(shape, robots, slice(0, 1)):
        alone = _evaluated(shape, x[:1, ::2], name)[0]
    if bool((~_close(alone, among, x[:1, ::2].abs().amax(-1)) & among.isfinite()).any()):
        raise InputError(
            f"{name}: its distance to a point depends on the other points, or robots, that it is evaluated with; "
            "expected functions of each point alone"
        )


def _around(nodes: Tensor, size: float) -> Tensor:
    """Return `TRIED` pseudo-random points (1, P, 3) around the nodes, the same at each call."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(TRIED, 3, generator=generator, dtype=torch.float64, device="cpu") - 0.5
    return (nodes[torch.arange(TRIED, device="cpu") % len(nodes)] + size * noise)[None]


def _on_surface(at: Callable[[Tensor], ShapeValues], x: Tensor, step: float) -> Tensor:
    """Return the points (B, N, 3) to which Newton's method along the gradient of the distance leads from x.

    They lie on the surface where it converges.
    """
    for _ in range(PROJECTION_ROUNDS):
        gradient, _ = _gradient(at, x, step)
        way = at(x)[0][..., None] * gradient / gradient.square().sum(-1, keepdim=True)
        x = torch.where(way.isfinite().all(-1, keepdim=True), x - way, x)
    return x


def _gradient(at: Callable[[Tensor], ShapeValues], x: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Return the gradient (B, N, 3) of the distance by central differences, and which points (B, N) are at no kink."""
    ahead, behind = _beside(at, x, step, 0)
    bend = (ahead + behind - 2 * at(x)[0][..., None]).abs().amax(-1)
    return (ahead - behind) / (2 * step), bend < 0.1 * OFF * step


def _beside(at: Callable[[Tensor], ShapeValues], x: Tensor, step: float, which: int) -> tuple[Tensor, Tensor]:
    """Return distances (B, N, 3) or normals (B, N, 3, 3) a step ahead and a step behind along each axis.

    Parameters
    ----------
    which : 0 for distances, 1 for normals; the last dimension of the result is the axis of the step.
    """
    axes = step * torch.eye(3, dtype=x.dtype, device="cpu")
    sides = [torch.stack([at(x + sign * axis)[which] for axis in axes], dim=-1) for sign in (1, -1)]
    return sides[0], sides[1]


def _refuse_gradient(at: Callable[[Tensor], ShapeValues], x: Tensor, step: float, name: str, shape: Shape) -> None:
    """Refuse normals that are not the gradient of the distance or not of length one, and a deviating `distance`."""
    distance, normal, _ = at(x)
    expected, smooth = _gradient(at, x, step)
    place = _first(~_close(shape.distance(x), distance, x.abs().amax(-1)) & smooth, smooth)
    if place is not None:
        raise InputError(f"{name}: distance() is not what distance_and_derivatives() says at {_as_text(x[place])}")
    place = _first((normal - expected).norm(dim=-1) > OFF * (1 + expected.norm(dim=-1)), smooth)
    if place is not None:
        raise InputError(
            f"{name}: its normal is not the gradient of its distance: at {_as_text(x[place])} it is "
            f"{_as_text(normal[place])}, and differences of the distance say {_as_text(expected[place])}; expected a "
            "unit vector out of the shape"
        )
    place = _first((normal.norm(dim=-1) - 1).abs() > LENGTH, smooth & (distance.abs() < OFF * x.abs().amax(-1)))
    if place is not None:
        raise InputError(
            f"{name}: its normal at {_as_text(x[place])} has the length {float(normal[place].norm()):.4g}; expected 1: "
            "what changes by something else than one metre in a metre is no distance, divide it by the length of its "
            "gradient"
        )


def _refuse_curvature(at: Callable[[Tensor], ShapeValues], x: Tensor, step: float, name: str) -> None:
    """Refuse curvatures that are not the derivative of the normal."""
    _, normal, curvature = at(x)
    ahead, behind = _beside(at, x, step, 1)
    expected, bend = (ahead - behind) / (2 * step), (ahead + behind - 2 * normal[..., None]).flatten(2).norm(dim=-1)
    size = expected.flatten(2).norm(dim=-1)
    noise = 1e-14 / step
    smooth = bend / step < 0.1 * size + noise
    place = _first((curvature - expected).flatten(2).norm(dim=-1) > OFF * size + 10 * noise, smooth)
    if place is not None:
        raise InputError(
            f"{name}: its curvature is not the derivative of its normal: at {_as_text(x[place])} it is "
            f"{_as_text(curvature[place])}, and differences of the normal say {_as_text(expected[place])} [1/m]"
        )


def _close(value: Tensor, expected: Tensor, size: Tensor) -> Tensor:
    return (value - expected).abs() <= 1e-9 * (expected.abs() + size)


def _first(wrong: Tensor, counts: Tensor) -> tuple[int, int] | None:
    """Return the indices of the first point that is `wrong` among those that `counts` (B, N); None without any."""
    wrong = wrong & counts
    return tuple(wrong.nonzero()[0].tolist()) if bool(wrong.any()) else None


def _as_text(numbers: Tensor) -> str:
    """Return numbers as text for messages."""
    flat = ", ".join(f"{x:.4g}" for x in numbers.flatten().tolist())
    return f"({flat})"
