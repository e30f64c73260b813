"""Functions captured in CUDA graphs."""

import pytest
import torch

from tests.solve.topologies import chain, random_values
from torchdismech.errors import InputError
from torchdismech.native.graphs import captured
from torchdismech.solve import linear


def total(*tensors):
    """Return the sum of tensors."""
    return sum(tensors)


class TestRefusals:
    """What no graph can hold, found out on any machine."""

    @pytest.mark.parametrize(
        ("arguments", "came"),
        [((), "none"), ((torch.zeros(2),), "cpu"), ((1.5,), "float"), ((torch.zeros(2), 1), "cpu, int")],
    )
    def test_what_is_not_on_a_device(self, arguments, came):
        """Name the function and what came."""
        with pytest.raises(InputError, match=f"total: a CUDA graph takes tensors of one CUDA device, got {came}; move"):
            captured(total)(*arguments)


@pytest.mark.gpu
class TestOnGPU:
    """What is replayed."""

    def test_new_numbers(self):
        """Give for other arguments what the function gives, without running its code again."""
        runs = []

        def function(x, y):
            runs.append(1)
            return x @ y, x - 1

        replayed, rng = captured(function), torch.Generator("cuda").manual_seed(0)
        for _ in range(3):
            x, y = (torch.randn(4, 4, device="cuda", dtype=torch.float64, generator=rng) for _ in range(2))
            product, less = replayed(x, y)
            torch.testing.assert_close(product, x @ y)
            assert torch.equal(less, x - 1)
        assert len(runs) == 3  # two to warm up, one recorded

    def test_other_kinds_of_arguments(self):
        """Record anew for another shape or dtype, and still know the first."""
        replayed = captured(total)
        for shape, dtype in (
            ((3,), torch.float64),
            ((5,), torch.float64),
            ((3,), torch.float32),
            ((3,), torch.float64),
        ):
            (found,) = replayed(torch.ones(shape, dtype=dtype, device="cuda"), torch.ones((), device="cuda"))
            assert (found.shape, found.dtype) == (shape, dtype)
            assert (found == 2).all()

    def test_outputs_are_overwritten(self):
        """Return the same memory each time, which may be the next call's argument."""
        replayed = captured(lambda x: 2 * x)
        (once,) = replayed(torch.ones(3, device="cuda"))
        (twice,) = replayed(once)
        assert once.data_ptr() == twice.data_ptr()
        assert (twice == 4).all()

    def test_arguments_that_come_back(self):
        """Swap two tensors, again and again."""
        replayed = captured(lambda x, y: (y, x))
        pair = replayed(torch.zeros(3, device="cuda"), torch.ones(3, device="cuda"))
        for _ in range(2):
            pair = replayed(*pair)
        assert [int(x[0]) for x in pair] == [1, 0]

    @pytest.mark.parametrize("code", [lambda x: x * x.sum().item(), lambda x: x[x > 0]])
    def test_code_that_waits_is_refused(self, code):
        """Say what the function must not do."""
        with pytest.raises(InputError, match="cannot be captured in a CUDA graph .*; it must not read numbers"):
            captured(code)(torch.ones(3, device="cuda"))

    @pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
    @pytest.mark.parametrize(
        "options", [{"name": "banded"}, {"name": "banded", "method": "blocks"}, {"name": "multifrontal"}]
    )
    def test_solvers(self, options, kind):
        """Factor and solve in a graph, for other matrices than the recorded ones."""
        pattern = chain(31, symmetric=kind == "definite")
        solver = linear.make(pattern=pattern, **options)

        def solution(values, rows, rhs):
            factor = solver.factor(values, rows)
            return factor.solve(rhs), factor.ok

        replayed = captured(solution)
        for seed in range(3):
            values = random_values(pattern, kind, 70, seed).cuda()
            rhs = torch.full((70, pattern.n), 1.0 + seed, dtype=torch.float64, device="cuda")
            rows = torch.arange(70, device="cuda") % (seed + 2) == 0
            x, ok = replayed(values, rows, rhs)
            expected, expected_ok = solution(values, rows, rhs)
            assert torch.equal(ok, expected_ok)
            torch.testing.assert_close(x, expected, rtol=1e-12, atol=0)
