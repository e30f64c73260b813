"""Copies: tensors of a CPU copied to buffers that stay where they are, by one call of compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from torchdismech.native.compiled import Unavailable, library

__all__ = ["Copies"]

STRIDED = -1  # in place of the address of a tensor that is not contiguous


class Copies:
    """Copies of tensors to buffers; each tensor is to have the shape and dtype of its buffer.

    Torch takes a microsecond and more for each tensor of a few numbers.

    Parameters
    ----------
    buffers : contiguous tensors of a CPU, which have to stay alive.

    Raises
    ------
    Unavailable : there is no compiled code.
    """

    def __init__(self, buffers: Sequence[Tensor]):
        self._table = np.array([(0, b.data_ptr(), b.numel() * b.element_size()) for b in buffers], dtype=np.int64)
        self._table = self._table.reshape(-1, 3)
        self._sources = self._table[:, 0]
        self._make = partial(library().code.copies_in_turn, len(self._table), self._table.ctypes.data)

    @staticmethod
    def to(buffers: Sequence[Tensor]) -> Copies | None:
        """Return copies to these buffers; None where there is no compiled code, or they are on a GPU."""
        if any(not buffer.is_cpu for buffer in buffers):
            return None
        try:
            return Copies(buffers)
        except Unavailable:
            return None

    def made(self, tensors: Sequence[Tensor | None]) -> bool:
        """Copy the tensors, but where there is None; return False, with nothing done, if one is not contiguous."""
        sources = [0 if t is None else t.data_ptr() if t.is_contiguous() else STRIDED for t in tensors]
        if STRIDED in sources:
            return False
        self._sources[:] = sources
        self._make()
        return True
