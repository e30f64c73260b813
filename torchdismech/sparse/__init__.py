"""The sparsity pattern that all robots of a batch share, and sums of stencil contributions into it."""

from torchdismech.sparse.pattern import Pattern, sorted_distinct
from torchdismech.sparse.scatter import Scatter

__all__ = ["Pattern", "Scatter", "sorted_distinct"]
