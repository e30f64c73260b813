"""Arcs and postures against second derivations, central differences and autograd, bent and straight."""

import math

import numpy as np
import pytest
import torch

from tests.constant_curvature.arms import paper_arm, point_on_arm, poses
from torchdismech.constant_curvature.arcs import bend_functions
from torchdismech.constant_curvature.contacts import Contacts, jacobian
from torchdismech.constant_curvature.posture import Posture

SHARES = torch.tensor([0.2, 0.7, 0.5, 1.0], dtype=torch.float64)
BENDS = [0.0, 1e-9, 1e-4, 0.8, 2.5]  # rad: straight, beside it, and far from it


def test_numbers_belong_to_the_arm():
    """Keep an arm's constants when tensors that gave them are changed."""
    gravity, damping = torch.tensor([0.0, 0.0, -9.0]).double(), torch.full((9,), 125.0).double()
    arm = paper_arm(gravity=gravity, damping=damping)
    gravity.zero_(), damping.zero_()
    assert arm.gravity.tolist() == [0.0, 0.0, -9.0] and bool((arm.damping == 125.0).all())


def test_bend_functions_are_their_power_series():
    """Hold all eight functions against sums in extended precision, below, at and beyond the switch."""
    q = np.array([0.0, 1e-12, 1e-6, 0.1, 0.999, 1.0, 1.001, 4.0, 9.0])
    found = bend_functions(torch.tensor(q))
    wide = q.astype(np.longdouble)

    def series(shift: int, derivative: int) -> np.ndarray:
        total = np.zeros_like(wide)
        for k in range(derivative, 40):
            factor = math.prod(range(k - derivative + 1, k + 1))
            total = total + (-1) ** k * factor * wide ** (k - derivative) / np.longdouble(math.factorial(2 * k + shift))
        return total.astype(float)

    for name, shift, derivative in [("a", 1, 0), ("b", 2, 0), ("c", 3, 0), ("da", 1, 1), ("db", 2, 1), ("dc", 3, 1)]:
        assert np.allclose(getattr(found, name).numpy(), series(shift, derivative), rtol=0, atol=3e-16), name
    for name, shift in [("dda", 1), ("ddb", 2)]:  # differences of differences beyond q = 1 lose a digit
        assert np.allclose(getattr(found, name).numpy(), series(shift, 2), rtol=0, atol=2e-15), name


def test_gradients_at_a_straight_section_are_finite():
    """Differentiate twice through both branches at u = 0."""
    q = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(bend_functions(q).a.sum(), q, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), q)[0]
    assert torch.allclose(first, torch.full_like(q, -1 / 6)) and torch.allclose(second, torch.full_like(q, 1 / 60))


def test_points_are_those_of_short_straight_pieces():
    """Follow an arm piece by piece: 1000 pieces of the midpoint rule leave 2e-8 m."""
    arm = paper_arm(base=(0.1, -0.2, 0.3), orientation=(0.3, -1.0, 0.4), disks=1)
    q = poses(1, 1.0)
    points = arm.points(q)[0].numpy()
    for section in range(3):
        for k, share in enumerate((0.5, 1.0)):
            expected = point_on_arm(arm, q[0].numpy(), section, share)
            assert np.abs(points[1 + 2 * section + k] - expected).max() < 5e-8


@pytest.mark.parametrize("bend", BENDS)
def test_twists_and_rates_are_derivatives(bend):
    """Hold velocities, spins and Jacobians of plates against autograd and central differences."""
    arm = paper_arm(orientation=(0.3, -1.0, 0.4), disks=2)
    q, velocity = poses(4, bend), poses(4, 1.0, seed=1)
    posture = arm.posture(q)
    moved, spin = (x.flatten(1, 2).permute(2, 1, 0) for x in posture.motion(arm.shape_rate(velocity).permute(2, 1, 0)))
    h = 1e-5
    ahead, behind = (arm.plates(arm.posture(q + sign * h * velocity)) for sign in (1, -1))
    turned = (ahead[1] - behind[1]) / (2 * h) @ arm.plates(posture)[1].mT
    turning = torch.stack([turned[..., 2, 1], turned[..., 0, 2], turned[..., 1, 0]], -1)
    assert (moved - (ahead[0] - behind[0]) / (2 * h)).abs().max() < 3e-10
    assert (spin - turning).abs().max() < 3e-10
    # Jacobians of points off the axis: that of a body fixed to the plate
    plate = torch.arange(arm.n_plates).expand(4, -1)
    offset = torch.tensor([0.02, -0.03, 0.01], dtype=torch.float64)
    middle = arm.plates(posture)[0]
    point = middle + offset
    blank = torch.zeros(4, arm.n_plates, dtype=q.dtype)
    contacts = Contacts(blank, point, point, point, blank, blank)
    by_chamber = jacobian(arm, posture, contacts, plate)
    expected = moved + torch.linalg.cross(spin, offset.expand_as(spin))
    assert ((by_chamber @ velocity[:, None, :, None])[..., 0] - expected).abs().max() < 1e-14
    exact = torch.autograd.functional.jacobian(lambda x: arm.points(x).sum(0), q).permute(2, 0, 1, 3)[:, 1:]
    at_middle = jacobian(arm, posture, Contacts(blank, middle, middle, middle, blank, blank), plate)
    assert (at_middle - exact).abs().max() < 1e-14


@pytest.mark.parametrize("bend", BENDS)
def test_accelerations_at_constant_rates(bend):
    """Hold what points feel against second differences, and the mass matrix against Jacobians from autograd."""
    generator = torch.Generator().manual_seed(2)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = torch.stack([0.15 + 0.01 * noise(3, 4), bend * noise(3, 4), bend * noise(3, 4)])
    rate, gravity = noise(3, 3, 4), noise(3, 1)
    turn = torch.linalg.matrix_exp(torch.tensor([[0, -0.3, 0.2], [0.3, 0, 0.5], [-0.2, -0.5, 0]], dtype=torch.float64))
    base, turn = noise(3, 1), turn[:, :, None]

    def points(shape: torch.Tensor) -> torch.Tensor:
        return Posture(shape, SHARES, base, turn, 2).points

    posture = Posture(shape, SHARES, base, turn, 2)
    felt = posture.felt_acceleration(rate, gravity, len(SHARES))
    seen = torch.einsum("abSB,bSGB->aSGB", posture.turns, felt)
    h = 1e-3  # differences of the fourth order: their error, h^4 times the sixth derivative, is about 1e-9
    steps = {k: points(shape + k * h * rate) for k in (-2, -1, 0, 1, 2)}
    second = (-steps[2] + 16 * steps[1] - 30 * steps[0] + 16 * steps[-1] - steps[-2]) / (12 * h * h)
    assert (seen - second + gravity[:, None, None]).abs().max() < 2e-8
    by_shape = torch.autograd.functional.jacobian(lambda x: points(x).sum(-1), shape)  # (3, S, G, 3, S, B)
    by_shape = by_shape.permute(0, 4, 3, 1, 2, 5).flatten(1, 2)
    masses = torch.rand(3, 2, 1, generator=generator, dtype=torch.float64)
    mass, force = posture.inertia(masses, posture.felt_acceleration(rate, gravity, 2))
    heavy = masses[..., 0]
    expected = torch.einsum("SG,iaSGB,ibSGB->Bab", heavy, by_shape[:, :, :, :2], by_shape[:, :, :, :2])
    assert (mass - expected).abs().max() < 1e-14
    expected = torch.einsum("SG,iaSGB,iSGB->Ba", heavy, by_shape[:, :, :, :2], seen[:, :, :2])
    assert (force - expected).abs().max() < 1e-13
