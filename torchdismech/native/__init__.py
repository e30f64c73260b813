"""Native code for what torch has no fast operation for, and functions that are recorded once and replayed.

- *Compiled code*: the C++ files, built at their first use (`build.py`, `cache.py`) and called through ctypes
  (`compiled.py`, `signatures.py`); kernels for a GPU (`gpu.py`, `triton_kernels.py`).
- *Recordings* (`graphs.py`): a function recorded as a CUDA graph on a GPU, or as a tape on a CPU. To read about tapes,
  begin with `tape.py`. Many recorded steps are taken by a loop in compiled code (`step_loop.py`). Recordings know their
  inputs by address, so inputs are copied to static buffers (`buffers.py`).
"""

from torchdismech.native.availability import Unavailable
from torchdismech.native.build import compiler
from torchdismech.native.calls import unless_all
from torchdismech.native.compiled import SLOWER, Library, address, compiled_source, function_of, in_threads, library
from torchdismech.native.pool import Pool
from torchdismech.native.taping import taped, taping

__all__ = [
    "SLOWER",
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
