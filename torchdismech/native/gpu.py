"""The kernels for GPUs (`triton_kernels.py`), where Triton is at hand: torch for CUDA on Linux brings it along.

A kernel is compiled at its first launch for a device, a type and a bandwidth, which takes seconds, and kept in Triton's
cache directory ($TRITON_CACHE_DIR or ~/.triton). With TRITON_INTERPRET=1 in the environment of a process Triton
interprets them, on CPU tensors too: very slow, but it shows what they compute on any machine.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from torchdismech.native.availability import LookedForOnce, Unavailable, refuse_if_plain

__all__ = ["LANES", "Kernels", "kernels"]

LANES = 32  # robots of a program of the kernels for bands: one warp
# Programs of `sum_rows`: wide enough for two numbers a lane; and terms in flight, of which most rows have few.
SUM_LANES, SUM_WARPS, SUM_TERMS = 256, 4, 4
OLDEST = (3, 3)  # Triton whose kernels may hold tuples in loops


@dataclass(frozen=True)
class Kernels:
    """The kernels.

    Attributes
    ----------
    code : the module `triton_kernels`.
    version : of Triton.
    interpreted : whether they run on CPU tensors, interpreted.
    """

    code: ModuleType
    version: str
    interpreted: bool

    def libraries(self) -> tuple[ModuleType, ModuleType]:
        """Return Triton, and its functions such as sines, for generated kernels."""
        return importlib.import_module("triton"), importlib.import_module("triton.language.extra.libdevice")

    def sum_rows(self, starts: Tensor, sources: Tensor, weights: Tensor, x: Tensor) -> Tensor:
        """Return A x (targets, B) for x (sources, B) and a sparse matrix A (CSR: starts, sources, weights)."""
        x = x.contiguous()
        y = x.new_empty(len(starts) - 1, x.shape[1])
        if y.numel():
            with torch.cuda.device_of(x):
                # Rows come first in the order of programs: those of the same robots share what they read in the cache.
                self.code.sum_rows[(len(y), -(-y.shape[1] // SUM_LANES))](
                    starts, sources, weights, x, y, y.shape[1], TERMS=SUM_TERMS, LANES=SUM_LANES, num_warps=SUM_WARPS
                )
        return y


@LookedForOnce
def kernels() -> Kernels:
    """Return the kernels; the first call of a process imports Triton.

    Raises
    ------
    Unavailable : if Triton is missing or too old, or plain torch is asked for.
    """
    refuse_if_plain()
    try:
        triton = importlib.import_module("triton")
    except ImportError as error:
        raise Unavailable(
            f"Triton cannot be imported ({error}); install torch for CUDA on Linux, which brings it along"
        ) from error
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < OLDEST:
        raise Unavailable(
            f"Triton {triton.__version__} is too old; install a torch that brings {'.'.join(map(str, OLDEST))} or newer"
        )
    code = importlib.import_module("torchdismech.native.triton_kernels")
    return Kernels(code, triton.__version__, os.environ.get("TRITON_INTERPRET") == "1")
