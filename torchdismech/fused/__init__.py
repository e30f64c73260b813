"""Elementwise functions of tensors, recorded from their Python and compiled, each as one loop or kernel.

The way of a formula: it is called with symbols in place of tensors (`symbols.py`), which write a record of operations
(`record.py`). From the record comes the text of a C++ loop (`loop_source.py`) or of a Triton kernel
(`kernel_source.py`), which is compiled once in a process (`making.py`) and called as a `Program` (`loop.py`,
`kernel.py`). A program finds two lists of values for all springs and robots. Autograd can differentiate the first
(`differentiation.py`), by the program of the derivatives (`pullback.py`, `derivatives.py`).

`Fused` (`function.py`) is what most callers use: a function that is a program where it can be, and torch elsewhere.
Elastic terms go to programs by themselves (`elastic/fused.py`).
"""

from torchdismech.fused.differentiation import differentiated, is_differentiated, values_of
from torchdismech.fused.function import Fused, compiled_code_takes, is_own, programs_take, warn_if_broken
from torchdismech.fused.loop import Loop
from torchdismech.fused.making import program_of
from torchdismech.fused.program import Program, ProgramCall
from torchdismech.fused.symbols import Leaf, Unfusable
from torchdismech.fused.torch_operator import watched

__all__ = [
    "Fused",
    "Leaf",
    "Loop",
    "Program",
    "ProgramCall",
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
