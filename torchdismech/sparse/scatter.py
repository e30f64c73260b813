"""A fixed sparse linear map on batch-last tensors, differentiable by its operand."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from torchdismech.errors import InputError
from torchdismech.native import Unavailable, in_threads, library

__all__ = ["Scatter"]

# Robots from which on a loop over rows is faster than the sparse product of torch, on a CPU: embedding_bag (20 us
# against 50 us at 4, equal near 32) and compiled code.
WIDE = 32
NUMBERS_A_THREAD = 1_000_000  # of the result, about 1 ms


class _Multiply(torch.autograd.Function):
    """y = A x for a constant sparse A; the gradient is A^T g."""

    @staticmethod
    def forward(ctx, matrix: torch.Tensor, transposed: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:  # noqa: D102
        ctx.matrices = (matrix, transposed)
        if (operand.dtype, operand.device, len(operand)) != (matrix.dtype, matrix.device, matrix.shape[1]):
            raise InputError(
                f"a sum over springs or blocks needs {matrix.shape[1]} rows of {matrix.dtype} on {matrix.device}, got "
                f"{len(operand)} of {operand.dtype} on {operand.device}: state, forces and model have to agree"
            )
        if operand.shape[1] < WIDE:
            return matrix @ operand
        if operand.device.type == "cpu" and (found := _compiled_sums(operand.dtype)) is not None:
            return _summed(found, matrix, operand.contiguous())
        return nn.functional.embedding_bag(  # for wide operands: one vector operation per entry, 4 times faster
            matrix.col_indices(),
            operand,
            matrix.crow_indices(),
            mode="sum",
            per_sample_weights=matrix.values(),
            include_last_offset=True,
        )

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):  # noqa: D102
        matrix, transposed = ctx.matrices
        return None, None, _Multiply.apply(transposed, matrix, gradient.contiguous())


def _compiled_sums(dtype: torch.dtype) -> Callable | None:
    """Return the compiled function that adds up weighted rows, if it can be had."""
    try:
        code = library().code
    except Unavailable:
        return None  # the sums are the same, only slower; solvers say what is missing (`torchdismech check`)
    return {torch.float64: code.weighted_sums_float64, torch.float32: code.weighted_sums_float32}.get(dtype)


def _summed(function: Callable, matrix: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """Return matrix @ operand (sources, B): half the time of embedding_bag, which clears the result first."""
    length = operand.shape[1]
    result = operand.new_empty(matrix.shape[0], length)
    rows = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    in_threads(function, (length, *rows, operand, result), len(result), result.numel() // NUMBERS_A_THREAD)
    return result


class Scatter(nn.Module):
    """Sum scaled contributions into a tensor: `target[i] += coefficient * source[j]`, for all robots at once.

    Kept as a sparse matrix (CSR) rather than an index_add: the order of summation is fixed, so results do not depend
    on threads, and the product is 2-4 times faster on a CPU.

    Parameters
    ----------
    shape : (number of targets, number of sources).
    targets, sources, coefficients : equally long arrays; entries at the same (target, source) add up.
    """

    def __init__(self, shape: tuple[int, int], targets, sources, coefficients, dtype: torch.dtype):
        super().__init__()
        self.shape = shape
        targets, sources = np.asarray(targets, dtype=np.int64), np.asarray(sources, dtype=np.int64)
        coefficients = np.asarray(coefficients, dtype=np.float64)
        for name, size, i, j in (("matrix", shape, targets, sources), ("transposed", shape[::-1], sources, targets)):
            crow, col, value = _csr(size, i, j, coefficients)
            self.register_buffer(f"{name}_rows", torch.from_numpy(crow), persistent=False)
            self.register_buffer(f"{name}_cols", torch.from_numpy(col), persistent=False)
            self.register_buffer(f"{name}_values", torch.from_numpy(value).to(dtype), persistent=False)
        self._cache: dict[str, torch.Tensor] = {}

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_cache": {}}  # sparse tensors can be made anew, not copied

    def _apply(self, fn, recurse=True):
        self._cache = {}
        return super()._apply(fn, recurse)

    def _csr_tensor(self, name: str) -> torch.Tensor:
        if name not in self._cache:
            size = self.shape if name == "matrix" else self.shape[::-1]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sparse")
                self._cache[name] = torch.sparse_csr_tensor(
                    getattr(self, f"{name}_rows"),
                    getattr(self, f"{name}_cols"),
                    getattr(self, f"{name}_values"),
                    size=size,
                    check_invariants=False,
                )
        return self._cache[name]

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        """Map (number of sources, B) to (number of targets, B)."""
        return _Multiply.apply(self._csr_tensor("matrix"), self._csr_tensor("transposed"), source)


def _csr(shape, rows, cols, coefficients):
    """Return (row pointers, columns, values) with repeated entries summed."""
    keys, inverse = np.unique(rows * shape[1] + cols, return_inverse=True)
    values = np.bincount(inverse, weights=coefficients, minlength=len(keys)).astype(np.float64)
    pointers = np.concatenate([[0], np.cumsum(np.bincount(keys // shape[1], minlength=shape[0]))])
    return pointers.astype(np.int64), (keys % shape[1]).astype(np.int64), values
