"""Slices of tensors that an index selects: views where the index counts up one by one, as along a rod."""

from __future__ import annotations

import numpy as np
from torch import Tensor

__all__ = ["first_of_run", "selected"]


def first_of_run(index: np.ndarray) -> int | None:
    """Return the first number of an index (K,) that counts up one by one; None for any other."""
    return int(index[0]) if len(index) and bool((np.diff(index) == 1).all()) else None


def selected(x: Tensor, dim: int, index: Tensor, first: int | None) -> Tensor:
    """Return the slices of x along a dimension that an index (K,) selects, a view where there is a `first_of_run`."""
    return x.index_select(dim, index) if first is None else x.narrow(dim, first, len(index))
