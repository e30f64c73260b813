"""Iterative solvers: how many iterations they take, what they report, products of matrix and vector."""

import importlib.util

import numpy as np
import pytest
import torch

from tests.solve.linear_contract import BATCH, assert_close, reference, right_sides
from tests.solve.topologies import (
    chain,
    cliques,
    random_values,
    star,
)
from torchdismech.errors import InputError
from torchdismech.solve import linear
from torchdismech.solve.linear.product import TorchProduct, make_product


def stiff_chain_values(pattern, batch, contrast=1e6):
    """Return values of a rod-like matrix: mass plus springs along the chain, `contrast` times stiffer.

    Its condition number is about the contrast.
    """
    rng = np.random.default_rng(5)
    dense = np.zeros((batch, pattern.n, pattern.n))
    dense[:, range(pattern.n), range(pattern.n)] = rng.uniform(1, 2, size=(batch, pattern.n))
    place = {int(u): k for k, u in enumerate(pattern.order_hint)}
    walk = sorted(place, key=place.__getitem__)
    for a, b in zip(walk[:-1], walk[1:], strict=True):
        k = contrast * rng.uniform(0.5, 1, size=batch)
        for i, j, sign in ((a, a, 1), (b, b, 1), (a, b, -1), (b, a, -1)):
            dense[:, i, j] += sign * k
    return torch.from_numpy(dense[:, pattern.rows, pattern.cols].T.copy())


@pytest.mark.parametrize("name", ["pcg", "bicgstab"])
class TestIteration:
    """Convergence per row."""

    def test_a_nan_is_known_before_the_solve(self, name):
        """Flag values that are not finite at once, though the blocks of the preconditioner are sound."""
        pattern = chain()
        solver = linear.make(name, pattern)
        values = random_values(pattern, "definite", 3)
        outside = np.setdiff1d(np.arange(pattern.nnz), solver._inside.array)
        values[outside[0], 1] = torch.nan
        assert torch.equal(solver.factor(values).ok, torch.tensor([True, False, True]))

    def test_true_residual_decides_and_is_worked_on(self, name):
        """Go on from the true residual where rounding has driven the recurred one away from it."""
        pattern = chain(51)
        values, rhs = stiff_chain_values(pattern, 4, contrast=1e8), right_sides(pattern, 4)
        factor = linear.make(name, pattern, tolerance=3e-9, block_size=40).factor(values)
        factor.solve(rhs)
        assert factor.ok.all()

    def test_unreachable_tolerance_is_not_ok(self, name):
        """Judge by the true residual: a tolerance below rounding is never met."""
        pattern = chain()
        factor = linear.make(name, pattern, tolerance=1e-30).factor(stiff_chain_values(pattern, 3))
        x = factor.solve(right_sides(pattern, 3))
        assert not factor.ok.any()
        assert torch.equal(x, torch.zeros_like(x))

    def test_too_few_iterations_are_not_ok(self, name):
        """Stop at max_iterations, and say so for the rows concerned only."""
        pattern = chain(51)
        values = stiff_chain_values(pattern, 3)
        values[:, 1] = 0
        values[pattern.diagonal, 1] = 2.0  # solved by the block Jacobi preconditioner at once
        factor = linear.make(name, pattern, max_iterations=3).factor(values)
        factor.solve(right_sides(pattern, 3))
        assert torch.equal(factor.ok, torch.tensor([False, True, False]))
        assert factor.iterations.tolist() == [3, 1, 3]

    def test_zero_right_side_costs_nothing(self, name):
        """Return zero without iterating."""
        pattern = chain()
        factor = linear.make(name, pattern).factor(random_values(pattern, "definite", 3))
        x = factor.solve(torch.zeros(3, pattern.n, dtype=torch.float64))
        assert factor.ok.all()
        assert not x.any()
        assert not factor.iterations.any()

    def test_tiny_right_side(self, name):
        """Solve to the same relative accuracy whatever the size of the right-hand side."""
        pattern = chain()
        values, rhs = random_values(pattern, "definite", 3), 1e-200 * right_sides(pattern, 3)
        factor = linear.make(name, pattern).factor(values)
        x = factor.solve(rhs)
        assert factor.ok.all()
        assert_close(x, reference(pattern, values, rhs), 1e-6)  # tolerance 1e-8 times a condition number below 100

    @pytest.mark.parametrize(
        "options", [{"tolerance": 0.0}, {"max_iterations": 0}, {"block_size": 0}, {"product": "abacus"}]
    )
    def test_bad_options_are_refused(self, name, options):
        """Refuse at construction."""
        with pytest.raises(InputError):
            linear.make(name, chain(), **options)


