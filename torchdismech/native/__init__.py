"""Code of our own where torch has no fast operation: compiled for a CPU; kernels and recorded calls for a GPU."""

from torchdismech.native.compiled import Library, Unavailable, compiler, function_of, in_threads, library, made
from torchdismech.native.taping import taped, taping

__all__ = ["Library", "Unavailable", "compiler", "function_of", "in_threads", "library", "made", "taped", "taping"]
