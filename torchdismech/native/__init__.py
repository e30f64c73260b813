"""Code of our own where torch has no fast operation: compiled for a CPU; kernels and recorded calls for a GPU."""

from torchdismech.native.availability import Unavailable
from torchdismech.native.build import compiler
from torchdismech.native.calls import unless_all
from torchdismech.native.compiled import Library, address, compiled_source, function_of, in_threads, library
from torchdismech.native.pool import Pool
from torchdismech.native.taping import taped, taping

__all__ = [
    "Library",
    "Pool",
    "Unavailable",
    "address",
    "compiled_source",
    "compiler",
    "function_of",
    "in_threads",
    "library",
    "taped",
    "taping",
    "unless_all",
]
