"""A fixed sparse linear map on batch-last tensors, differentiable by its operand."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.fused import compiled_code_accepts, traced
from torchdismech.native import Unavailable, function_of, in_threads, taping
from torchdismech.native.gpu import Kernels, kernels

__all__ = ["Scatter"]

# Batch size from which on sums by torch use embedding_bag instead of a sparse product: both take equally long near 32
# robots; for 4 embedding_bag takes 50 us, the product 20.
WIDE = 32
NUMBERS_A_THREAD = 1_000_000  # numbers of the result for which another thread pays, about 1 ms of work

# The sums are an operator of torch, so that torch.compile can have them in a graph. Both the matrix A and its
# transpose are given in CSR, as the gradient of y = A x is A^T g.
_OPERATORS = torch.library.Library("torchdismech", "DEF")
_OPERATORS.define(
    "row_sums(Tensor rows, Tensor cols, Tensor values, Tensor t_rows, Tensor t_cols, Tensor t_values, Tensor x)"
    " -> Tensor"
)
# An operator without gradients: autograd's bookkeeping alone takes as long as the sums of a few robots.
_OPERATORS.define("sums(Tensor rows, Tensor cols, Tensor values, int sources, Tensor x) -> Tensor")


def _sums(rows: Tensor, cols: Tensor, values: Tensor, sources: int, x: Tensor) -> Tensor:
    """Return A x (targets, B) for x (sources, B), with A in CSR: where rows begin, columns, values."""
    if (x.dtype, x.device, len(x)) != (values.dtype, values.device, sources):
        raise InputError(
            f"a sum over springs or blocks needs {sources} rows of {values.dtype} on {values.device}, got "
            f"{len(x)} of {x.dtype} on {x.device}: state, forces and model have to agree"
        )
    if x.device.type == "cpu" and (found := function_of("weighted_sums", x.dtype)) is not None:
        return _summed(found, rows, cols, values, x.contiguous())
    if x.device.type == "cuda" and (gpu := _gpu_kernels()) is not None:
        return gpu.sum_rows(rows, cols, values, x)
    if x.device.type == "cpu" and x.shape[1] < WIDE:
        return _csr_tensor(rows, cols, values, len(x)) @ x
    return nn.functional.embedding_bag(  # for wide operands: one vector operation per entry, 4 times faster
        cols, x, rows, mode="sum", per_sample_weights=values, include_last_offset=True
    )


def _row_sums(
    rows: Tensor, cols: Tensor, values: Tensor, t_rows: Tensor, t_cols: Tensor, t_values: Tensor, x: Tensor
) -> Tensor:
    return _sums(rows, cols, values, len(t_rows) - 1, x)


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:6])


def _transposed_sums(ctx, gradient: Tensor):
    saved = ctx.saved_tensors  # read once: under a checkpoint a second access raises
    matrix, transposed = saved[:3], saved[3:]
    return (None,) * 6 + (torch.ops.torchdismech.row_sums(*transposed, *matrix, gradient.contiguous()),)


for _name, _function in (("row_sums", _row_sums), ("sums", _sums)):
    _OPERATORS.impl(_name, _function, "CPU")
    _OPERATORS.impl(_name, _function, "CUDA")
    _OPERATORS.impl(_name, lambda rows, *of: of[-1].new_empty(rows.shape[0] - 1, of[-1].shape[1]), "Meta")
torch.library.register_autograd("torchdismech::row_sums", _transposed_sums, setup_context=_remember)


class _TapedSums(torch.autograd.Function):
    """`row_sums` for a tape, which records the compiled call itself; it would have to copy an operator's result."""

    @staticmethod
    def forward(ctx, x: Tensor, *matrices: Tensor) -> Tensor:
        ctx.save_for_backward(*matrices)
        return _row_sums(*matrices, x)  # type: ignore[call-arg]

    @staticmethod
    def backward(ctx, gradient: Tensor):
        saved = ctx.saved_tensors
        return _TapedSums.apply(gradient, *saved[3:], *saved[:3]), *[None] * 6


def _gpu_kernels() -> Kernels | None:
    """Return the library's GPU kernels, None where they are unavailable."""
    try:
        return kernels()
    except Unavailable:
        return None  # operations of torch serve instead, see `_sums`


