"""Members: access to an untrusted HDF5 file that checks kind, dtype, shape and storage of each dataset."""

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
# An expected shape: for each axis its letter or its size; an ellipsis at the end stands for any further axes.
Shape = Sequence["str | int | EllipsisType"]
# Largest credible compression ratio: a little more than deflate, which other programs may have used, can reach.
DENSEST = 1100


class Members:
    """The members of an open HDF5 file, looked up with checks; a mismatch raises `Damaged`.

    Parameters
    ----------
    file : the open file.
    size : of the file [bytes].

    Attributes
    ----------
    sizes : of the axes seen so far, by letter; an axis has the same size in the whole file.
    """

    def __init__(self, file: h5py.File, size: int):
        self._file, self._bytes = file, size
        self.sizes: dict[str, int] = {}

    def attributes(self) -> dict[str, str]:
        """Return the attributes of the file, all of which have to be texts."""
        texts = dict(self._file.attrs.items())
        for name, text in texts.items():
            if not isinstance(text, str):
                raise Damaged(f"attribute {name}: expected a text, got {type(text).__name__}")
        return texts

    def has(self, name: str) -> bool:
        """Return whether the file has a member of this name."""
        return self._file.get(name, getlink=True) is not None

    def names(self, group: str) -> list[str]:
        """Return the names of a group's members."""
        import h5py

        member = self._member(group)
        if not isinstance(member, h5py.Group):
            raise Damaged(f"{group}: expected a group")
        return list(member)

    def dataset(self, name: str, shape: Shape, kinds: Sequence[np.dtype]) -> h5py.Dataset:
        """Return a dataset, after checking that it has one of the dtypes `kinds` and the shape."""
        import h5py

        member = self._member(name)
        if not isinstance(member, h5py.Dataset):
            raise Damaged(f"{name}: expected a dataset")
        if member.external or member.is_virtual:
            raise Damaged(f"{name}: its numbers are in another file")
        if member.dtype not in kinds:
            raise Damaged(f"{name}: expected {' or '.join(map(str, kinds))}, got {member.dtype}")
        if member.shape is None or not self._fits(member.shape, shape):
            expected = ", ".join(_described(axis, self.sizes) for axis in shape)
            raise Damaged(f"{name}: expected the shape ({expected}), got {member.shape}")
        self._check_storage(name, member)
        return member

    def _member(self, name: str):
        """Return the object of this name; soft and external links, also on the way to it, are refused."""
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

    def _fits(self, shape: Sequence[int], expected: Shape) -> bool:
        """Return whether a shape is as expected, and store the sizes of axes seen for the first time."""
        named = [axis for axis in expected if not isinstance(axis, EllipsisType)]
        if len(shape) < len(named) or (len(shape) > len(named) and len(named) == len(expected)):
            return False
        sizes = dict(self.sizes)
        for size, axis in zip(shape, named, strict=False):
            if size != (sizes.setdefault(axis, size) if isinstance(axis, str) else axis):
                return False
        self.sizes = sizes
        return True

    def _check_storage(self, name: str, dataset: h5py.Dataset) -> None:
        """Refuse a dataset whose declared size is larger than what the file stores for it."""
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
