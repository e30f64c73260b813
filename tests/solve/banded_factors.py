"""What the compiled factor of a band gives, beside numpy."""

import numpy as np
import torch

from torchdismech.solve import linear

RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-4}  # condition numbers below 1e3 times machine epsilon


def assert_solves(pattern, values, transpose=False, **options):
    """Compare the compiled factor with numpy."""
    rhs = torch.from_numpy(np.random.default_rng(1).normal(size=(values.shape[1], pattern.n))).to(values.dtype)
    factor = linear.make("banded", pattern, method="native").factor(values, **options)
    assert factor.ok.all()
    x = factor.solve(rhs, transpose=transpose).double()
    dense = pattern.to_dense(values.double())
    expected = torch.linalg.solve(dense.mT if transpose else dense, rhs.double())
    error = ((x - expected).abs().amax(1) / expected.abs().amax(1)).max()
    assert error <= RELATIVE[values.dtype]