def _summed(function: Callable, rows: Tensor, cols: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """Return A x by compiled code, in half the time of embedding_bag, which clears the result first."""
    length = x.shape[1]
    result = x.new_empty(len(rows) - 1, length)
    given = (length, rows, cols, values, x, result)
    in_threads(function, given, len(result), result.numel() // NUMBERS_A_THREAD, writes=(result,))
    return result


def _csr_tensor(rows: Tensor, cols: Tensor, values: Tensor, sources: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        size = len(rows) - 1, sources
        return torch.sparse_csr_tensor(rows, cols, values, size, device=values.device, check_invariants=False)


Compressed = tuple[np.ndarray, np.ndarray, np.ndarray]  # a matrix in CSR: where rows begin, columns, values


def _compressed(
    shape: tuple[int, int], rows: np.ndarray, cols: np.ndarray, values: np.ndarray
) -> tuple[Compressed, Compressed]:
    """Return a sparse matrix and its transpose in CSR, columns sorted and repeated entries summed.

    Entries come in long runs that are sorted already, which speeds `lexsort` up: it takes half of the time of torch's
    `coalesce`, which was two thirds of the time in which a large shell is built.
    """
    for what, numbers, count in zip(("targets", "sources"), (rows, cols), shape, strict=True):
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
            raise InputError(
                f"Scatter: {what} have to be from 0 to {count - 1}, got {numbers.min()} to {numbers.max()}"
            )
    order = np.lexsort((cols, rows))
    rows, cols, values = rows[order].astype(np.int64), cols[order].astype(np.int64), values[order].astype(np.float64)
    anew = (rows[1:] != rows[:-1]) | (cols[1:] != cols[:-1])
    if not anew.all():
        first = np.concatenate([[0], 1 + np.flatnonzero(anew)])
        rows, cols, values = rows[first], cols[first], np.add.reduceat(values, first)
    across = np.argsort(cols, kind="stable")
    matrix = (_starts(rows, shape[0]), cols, values)
    return matrix, (_starts(cols, shape[1]), rows[across], values[across])


def _starts(rows: np.ndarray, count: int) -> np.ndarray:
    """Return where each row begins among sorted entries, followed by their number, (count + 1,)."""
    return np.concatenate([[0], np.bincount(rows, minlength=count).cumsum()])


class Scatter(nn.Module):
    """Sum scaled contributions into a tensor: `target[i] += coefficient * source[j]`, for all robots at once.

    It is a sparse matrix (CSR) rather than an index_add: the order of summation is fixed, so results do not depend
    on threads, and the product is 2-4 times faster on a CPU.

    Parameters
    ----------
    shape : (number of targets, number of sources).
    targets, sources, coefficients : equally long arrays; entries at the same (target, source) add up.
    dtype : of the coefficients.
    """

    matrix_rows: Tensor
    matrix_values: Tensor
    _rows: Tensor
    _starts: Tensor

    def __init__(self, shape: tuple[int, int], targets, sources, coefficients, dtype: torch.dtype):
        super().__init__()
        self.shape = shape
        compressed = _compressed(shape, *map(np.asarray, (targets, sources, coefficients)))
        for name, (begin, cols, values) in zip(("matrix", "transposed"), compressed, strict=True):
            self.register_buffer(f"{name}_rows", torch.from_numpy(begin), persistent=False)
            self.register_buffer(f"{name}_cols", torch.from_numpy(cols), persistent=False)
            self.register_buffer(f"{name}_values", torch.from_numpy(values).to(dtype), persistent=False)
        # for `subtract`: the rows that have entries, often few of many, and where the entries of each begin
        self.register_buffer("_rows", self.matrix_rows.diff().nonzero().flatten(), persistent=False)
        starts = torch.cat([self.matrix_rows[self._rows], self.matrix_rows[-1:]])
        self.register_buffer("_starts", starts, persistent=False)

    def forward(self, source: Tensor) -> Tensor:
        """Return the sums (number of targets, B) of contributions (number of sources, B)."""
        if not compiled_code_accepts(source):
            matrices = (*self._stored("matrix"), *self._stored("transposed"))
            if taping():
                return _TapedSums.apply(source, *matrices)
            return torch.ops.torchdismech.row_sums(*matrices, source)
        sums = torch.ops.torchdismech.sums if traced() else _sums
        return sums(*self._stored("matrix"), self.shape[1], source)

    def subtract(self, target: Tensor, gain: float | Tensor, source: Tensor) -> None:
        """Subtract gain * self(source) from `target` (number of targets, B), in place.

        Parameters
        ----------
        gain : one number, as a float or a tensor (), or one for each target (number of targets, 1).
        """
        alike = self.matrix_values.dtype == source.dtype == target.dtype and len(source) == self.shape[1]
        ours = alike and compiled_code_accepts(source, target) and not traced() and target.is_contiguous()
        function = function_of("subtract_sums", target.dtype) if ours else None
        if function is None:
            target -= gain * self(source)
            return
        gains = gain.to(target.dtype).contiguous() if isinstance(gain, Tensor) else target.new_full((), gain)
        by_row, robots = int(gains.numel() > 1), target.shape[1]
        entries = self._stored("matrix")[1:]
        where = (self._rows, self._starts, *entries)
        given = (robots, *where, gains, by_row, source.contiguous(), target)
        in_threads(function, given, len(self._rows), len(self._rows) * robots // NUMBERS_A_THREAD)

    def _stored(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(getattr(self, f"{name}_{part}") for part in ("rows", "cols", "values"))
