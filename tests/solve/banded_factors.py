"""What factors of a band give, beside numpy."""

import torch

from tests.solve.linear_contract import assert_close, reference, right_sides
from torchdismech.solve import linear

RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-4}  # condition numbers below 1e3 times machine epsilon


def assert_solves(pattern, values, transpose=False, method="native", device="cpu", **options):
    """Compare the factor by a method on a device with numpy."""
    rhs = right_sides(pattern, values.shape[1]).to(values.dtype)
    factor = linear.make("banded", pattern, method=method).factor(values.to(device), **options)
    assert factor.ok.all()
    x = factor.solve(rhs.to(device), transpose=transpose).cpu()
    assert x.dtype == values.dtype
    assert_close(x, reference(pattern, values, rhs, transpose), RELATIVE[values.dtype])
