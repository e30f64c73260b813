"""Elementwise functions of tensors that are traced from Python and compiled, each as one loop or one kernel.

A function is called with symbols in place of tensors (`symbols.py`), which write a record of its operations
(`record.py`). From the record the source of a C++ loop (`loop_source.py`) or of a Triton kernel (`kernel_source.py`) is
generated, which is compiled once in a process (`making.py`) and called as a `Program` (`loop.py`, `kernel.py`). A
program computes two lists of values for all springs and robots; a *spring* is whatever the function is evaluated for,
such as a stencil, and its tensors broadcast to (S, B) for S springs and B robots. Autograd can differentiate the first
list (`differentiation.py`), by the program of the derivatives (`pullback.py`, `derivatives.py`).

Most callers use `Fused` (`function.py`): a function that runs as a program where possible, and in torch elsewhere.
Elastic terms make their programs themselves (`elastic/fused.py`).
"""

from torchdismech.fused.differentiation import differentiated, is_differentiated, values_of
from torchdismech.fused.function import Fused, compiled_code_accepts, is_own, program_accepts, warn_if_broken
from torchdismech.fused.loop import Loop
from torchdismech.fused.making import program_of
from torchdismech.fused.program import Program, ProgramCall
from torchdismech.fused.symbols import Leaf, Unfusable
from torchdismech.fused.torch_operator import traced

__all__ = [
    "Fused",
    "Leaf",
    "Loop",
    "Program",
    "ProgramCall",
    "Unfusable",
    "differentiated",
    "compiled_code_accepts",
    "is_differentiated",
    "is_own",
    "program_accepts",
    "program_of",
    "values_of",
    "warn_if_broken",
    "traced",
]
