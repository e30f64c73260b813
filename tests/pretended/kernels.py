"""Kernels of the pretended GPU: what compiled code for a CPU and LAPACK find, launched as a kernel would be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.pretended.tensors import GPUError, OnGPU, device
from torchdismech.fused.kernel import Kernel
from torchdismech.fused.kernel_source import kernel_source
from torchdismech.fused.loop import Loop
from torchdismech.fused.loop_source import loop_source
from torchdismech.solve.linear.triton_band import TritonBand

__all__ = ["LapackBand", "LoopKernel", "loop_for_kernel"]


def _numbers(*tensors: Any) -> list[Any]:
    """Return the numbers of tensors; refuse those of the host, of which a kernel would take the address."""
    if any(not isinstance(tensor, OnGPU) for tensor in tensors):
        raise GPUError("a kernel is given the address of a tensor of the host")
    return [tensor.numbers for tensor in tensors]


def _launch(run: Callable[[], Any]) -> None:
    """Run what a kernel does, without what torch's Python does for the device."""

    def plainly() -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            run()

    plainly()
    device.launched(plainly, [])


def loop_for_kernel(*given: Any) -> str:
    """Return the text of the loop that stands in for a kernel, whose own text can be made, too."""
    kernel_source(*given)
    return loop_source(*given)


class LoopKernel(Kernel):
    """A kernel that a loop stands in for; its text is that of the loop."""

    def __init__(self, record: Any, first: Sequence[int], second: int, dtype: torch.dtype, text: str):
        super().__init__(record, first, second, dtype, text)
        self._loop = Loop(record, first, second, dtype, text)

    def write(self, springs: int, read: Sequence[Tensor], first: Tensor, second: Tensor) -> None:
        """Write the lists, once all that a kernel looks at is looked at."""
        *inputs, to_first, to_second = _numbers(*read, first, second)
        super().write(springs, read, first, second)
        _launch(lambda: self._loop.write(springs, inputs, to_first, to_second))


class LapackBand(TritonBand):
    """Factors of banded matrices by LAPACK, in place of `TritonBand`; what they need stands beside their memory."""

    def _factor_symmetric(self, values: Tensor, rows: Tensor, growth: float) -> None:
        table = self._tables.lower.on(values.device)
        v, t, wanted, ok, definite, lower = _numbers(values, table, rows, self.ok, self.definite, self._lower)

        def run() -> None:
            half = _half(v, t)
            matrices = half + half.tril(-1).mT
            found = _factored(lower, matrices)
            positive = found & (torch.linalg.cholesky_ex(matrices).info == 0)
            definite.copy_(positive & wanted)
            ok.copy_((found if growth > 0 else positive) & wanted)

        _launch(run)

    def _factor_unsymmetric(self, values: Tensor, rows: Tensor, growth: float) -> None:
        tables = [half.on(values.device) for half in (self._tables.lower, self._tables.upper)]
        v, below, right, wanted, ok, lower, _ = _numbers(values, *tables, rows, self.ok, self._lower, self._upper)
        _launch(lambda: ok.copy_(_factored(lower, _half(v, below) + _half(v, right).tril(-1).mT) & wanted))

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions."""
        x, order = torch.empty_like(rhs), self._tables.order.on(rhs.device)
        right, found, lines, lower = _numbers(rhs, x, order, self._lower)

        def run() -> None:
            if bool(lower.isnan().any()):
                raise GPUError("the memory of a factor was given back before it was used")
            of_lines = torch.nn.functional.pad(right, (0, 1))[:, lines].unsqueeze(-1)  # -1: a line that fills up
            solved = torch.linalg.lu_solve(*_FACTORS[lower.data_ptr()], of_lines, adjoint=transpose).squeeze(-1)
            found[:, lines[lines >= 0]] = solved[:, lines >= 0]

        _launch(run)
        return x


_FACTORS: dict[int, tuple[Tensor, Tensor]] = {}  # by where the memory of a factor begins


def _factored(memory: Tensor, matrices: Tensor) -> Tensor:
    """Factor matrices (b, lines, lines), remembered by the memory of the factor; return which (b,) could be."""
    *factor, info = torch.linalg.lu_factor_ex(matrices)
    _FACTORS[memory.data_ptr()] = factor[0], factor[1]
    memory.fill_(1.0)
    return matrices.isfinite().flatten(1).all(1) & (info == 0)


def _half(values: Tensor, sources: Tensor) -> Tensor:
    """Return the lower halves (b, lines, lines) of matrices with values (nnz, b), from sources in `TritonTables`."""
    lines, width = sources.shape
    ones_and_zeros = values.new_tensor([[1.0], [0.0]]).expand(2, values.shape[1])  # ONE is -2, ZERO is -1
    extended, column = torch.cat([values, ones_and_zeros]), torch.arange(lines)
    found = values.new_zeros(values.shape[1], lines, lines)
    for k in range(min(width, lines)):
        found[:, column[: lines - k] + k, column[: lines - k]] = extended[sources[: lines - k, k]].T
    return found
