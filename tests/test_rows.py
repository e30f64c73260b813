"""What is asked of the rows of a batch."""

import pytest
import torch

from torchdismech.rows import finite_columns, finite_rows, totals, weighted_norms

# A sum of m numbers by lanes and one after the other differ by m roundings at most, a norm by half of that.
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 403])
def test_norms_are_those_of_torch(dtype, length):
    """Give the norms of weighted rows, of a row alone to the bit as of many, in whatever layout they come."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(5, length, dtype=dtype, generator=generator)
    weight = torch.rand(length, dtype=dtype, generator=generator) + 0.5
    found, expected = weighted_norms(x, weight), torch.linalg.vector_norm(x * weight, dim=1)
    assert found.dtype == dtype and ((found - expected).abs() <= ROUNDING[dtype] * (1 + expected)).all()
    for row in range(5):
        assert torch.equal(weighted_norms(x[row : row + 1], weight), found[row : row + 1])
    assert torch.equal(weighted_norms(x.t().contiguous().t(), weight), found)


def test_norms_have_gradients():
    """Let autograd through, which compiled code would not."""
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(weighted_norms, (x, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)))


def test_a_norm_of_what_is_not_finite_is_not():
    """Keep NaN and infinity in the norm of their row, and out of the others."""
    x = torch.ones(4, 40, dtype=torch.float64)
    x[1, 3], x[2, 39], x[3, 35] = torch.nan, torch.inf, -torch.inf
    found = weighted_norms(x, torch.ones(40, dtype=torch.float64))
    assert found.isfinite().tolist() == [True, False, False, False] and found[1].isnan()


@pytest.mark.parametrize("layout", ["plain", "turned", "mixed"])
def test_rows_are_finite_where_all_numbers_are(layout):
    """Find the rows with a number that is not finite, wherever it stands and however large finite ones are."""
    bad = [torch.nan, torch.inf, -torch.inf]
    tensors = [torch.full(shape, 1e308, dtype=torch.float64) for shape in ((8,), (8, 33), (8, 2, 3), (8, 0))]
    tensors[0][1], tensors[1][2, 0], tensors[1][3, 32], tensors[2][4, 1, 2] = *bad, bad[0]
    if layout == "turned":
        tensors[1] = tensors[1].t().contiguous().t()
    if layout == "mixed":  # dtypes that compiled code does not take together: large numbers would overflow there
        tensors = [tensor.float().clamp(-1, 1) if k else tensor / 1e308 for k, tensor in enumerate(tensors)]
        tensors[1][3, 32] = torch.inf
        tensors[1][2, 0] = torch.inf
    assert finite_rows(tensors).tolist() == [True, False, False, False, False, True, True, True]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("columns", [1, 5, 32, 70])
def test_columns_are_finite_where_all_numbers_are(columns, turned):
    """Find the columns with a number that is not finite, wherever they stand and however large finite ones are."""
    x = torch.full((9, columns), 1e308, dtype=torch.float64)
    for column, number in ((0, torch.nan), (31, torch.inf), (33, -torch.inf), (69, torch.nan)):
        x[column % 9, column : column + 1] = number
    x = x.t().contiguous().t() if turned else x
    assert finite_columns(x).tolist() == x.isfinite().all(0).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [0, 1, 3, 33, 403])
def test_totals_are_those_of_torch(dtype, length):
    """Sum the numbers of rows, also of those whose numbers are not side by side, and let autograd through."""
    x = torch.rand(2 * length, 5, dtype=dtype, generator=torch.Generator().manual_seed(length))[::2].t()
    found, expected = totals(x), x.sum(1)
    assert found.shape == (5,) and found.dtype == dtype
    assert ((found - expected).abs() <= ROUNDING[dtype] * (1 + expected)).all()
    x.requires_grad_()
    assert torch.equal(torch.autograd.grad(totals(x).sum(), x)[0], torch.ones_like(x))
