"""Norms, sums and tests for finite numbers of the rows of a batch, by compiled code on a CPU.

The compiled loops take less time than a single call of a torch operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.fused import compiled_code_accepts, traced
from torchdismech.native import function_of, in_threads

__all__ = ["finite_columns", "finite_rows", "totals", "weighted_norms"]

ONE_THREAD = 1


def weighted_norms(x: Tensor, weight: Tensor) -> Tensor:
    """Return the Euclidean norms (B,) of the rows of x (B, m), each column multiplied by its weight (m,).

    A row's norm is the same to the bit whatever rows stand beside it.
    """
    function = function_of("weighted_norms", x.dtype) if compiled_code_accepts(x, weight) and not traced() else None
    if function is None or weight.dtype != x.dtype:
        return torch.linalg.vector_norm(x * weight, dim=1)
    norms = x.new_empty(len(x))
    in_threads(function, (x.shape[1], weight.contiguous(), x.contiguous(), norms), len(x), ONE_THREAD)
    return norms


def totals(x: Tensor) -> Tensor:
    """Return the sums (B,) of the rows of x (B, m)."""
    function = function_of("totals", x.dtype) if compiled_code_accepts(x) and not traced() else None
    if function is None:
        return x.sum(1)
    sums = x.new_empty(len(x))
    in_threads(function, (x.shape[1], x.contiguous(), sums), len(x), ONE_THREAD)
    return sums


def finite_rows(tensors: Sequence[Tensor]) -> Tensor:
    """Return for each row whether all its numbers are finite, (B,) bool, in all of several tensors (B, ..)."""
    dtype = tensors[0].dtype
    ours = compiled_code_accepts(*tensors) and not traced() and all(tensor.dtype == dtype for tensor in tensors)
    function = function_of("finite_rows", dtype) if ours else None
    if function is None:  # sums of numbers take a fifth of the time of testing each one
        return torch.isfinite(torch.stack([x.flatten(1).sum(1) if x.dim() > 1 else x for x in tensors]).sum(0))
    read = [tensor.contiguous() for tensor in tensors]
    rows = len(tensors[0])
    table = np.array([(tensor.data_ptr(), tensor.numel() // max(rows, 1)) for tensor in read], dtype=np.int64)
    finite = tensors[0].new_empty(rows, dtype=torch.bool)
    in_threads(function, (len(read), table, finite), rows, ONE_THREAD, reads=read)
    return finite


def finite_columns(x: Tensor) -> Tensor:
    """Return for each column of x (m, B) whether all its numbers are finite, (B,) bool."""
    if x.shape[1] == 1:
        return finite_rows([x.t()])  # its loop adds several numbers of a row side by side
    function = function_of("finite_columns", x.dtype) if compiled_code_accepts(x) and not traced() else None
    if function is None:
        return torch.isfinite(x.sum(0))
    finite = x.new_empty(x.shape[1], dtype=torch.bool)
    in_threads(function, (*x.shape, x.contiguous(), finite), x.shape[1], ONE_THREAD)
    return finite
