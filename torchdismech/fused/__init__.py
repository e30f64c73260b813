"""Elementwise functions of tensors, recorded from their Python and compiled as one loop each."""

from torchdismech.fused.function import Fused, compiled_code_takes, is_own, programs_take, warn_if_broken
from torchdismech.fused.loop import Loop
from torchdismech.fused.making import program_of
from torchdismech.fused.program import Program, watched
from torchdismech.fused.pullback import differentiated, is_differentiated, values_of
from torchdismech.fused.symbols import Leaf, Unfusable

__all__ = [
    "Fused",
    "Leaf",
    "Loop",
    "Program",
    "Unfusable",
    "differentiated",
    "compiled_code_takes",
    "is_differentiated",
    "is_own",
    "programs_take",
    "program_of",
    "values_of",
    "warn_if_broken",
    "watched",
]
