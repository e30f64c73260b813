"""Static buffers: memory at fixed addresses, which recordings read, for tensors that are new in each call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchdismech.native.availability import Unavailable
from torchdismech.native.compiled import library

__all__ = ["StaticBuffers"]

STRIDED = -1  # stands for the address of a tensor that is not contiguous


class StaticBuffers:
    """Contiguous tensors at fixed addresses, into which the inputs of recordings are copied.

    On a CPU one call of compiled code copies all inputs, as torch takes a microsecond and more even for a small tensor.
    On a GPU one launch copies all inputs of a dtype.

    Parameters
    ----------
    like : tensors with the shapes, dtypes and devices of the inputs.

    Attributes
    ----------
    tensors : the buffers, not initialised.
    places : indices of the buffers that `give` writes; see `read_by`.
    """

    def __init__(self, like: Sequence[Tensor]):
        self.tensors = [torch.empty_like(t, memory_format=torch.contiguous_format).detach() for t in like]
        self.read_by(None)

    def read_by(self, reads: frozenset[int] | None) -> None:
        """Let `give` write only the buffers with storages that a recording reads (`Tape.reads`); None: all."""
        begins = [tensor.untyped_storage().data_ptr() for tensor in self.tensors]
        self.places = [k for k, begin in enumerate(begins) if reads is None or begin in reads]
        self._of_dtype: dict[torch.dtype, list[int]] = {}
        for place in self.places:
            self._of_dtype.setdefault(self.tensors[place].dtype, []).append(place)
        self._copies = _Copies.to([self.tensors[place] for place in self.places])

    def hold(self, tensor: Tensor) -> bool:
        """Return whether a tensor lies in the memory of one of the buffers."""
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in {
            own.untyped_storage().data_ptr() for own in self.tensors
        }

    def give(self, tensors: Sequence[Tensor | None]) -> None:
        """Copy tensors to the buffers; None leaves a buffer as it is."""
        if self._copies is not None:
            given = [tensors[place] for place in self.places]
            for number in self._copies.made(given):
                self.tensors[self.places[number]].copy_(given[number].detach())  # type: ignore[union-attr]
            return
        with torch.no_grad():
            for places in self._of_dtype.values():
                pairs = [(self.tensors[k], tensor) for k in places if (tensor := tensors[k]) is not None]
                if pairs:
                    torch._foreach_copy_([buffer for buffer, _ in pairs], [tensor for _, tensor in pairs])


class _Copies:
    """Copies of tensors to buffers on a CPU; each tensor is to have the shape and dtype of its buffer."""

    def __init__(self, buffers: Sequence[Tensor]):
        places = [(0, buffer.data_ptr(), buffer.numel() * buffer.element_size()) for buffer in buffers]
        self._table = np.array(places, dtype=np.int64).reshape(-1, 3)
        self._sources = self._table[:, 0]
        self._make = partial(library().code.copies_in_turn, len(self._table), self._table.ctypes.data)

    @staticmethod
    def to(buffers: Sequence[Tensor]) -> _Copies | None:
        """Return an object that copies to these buffers; None without compiled code, or if they are on a GPU."""
        if not all(buffer.is_cpu for buffer in buffers):
            return None
        try:
            return _Copies(buffers)
        except Unavailable:
            return None

    def made(self, tensors: Sequence[Tensor | None]) -> list[int]:
        """Copy the contiguous tensors; return the indices of the others, which are left to the caller.

        None leaves a buffer as it is.
        """
        sources = [0 if t is None else t.data_ptr() if t.is_contiguous() else STRIDED for t in tensors]
        left = [number for number, source in enumerate(sources) if source == STRIDED] if STRIDED in sources else []
        for number in left:
            sources[number] = 0
        self._sources[:] = sources
        self._make()
        return left
