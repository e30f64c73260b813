"""Pool of memory that is reused: for the temporary results of tapes, which so stay in the cache, and for matrices.

The system clears fresh memory, which for a large matrix takes as long as to fill it.
"""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
import torch
from torch import Tensor

__all__ = ["Pool"]

ALIGNMENT = 64  # bytes: a line of a cache, and the widest vector
STEP = 8  # block sizes between two powers of two, so that tensors of nearly equal size share memory


class Pool:
    """Blocks of memory, each of which serves one tensor while Python holds it, and other tensors afterwards.

    A tape is recorded with tensors from a pool and later replayed by their addresses alone, when Python no longer holds
    the temporary ones. So tapes that share a pool have to be replayed one after the other, and a tensor that one tape
    leaves for another has to be held in Python. Tapes recorded later then do not use its memory. An earlier tape may,
    so it is to be replayed only after the tensor has been read.

    Attributes
    ----------
    blocks : addresses of all blocks.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}  # blocks not in use, by size; the one freed last comes last
        self.blocks: set[int] = set()

    def __reduce__(self) -> tuple:
        return Pool, ()

    def numbers(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor (count,) that begins at a cache line."""
        return torch.from_numpy(self._taken(count * dtype.itemsize)).view(dtype)

    def adopt(self, tensor: Tensor, keep_numbers: bool = True) -> None:
        """Move the memory of a tensor to the pool; there must be no views of it yet."""
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return
        own = torch.from_numpy(self._taken(storage.nbytes())).untyped_storage()
        if keep_numbers:
            own.copy_(storage)
        tensor.set_(own, tensor.storage_offset(), tensor.shape, tensor.stride())

    def owns(self, tensor: Tensor) -> bool:
        """Return whether the memory of a tensor belongs to the pool."""
        return tensor.untyped_storage().data_ptr() in self.blocks

    def taken(self) -> set[int]:
        """Return the addresses of the blocks that tensors use now."""
        free = {block.ctypes.data for blocks in self._free.values() for block in blocks}
        return self.blocks - free

    def borrowed(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the memory of one of the pool, which does not keep that memory from being reused."""
        storage = tensor.untyped_storage()
        block = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
        same = torch.from_numpy(np.ctypeslib.as_array(block)).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(same, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _taken(self, size: int) -> np.ndarray:
        """Return `size` bytes of a block, which is free again as soon as nothing holds these bytes."""
        size_of_block = _rounded(size)
        free = self._free.setdefault(size_of_block, [])
        try:  # not by asking for the length: another thread may take the last block in between
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
    """Return the size of the blocks that serve tensors of `size` bytes."""
    step = max(ALIGNMENT, (1 << (size - 1).bit_length()) // (2 * STEP))
    return -(-size // step) * step
