"""Code of our own where torch has no fast operation, and work that is recorded and replayed.

- *Compiled code*: the C++ files, built at their first use (`build.py`, `cache.py`) and called through ctypes
  (`compiled.py`, `signatures.py`); kernels for a GPU (`gpu.py`, `triton_kernels.py`).
- *Recordings* (`graphs.py`): a function as a CUDA graph, or as a tape on a CPU. `tape.py` is where to begin to read of
  tapes; many steps of tapes are a loop of compiled code (`step_loop.py`). What recordings read stays where it is
  (`buffers.py`).
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
