"""Rounds as recordings take them, beside the search without recordings that they stand for."""

import numpy as np
import pytest
import torch

from tests.solve.test_newton import Equations
from torchdismech.solve import linear
from torchdismech.solve.newton import newton, resumed
from torchdismech.solve.progress import begun
from torchdismech.solve.rounds import accepted_or_shortened, tried_steps
from torchdismech.solve.search import RUNNING, NewtonOptions, Root
from torchdismech.sparse import Pattern

SIZE, REACH = 12, 2


class Waves(Equations):
    """A x + c sin(3 x) = b, with bands A that may be indefinite: roots that steps overshoot, and rows without any."""

    def __init__(self, seed, dtype):
        generator, choices = torch.Generator().manual_seed(seed), np.random.default_rng(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        rows = int(choices.choice([1, 3, 9]))
        near = (torch.arange(SIZE)[:, None] - torch.arange(SIZE)).abs() <= REACH
        band = normal(rows, SIZE, SIZE)
        band = (band + band.mT) * near + choices.choice([0.0, 1.0, 3.0, 6.0]) * torch.eye(SIZE, dtype=dtype)
        band, load = band * 10 ** choices.uniform(-1, 3), normal(rows, SIZE)
        waves = normal(rows, SIZE) * choices.choice([0.0, 0.1, 1.0, 10.0])
        pattern = Pattern.union(SIZE, *np.nonzero(np.tril(near.numpy())), symmetric=True)

        def residual(x):
            return (band @ x[..., None])[..., 0] - load + waves * torch.sin(3 * x)

        def matrix(x):
            whole = band + torch.diag_embed(3 * waves * torch.cos(3 * x))
            return list(whole[:, pattern.rows, pattern.cols].unbind(1))

        super().__init__(residual, matrix)
        self.first = normal(rows, SIZE) * choices.choice([1e-3, 0.1, 1.0, 10.0])
        self.options = NewtonOptions(
            solver=linear.make("banded", pattern),
            weight=torch.ones(SIZE, dtype=dtype),
            tolerance=torch.full((rows,), float(choices.choice([1e-30, 1e-12, 1e-7])), dtype=dtype),
            max_iterations=int(choices.choice([1, 2, 3, 5, 50])),
            line_search=bool(choices.random() < 0.8),
            shortest=float(choices.choice([2.0**-12, 1.0])),
            noise_at_each_iterate=bool(choices.random() < 0.3),
        )

    def solver(self):
        """Return the linear solver."""
        return self.options.solver


def by_rounds(system):
    """Return where rounds end that are accepted or shortened by rows, and how many of them leave parts to try.

    Where a matrix needs row exchanges the search without recordings goes on.
    """
    at = begun(system, system.first, system.options, None)
    fraction, shortened, more, partly = torch.ones_like(at.norm), 0, True, False
    while more:
        steps = tried_steps(system, at, system.options, fraction if partly else None)
        bad, more, *_ = steps.flags.tolist()
        if partly or bad:
            after, following, refused = accepted_or_shortened(steps, at, system.options)
            if refused.any():
                return resumed(system, at, system.options, fraction), shortened
            at, fraction = after, following
            more, partly = bool((at.status == RUNNING).any()), bool((fraction < 1).any())
            shortened += partly
        else:
            at = steps.after
    return Root(at.x, at.status, at.iterations, at.norm, at.noise), shortened


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounds_are_those_of_the_search(dtype):
    """Come to the same iterates, status and iterations to the bit, with steps that are shortened and given up."""
    shortened = 0
    for seed in range(200):
        system = Waves(seed, dtype)
        expected = newton(system, system.first, system.options)
        found, count = by_rounds(system)
        shortened += count
        assert torch.equal(found.status, expected.status), seed
        assert torch.equal(found.iterations, expected.iterations), seed
        assert torch.equal(found.x, expected.x), seed
        assert torch.equal(found.residual, expected.residual), seed
    assert shortened > 40
