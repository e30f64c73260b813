"""Names of an HDF5 file looked up without trust: what is found is of the kind and shape asked for, and in the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING

import numpy as np

from torchdismech.trajectory.checks import Damaged

if TYPE_CHECKING:
    import h5py

__all__ = ["BYTES", "FLOATS", "INTEGERS", "NUMBERS", "UNSIGNED", "Members", "Shape"]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
INTEGERS = (np.dtype(np.int64),)
NUMBERS = (*FLOATS, *INTEGERS)
UNSIGNED = (np.dtype(np.uint32),)
BYTES = (np.dtype(np.uint8),)
# Names of axes, or their sizes; an ellipsis at the end for any more.
Shape = Sequence["str | int | EllipsisType"]
DENSEST = 1100  # bytes that a stored byte may stand for: a little more than deflate, which other programs use, can do


class Members:
    """The members of an open file of so many bytes.

    Attributes
    ----------
    sizes : of the axes that were met so far, by letter: each has one size in the whole file.
    """

    def __init__(self, file: h5py.File, size: int):
        self._file, self._bytes = file, size
        self.sizes: dict[str, int] = {}

    def attributes(self) -> dict[str, str]:
        """Return the texts that are attributes of the file."""
        texts = dict(self._file.attrs.items())
        for name, text in texts.items():
            if not isinstance(text, str):
                raise Damaged(f"attribute {name}: expected a text, got {type(text).__name__}")
        return texts

    def has(self, name: str) -> bool:
        """Return whether the file itself has something of that name."""
        return self._file.get(name, getlink=True) is not None

    def names(self, group: str) -> list[str]:
        """Return the names of what is in a group."""
        import h5py

        found = self._found(group)
        if not isinstance(found, h5py.Group):
            raise Damaged(f"{group}: expected a group")
        return list(found)

    def dataset(self, name: str, shape: Shape, kinds: Sequence[np.dtype]) -> h5py.Dataset:
        """Return a dataset of one of the kinds and of the shape."""
        import h5py

        found = self._found(name)
        if not isinstance(found, h5py.Dataset):
            raise Damaged(f"{name}: expected a dataset")
        if found.external or found.is_virtual:
            raise Damaged(f"{name}: its numbers are in another file")
        if found.dtype not in kinds:
            raise Damaged(f"{name}: expected {' or '.join(map(str, kinds))}, got {found.dtype}")
        if found.shape is None or not self._fits(found.shape, shape):
            expected = ", ".join(_described(axis, self.sizes) for axis in shape)
            raise Damaged(f"{name}: expected the shape ({expected}), got {found.shape}")
        self._check_storage(name, found)
        return found

    def _found(self, name: str):
        """Return what stands under a name; no link is followed, neither on the way nor at its end."""
        import h5py

        at = self._file
        for part in name.split("/"):
            link = at.get(part, getlink=True) if isinstance(at, h5py.Group) else None
            if link is None:
                raise Damaged(f"{name}: is missing")
            if not isinstance(link, h5py.HardLink):
                raise Damaged(f"{name}: is a link to elsewhere, which is not followed")
            at = at[part]
        return at

    def _fits(self, found: Sequence[int], expected: Shape) -> bool:
        """Return whether sizes are those expected; an axis that was not met before may have any."""
        named = [axis for axis in expected if not isinstance(axis, EllipsisType)]
        if len(found) < len(named) or (len(found) > len(named) and len(named) == len(expected)):
            return False
        sizes = dict(self.sizes)
        for size, axis in zip(found, named, strict=False):
            if size != (sizes.setdefault(axis, size) if isinstance(axis, str) else axis):
                return False
        self.sizes = sizes
        return True

    def _check_storage(self, name: str, dataset: h5py.Dataset) -> None:
        """Refuse numbers that are not in the file, as of a size that nothing stands behind."""
        size, offset = math.prod(dataset.shape) * dataset.dtype.itemsize, dataset.id.get_offset()
        if offset is None:
            stored = size <= DENSEST * dataset.id.get_storage_size()
        else:
            stored = offset + size <= self._bytes
        if not stored:
            raise Damaged(f"{name}: the file does not hold the {size} bytes that it should have")


def _described(axis: str | int | EllipsisType, sizes: dict[str, int]) -> str:
    if axis is ...:
        return "..."
    return f"{axis} = {sizes[axis]}" if isinstance(axis, str) and axis in sizes else str(axis)
