"""Rotations as quaternions: their powers, the one that turns some vectors to others, and those of rotation vectors."""

import math

import pytest
import torch
from torch.autograd.functional import jacobian

from torchdismech.geometry.frames import cross_matrix
from torchdismech.geometry.quaternions import (
    best_rotation,
    conjugate,
    power,
    product,
    rotation_matrix,
    rotation_of_vector,
)

ROUNDING = {"rtol": 0, "atol": 1e-14}  # of some tens of operations on numbers about 1


def turns(count: int) -> torch.Tensor:
    """Return some rotations (count, 4)."""
    drawn = torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    return drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)


def test_powers_turn_by_parts_of_the_angle():
    """Take a rotation in three parts, back, not at all, and by one of less than half a turn."""
    q, third = turns(20), torch.full((20, 1), 1 / 3, dtype=torch.float64)
    part = power(q, third)
    whole = rotation_matrix(product(part, product(part, part)))
    torch.testing.assert_close(whole, rotation_matrix(q), **ROUNDING)
    torch.testing.assert_close(rotation_matrix(power(q, -3 * third)), rotation_matrix(conjugate(q)), **ROUNDING)
    assert bool((power(q, 0 * third)[:, 0] == 1).all()) and bool((part[:, 0] >= math.cos(math.pi / 6) - 1e-15).all())
    still = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    assert torch.equal(power(still, third[0]), still)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_best_rotation_is_that_of_turned_vectors(dtype):
    """Find rotations by vectors before and after; of vectors on a line that which is near; without any, the given."""
    q = turns(20).to(dtype)
    a = torch.randn(20, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
    b = a @ rotation_matrix(q).mT
    near = turns(21)[:20].to(dtype)
    # what being near counts as, and rounding over it; over how much better a rotation is than others
    weight, tolerance, slack = (1e-9, 1e-8, 1e-6) if dtype == torch.float64 else (1e-5, 1e-4, 3e-2)
    found = best_rotation(b.mT @ a, near, weight)
    torch.testing.assert_close(rotation_matrix(found), rotation_matrix(q), rtol=0, atol=tolerance)
    line = a[:, :1]
    found = best_rotation((line @ rotation_matrix(q).mT).mT @ line, q, weight)
    torch.testing.assert_close(rotation_matrix(found), rotation_matrix(q), rtol=0, atol=slack)
    none = best_rotation(torch.zeros(20, 3, 3, dtype=dtype), near, weight)
    torch.testing.assert_close(rotation_matrix(none), rotation_matrix(near), rtol=0, atol=tolerance)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 9e-4, 1.1e-3, 0.3, math.pi, 10.0])
def test_matrices_of_rotation_vectors_are_exponentials(angle):
    """Match the matrix exponential, with first and second derivatives, on both sides of where series end."""
    axis = torch.tensor([0.48, -0.6, 0.64], dtype=torch.float64)

    def exponential(vector):
        return torch.linalg.matrix_exp(cross_matrix(vector))

    for derivative in (lambda f, v: f(v), jacobian, hessians):
        expected, found = (derivative(f, angle * axis) for f in (exponential, rotation_of_vector))
        # the exponential itself rounds in proportion to the angle; second derivatives cancel as 1 / angle
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 if derivative is not hessians else 1e-9)


def hessians(function, vector):
    """Return the second derivatives of a function of a vector."""
    return jacobian(lambda v: jacobian(function, v, create_graph=True), vector)