def coupled_blocks(pattern):
    """Return the values (nnz, 3) of a matrix with definite blocks that is indefinite, of -1, and of 1."""
    dense = torch.eye(pattern.n, dtype=torch.float64).repeat(3, 1, 1) * torch.tensor([1.0, -1.0, 1.0])[:, None, None]
    dense[0, 0, -1] = dense[0, -1, 0] = 2.0
    return dense[:, pattern.rows, pattern.cols].t()


class TestIndefinite:
    """Definite blocks of a preconditioner do not make a matrix definite."""

    pattern = cliques([range(24)], 24)

    def test_rows_that_a_joined_factor_fails_to_solve_are_not_ok(self):
        """Say so after the solve: their zeros were taken for solutions, as of gradients."""
        values = coupled_blocks(self.pattern)
        solver = linear.make("bicgstab", self.pattern, max_iterations=1)
        factor, definite = linear.factored(solver, values, torch.ones(3, dtype=torch.bool))
        assert factor.ok.all() and isinstance(factor, linear.JoinedFactor)
        x = factor.solve(right_sides(self.pattern, 3))
        assert torch.equal(factor.ok, x.any(1)) and not factor.ok[0]
        assert not definite.any()

    def test_shifts_grow_until_the_whole_matrix_is_definite(self):
        """Solve with the factor: with a shift that makes the blocks alone definite, rows were lost in the solve."""
        values, rows = coupled_blocks(self.pattern), torch.ones(3, dtype=torch.bool)
        weight = torch.ones(24, dtype=torch.float64)
        factor = linear.shifted_factor(linear.make("pcg", self.pattern), values, weight, rows)
        factor.solve(right_sides(self.pattern, 3))
        assert factor.ok.all()


class TestProduct:
    """Sparse matrix times vector, by both backends."""

    @pytest.mark.parametrize("name", ["torch", "torch-sparse"])
    @pytest.mark.parametrize("transpose", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_agrees_with_dense(self, name, transpose, dtype):
        """Multiply with every matrix of a batch, transposed or not."""
        if name == "torch-sparse" and importlib.util.find_spec("torch_sparse") is None:
            pytest.skip("the optional package torch-sparse is not installed")
        pattern = star(symmetric=False)
        values = random_values(pattern, "unsymmetric", BATCH).to(dtype)
        x = right_sides(pattern).t().contiguous().to(dtype)
        dense = pattern.to_dense(values)
        expected = torch.einsum("bji,jb->ib" if transpose else "bij,jb->ib", dense, x)
        product = make_product(name, pattern).bind(values, transpose)
        torch.testing.assert_close(product(x), expected)

    @pytest.mark.skipif(importlib.util.find_spec("torch_sparse") is not None, reason="torch-sparse is installed")
    def test_missing_package_is_named(self):
        """Say what to install when torch-sparse is asked for and missing."""
        with pytest.raises(ImportError, match=r"pip install torchdismech\[sparse\]"):
            linear.make("pcg", chain(), product="torch-sparse")

    def test_solver_uses_the_backend_asked_for(self):
        """Multiply by the named backend."""
        assert isinstance(linear.make("pcg", chain(), product="torch").product, TorchProduct)
