"""Compiled code for the CPU, where a C++ compiler is at hand."""

from torchdismech.native.compiled import Library, Unavailable, in_threads, library

__all__ = ["Library", "Unavailable", "in_threads", "library"]
