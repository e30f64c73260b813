"""Whether normals and curvatures of shapes are the derivatives of their distances and normals."""

import torch

from torchdismech.contact.obstacles.shape import Shape

H = 1e-6  # m, step of differences


def assert_derivatives_of_autograd(shape: Shape, points: torch.Tensor) -> None:
    """Differentiate distance and normal by the points (B, N, 3); normals are unit vectors, curvatures symmetric."""
    points = points.clone().requires_grad_()
    distance, normal, curvature = shape.distance_and_derivatives(points)
    assert distance.shape == points.shape[:2] and normal.shape == points.shape
    assert curvature.shape == (*points.shape, 3)
    (slope,) = torch.autograd.grad(distance.sum(), points, retain_graph=True)
    torch.testing.assert_close(slope, normal, rtol=0, atol=1e-13)
    torch.testing.assert_close(normal.norm(dim=-1), torch.ones_like(distance), rtol=0, atol=1e-14)
    if not normal.requires_grad:  # a plane
        assert (curvature == 0).all()
        return
    turns = [torch.autograd.grad(normal[..., k].sum(), points, retain_graph=True)[0] for k in range(3)]
    # curvatures reach 1/d ~ 1e3, each with its rounding
    torch.testing.assert_close(torch.stack(turns, -2), curvature, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(curvature, curvature.mT, rtol=1e-11, atol=1e-11)


def assert_derivatives_of_differences(shape: Shape, points: torch.Tensor) -> None:
    """Differentiate by central differences at those points (B, N, 3) whose neighbours have the same nearest feature."""
    _, normal, curvature = shape.distance_and_derivatives(points)
    curved = 1 + curvature.flatten(2).abs().amax(-1)
    smooth, slopes, turns = torch.ones_like(curved, dtype=torch.bool), [], []
    for axis in torch.eye(3, dtype=points.dtype):
        after, before = (shape.distance_and_derivatives(points + s * H * axis) for s in (1, -1))
        slopes.append((after[0] - before[0]) / (2 * H))
        turns.append((after[1] - before[1]) / (2 * H))
        for _, n, c in (after, before):  # the curvature of an edge begins with a jump
            smooth &= (c - curvature).flatten(2).abs().amax(-1) < 1e-2 * curved
            smooth &= (n - normal).abs().amax(-1) < 2 * H * curved
    assert smooth.double().mean() > 0.99
    # h^2 times the third derivative, and the rounding of points up to 100 away over h
    slack = 1e-9 * (1 + points.norm(dim=-1))
    assert ((torch.stack(slopes, -1) - normal).abs().amax(-1) < slack * curved**2)[smooth].all()
    assert ((torch.stack(turns, -1) - curvature).flatten(2).abs().amax(-1) < slack * curved**3)[smooth].all()
