"""Sums over springs and blocks as sparse matrices: repeated entries, their order, and what is refused."""

import numpy as np
import pytest
import torch

from torchdismech.errors import InputError
from torchdismech.native.graphs import recorded
from torchdismech.sparse import Scatter


def test_a_sum_and_its_transpose():
    """Add up repeated entries in any order, and give the transposed map for a gradient."""
    generator = np.random.default_rng(0)
    targets, sources = generator.integers(0, 5, 60), generator.integers(0, 7, 60)
    coefficients = generator.normal(size=60)
    dense = np.zeros((5, 7))
    np.add.at(dense, (targets, sources), coefficients)
    x = torch.from_numpy(generator.normal(size=(7, 3))).requires_grad_()
    y = Scatter((5, 7), targets, sources, coefficients, torch.float64)(x)
    by_y = torch.from_numpy(generator.normal(size=(5, 3)))
    (by_x,) = torch.autograd.grad(y, x, by_y)
    # sums of some ten terms, in another order
    torch.testing.assert_close(y.detach(), torch.from_numpy(dense) @ x.detach(), rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(by_x, torch.from_numpy(dense.T) @ by_y, rtol=1e-13, atol=1e-14)


def test_second_derivatives_on_a_tape():
    """Follow the gradient of a sum, too, where it is recorded: its derivative was zero there, without a word."""
    scatter = Scatter((3, 4), [0, 1, 2, 2], [0, 1, 2, 3], [1.0, 2, 3, 4], torch.float64)
    numbers = torch.arange(8.0, dtype=torch.float64).reshape(4, 2)

    def second():
        with torch.enable_grad():
            x = (numbers + 0).requires_grad_()
            (by_x,) = torch.autograd.grad((scatter(x) ** 3).sum() + (x**2).sum(), x, create_graph=True)
            (twice,) = torch.autograd.grad(by_x.sum(), x)
        return twice

    torch.testing.assert_close(recorded(second, torch.device("cpu"), None).replay(), second())


def test_entries_out_of_range_are_named():
    """Refuse targets and sources that there are not."""
    with pytest.raises(InputError, match=r"targets have to be from 0 to 1, got 0 to 2"):
        Scatter((2, 3), [0, 2], [0, 1], [1.0, 1.0], torch.float64)
    with pytest.raises(InputError, match=r"sources have to be from 0 to 2, got -1 to 1"):
        Scatter((2, 3), [0, 1], [-1, 1], [1.0, 1.0], torch.float64)


def test_no_entries():
    """Map everything to zero."""
    assert Scatter((2, 3), [], [], [], torch.float64)(torch.ones(3, 4, dtype=torch.float64)).equal(
        torch.zeros(2, 4, dtype=torch.float64)
    )
