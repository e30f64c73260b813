"""Sums over springs and blocks as sparse matrices, by compiled code and by torch."""

import numpy as np
import pytest
import torch

from torchdismech.errors import InputError
from torchdismech.native.graphs import recorded
from torchdismech.sparse import Scatter, scatter
from torchdismech.sparse.scatter import WIDE


class TestScatter:
    """y = A x for a constant sparse A."""

    def make(self, dtype=torch.float64):
        """Two contributions to target 0, one repeated (target, source) pair, target 2 empty."""
        return Scatter((3, 4), [0, 0, 1, 1], [0, 3, 2, 2], [1.0, -2.0, 0.5, 0.25], dtype)

    def test_sums_scaled_contributions(self):
        """Add up coefficients times sources; repeated pairs add, an untouched target is zero."""
        x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0], [8.0, 80.0]], dtype=torch.float64)
        expected = torch.tensor([[-15.0, -150.0], [3.0, 30.0], [0.0, 0.0]], dtype=torch.float64)
        assert torch.equal(self.make()(x), expected)

    def test_gradient_is_the_transposed_map(self):
        """Agree with finite differences in first and second derivatives."""
        x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
        scatter = self.make()
        assert torch.autograd.gradcheck(lambda x: scatter(x).sin(), x)
        assert torch.autograd.gradgradcheck(lambda x: scatter(x).sin(), x)

    @pytest.mark.parametrize("robots", [2, WIDE])
    @pytest.mark.parametrize(("rows", "dtype"), [(4, torch.float32), (3, torch.float64), (5, torch.float64)])
    def test_refuses_what_does_not_fit(self, robots, rows, dtype):
        """Name what was expected and what came, for few robots and for many."""
        with pytest.raises(InputError, match=f"needs 4 rows of torch.float64 on cpu, got {rows} of {dtype}"):
            self.make()(torch.ones(rows, robots, dtype=dtype))

    @pytest.mark.parametrize("gain", [3.0, torch.tensor(3.0), torch.tensor([[3.0], [0.5], [-1.0]])])
    def test_subtracts_a_gain_times_the_sums(self, gain, monkeypatch):
        """Leave what has no sources as it is; small whole numbers are exact, by compiled code and by torch."""
        x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0], [8.0, 80.0]], dtype=torch.float64)
        before = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
        expected = before - gain * self.make()(x)
        for target in (before.clone(), before.t().contiguous().t()):
            self.make().subtract(target, gain, x)
            assert torch.equal(target, expected)
        monkeypatch.setattr(scatter, "function_of", lambda name, dtype: None)
        self.make().subtract(before, gain, x)
        assert torch.equal(before, expected)
        with pytest.raises(InputError, match="needs 4 rows"):
            self.make().subtract(before, gain, x[:3])

    def test_moves_to_another_precision(self):
        """Use the new precision after `.to`, also when the old one was used before."""
        scatter = self.make()
        scatter(torch.ones(4, 1, dtype=torch.float64))
        assert scatter.to(torch.float32)(torch.ones(4, 1)).dtype == torch.float32


@pytest.mark.parametrize("way", ["compiled", "torch"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("robots", [1, WIDE - 1, WIDE, WIDE + 1, 3 * WIDE + 5])
class TestScatterOfManyRobots:
    """The ways in which a product is computed, by the number of robots and by what the machine has."""

    def test_sums(self, way, dtype, robots, monkeypatch):
        """Agree with the dense product, in one thread and in several, and in the gradient."""
        if way == "torch":
            monkeypatch.setattr(scatter, "function_of", lambda name, dtype: None)
        elif scatter.function_of("weighted_sums", dtype) is None:
            pytest.skip("no compiled code on this machine")
        rng = np.random.default_rng(robots)
        targets, sources = rng.integers(0, 40, 200), rng.integers(0, 50, 200)
        coefficients = rng.normal(size=200)
        sums = Scatter((41, 50), targets, sources, coefficients, dtype)  # the last target is empty
        dense = np.zeros((41, 50))
        np.add.at(dense, (targets, sources), coefficients)
        x = torch.from_numpy(rng.normal(size=(50, robots))).to(dtype).requires_grad_()
        # sums of ten products or so of numbers about 1
        close = {"rtol": 0, "atol": 100 * torch.finfo(dtype).eps}
        monkeypatch.setattr(scatter, "NUMBERS_A_THREAD", 100)
        threads = torch.get_num_threads()
        for count in (1, 3):
            torch.set_num_threads(count)
            try:
                y = sums(x)
            finally:
                torch.set_num_threads(threads)
            np.testing.assert_allclose(y.detach().numpy(), dense @ x.detach().numpy(), **close)
        target = torch.zeros(41, robots, dtype=dtype)
        sums.subtract(target, 2.0, x.detach())
        np.testing.assert_allclose(target.numpy(), -2 * y.detach().numpy(), **close)
        weights = torch.from_numpy(rng.normal(size=(41, robots))).to(dtype)
        (gradient,) = torch.autograd.grad((y * weights).sum(), x)
        np.testing.assert_allclose(gradient.numpy(), dense.T @ weights.numpy(), **close)


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
