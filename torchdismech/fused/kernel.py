"""Kernel: a program as a Triton kernel on a GPU."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.fused.kernel_source import strides_read
from torchdismech.fused.program import Program
from torchdismech.fused.record import Record
from torchdismech.native.gpu import kernels

__all__ = ["Kernel"]

LANES, WARPS = 64, 2  # a thread for each spring of each robot; blocks are small, as each thread takes many registers
MAX_SPRINGS = 2**31 - 1  # springs of all robots together, as a kernel numbers them by 32 bits


class Kernel(Program):
    """A kernel in which each thread computes the values of one spring of one robot.

    It is compiled at the first launch, which takes some seconds, and stored in Triton's cache on disk.

    Parameters
    ----------
    record, first, second, dtype : as for `Program`.
    text : source of the kernel, from `kernel_source`.

    Raises
    ------
    Unavailable : Triton is missing or too old.
    """

    device, lanes = "cuda", 32

    def __init__(self, record: Record, first: Sequence[int], second: int, dtype: torch.dtype, text: str):
        code = _code(text)
        super().__init__(record, first, second, dtype)
        self._code, self._strides = code, strides_read(record)
        self._springs, self._robots = self._dimensions()

    def write(self, springs: int, read: Sequence[Tensor], first: Tensor, second: Tensor) -> None:
        """Compute the two lists into `first` and `second`, see `Program.write`."""
        robots = first.shape[1]
        size = springs * robots
        if not size:
            return
        if size > MAX_SPRINGS:
            raise InputError(
                f"{springs} springs of {robots} robots are more than {MAX_SPRINGS}: take fewer robots at a time"
            )
        for what, dimensions, wanted in (("springs", self._springs, springs), ("robots", self._robots, robots)):
            for k, d in dimensions:
                if read[k].shape[d] not in (1, wanted):
                    raise InputError(f"a constant of {read[k].shape[d]} {what} does not fit {wanted}")
        strides = [0 if read[k].shape[d] == 1 else read[k].stride(d) for k, d in self._strides]
        with torch.cuda.device_of(first):
            self._code[(-(-size // LANES),)](
                *read, first, second, springs, robots, *strides, LANES=LANES, num_warps=WARPS
            )

    def _dimensions(self) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """Return which dimensions run along springs, and which along robots: (index of the tensor read, dimension).

        A matrix of which springs choose rows has no dimension along springs: it may have any number of rows.
        """
        springs, robots = set(), set()
        for given in self.record.inputs:
            place, along = given.along_springs
            if along is not None:
                springs.add((self.places.index(place), along))
            if given.robot is not None:
                robots.add((self.places.index(given.place), given.robot))
        return springs, robots


def _code(text: str) -> Any:
    """Return the Triton function of a source text, which is put into `linecache`, from where Triton reads it."""
    triton, libdevice = kernels().libraries()
    name = f"<torchdismech kernel {sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope = {"__name__": name, "triton": triton, "tl": triton.language, "libdevice": libdevice}
    exec(compile(text, name, "exec"), scope)
    return scope["fused"]
