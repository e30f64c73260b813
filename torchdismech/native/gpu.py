"""Access to the kernels for GPUs (`triton_kernels.py`). They need Triton, which torch for CUDA on Linux includes.

A kernel is compiled at its first launch for a device, a dtype and a bandwidth, which takes seconds, and stored in
Triton's cache directory ($TRITON_CACHE_DIR or ~/.triton). With TRITON_INTERPRET=1 in the environment of a process,
Triton interprets the kernels, also on CPU tensors: very slow, but it shows on any machine what they compute.
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

LANES = 32  # robots in a program of the band kernels: one warp
# Size of the programs of `sum_rows`, two numbers for each lane, and the terms loaded at once, as most rows have few.
SUM_LANES, SUM_WARPS, SUM_TERMS = 256, 4, 4
OLDEST = (3, 3)  # oldest Triton whose kernels may carry tuples through loops


@dataclass(frozen=True)
class Kernels:
    """The Triton kernels of this package.

    Attributes
    ----------
    code : the module `triton_kernels`.
    version : of Triton.
    interpreted : whether Triton interprets them, so that they run on CPU tensors, too.
    """

    code: ModuleType
    version: str
    interpreted: bool

    def libraries(self) -> tuple[ModuleType, ModuleType]:
        """Return the modules of Triton and of its mathematical functions, for generated kernels."""
        return importlib.import_module("triton"), importlib.import_module("triton.language.extra.libdevice")

    def sum_rows(self, starts: Tensor, sources: Tensor, weights: Tensor, x: Tensor) -> Tensor:
        """Return A x (targets, B) for x (sources, B) and a sparse matrix A (CSR: starts, sources, weights)."""
        x = x.contiguous()
        y = x.new_empty(len(starts) - 1, x.shape[1])
        if y.numel():
            with torch.cuda.device_of(x):
                # rows come first in the order of programs, so that rows of the same robots find x in the cache
                self.code.sum_rows[(len(y), -(-y.shape[1] // SUM_LANES))](
                    starts, sources, weights, x, y, y.shape[1], TERMS=SUM_TERMS, LANES=SUM_LANES, num_warps=SUM_WARPS
                )
        return y


@LookedForOnce
def kernels() -> Kernels:
    """Return the kernels; the first call in a process imports Triton.

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
