"""Fitting models to recordings of real robots: data, losses and the loop."""

import torchdismech  # noqa: F401  before torch: it says how torch's threads wait
