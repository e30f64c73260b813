"""Elementwise functions of tensors, recorded from their Python and compiled as one loop each."""

from torchdismech.fused.function import Fused, fits, is_own, warn_if_broken
from torchdismech.fused.program import Program, recorded, values_of, watched
from torchdismech.fused.symbols import Leaf, Unfusable

__all__ = [
    "Fused",
    "Leaf",
    "Program",
    "Unfusable",
    "fits",
    "is_own",
    "recorded",
    "values_of",
    "warn_if_broken",
    "watched",
]
