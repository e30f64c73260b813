"""Memory that is used again: for tapes, whose operations work in what others left near the processor, and for matrices.

The system clears what it hands out anew, which for a large matrix takes as long as to fill it.
"""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
import torch
from torch import Tensor

__all__ = ["Pool"]

ALIGNMENT = 64  # bytes: a line of a cache, and the widest vector
STEP = 8  # sizes between a power of two and the next, so that tensors of nearly one size share memory


class Pool:
    """Blocks of memory: each serves one tensor as long as Python holds that, and others afterwards.

    Whoever runs the same operations in the same order again may do so by the addresses alone. So tapes that share a
    pool are replayed one after the other, and what one of them leaves for another is held on to in Python. That keeps
    it from tapes that are recorded later; an earlier one may work there, and is replayed when it has been read.

    Attributes
    ----------
    blocks : where all of them begin.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}  # blocks that no tensor lives in, by size; the last came last
        self.blocks: set[int] = set()

    def __reduce__(self) -> tuple:
        return Pool, ()

    def numbers(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return so many numbers without any values yet, which begin where a line of a cache does."""
        return torch.from_numpy(self._taken(count * dtype.itemsize)).view(dtype)

    def adopt(self, tensor: Tensor, keep_numbers: bool = True) -> None:
        """Move a tensor, of which there is no view yet, to the pool."""
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return
        own = torch.from_numpy(self._taken(storage.nbytes())).untyped_storage()
        if keep_numbers:
            own.copy_(storage)
        tensor.set_(own, tensor.storage_offset(), tensor.shape, tensor.stride())

    def owns(self, tensor: Tensor) -> bool:
        """Return whether a tensor lives here."""
        return tensor.untyped_storage().data_ptr() in self.blocks

    def taken(self) -> set[int]:
        """Return where the blocks begin that tensors live in now."""
        free = {block.ctypes.data for blocks in self._free.values() for block in blocks}
        return self.blocks - free

    def borrowed(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the memory of one that lives here, without keeping others from that memory."""
        storage = tensor.untyped_storage()
        block = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
        same = torch.from_numpy(np.ctypeslib.as_array(block)).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(same, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _taken(self, size: int) -> np.ndarray:
        """Return so many bytes of a block, which is free again when nothing holds them."""
        size_of_block = _rounded(size)
        free = self._free.setdefault(size_of_block, [])
        try:  # another thread may take the last one
            block = free.pop()
        except IndexError:
            block = self._made(size_of_block)
        part = block[:size]
        weakref.finalize(part, free.append, block).atexit = False
        return part

    def _made(self, size: int) -> np.ndarray:
        whole = np.empty(size + ALIGNMENT, dtype=np.uint8)
        start = -whole.ctypes.data % ALIGNMENT
        block = whole[start : start + size]
        self.blocks.add(block.ctypes.data)
        return block


def _rounded(size: int) -> int:
    """Return the size of the blocks that serve so many bytes."""
    step = max(ALIGNMENT, (1 << (size - 1).bit_length()) // (2 * STEP))
    return -(-size // step) * step
