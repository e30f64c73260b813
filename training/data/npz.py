"""Recordings from NumPy archives: `<split>` (K, T, N, 3) [m], `dt` [s], optionally `<split>_id` (K,)."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from torchdismech.errors import InputError
from training.data.recordings import Recordings
from training.data.stacking import number_array, recordings_of

__all__ = ["read_npz"]


def read_npz(path: Path, split: str | None = None) -> Recordings:
    """Return the recordings of a split; without its name, of the only one there is.

    Raises
    ------
    InputError
        A key is missing or an array has the wrong shape or dtype; objects are never unpickled.
    """
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise ValueError("a single array")
            arrays = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path}: not an archive of plain numbers: {error}; save float arrays by numpy.savez"
        ) from error
    split = _split(path, arrays, split)
    if "dt" not in arrays:
        raise InputError(f"{path}: expected a key dt, the time between frames [s], got {', '.join(arrays)}")
    dt = number_array(arrays["dt"], f"{path}: dt")
    if dt.size != 1:
        raise InputError(f"{path}: dt: expected one number, got the shape {dt.shape}")
    positions = number_array(arrays[split], f"{path}: {split}")
    if positions.ndim != 4 or positions.shape[3] != 3:
        raise InputError(f"{path}: {split}: expected (recordings, frames, nodes, 3), got {positions.shape}")
    if not positions.shape[0]:
        raise InputError(f"{path}: {split}: no recordings in it, {positions.shape}; name another split")
    return recordings_of(positions, dt.item(), _names(path, arrays, split))


def _split(path: Path, arrays: dict[str, np.ndarray], split: str | None) -> str:
    splits = [key for key, array in arrays.items() if array.ndim == 4]
    if split is None:
        if len(splits) != 1:
            found = ", ".join(splits) or f"none among {', '.join(arrays) or 'no keys at all'}"
            raise InputError(f"{path}: expected one array (recordings, frames, nodes, 3), got {found}; name a split")
        return splits[0]
    if split not in arrays:
        raise InputError(f"{path}: there is no split {split!r}; it has {', '.join(splits) or 'none'}")
    return split


def _names(path: Path, arrays: dict[str, np.ndarray], split: str) -> list[str]:
    count = len(arrays[split])
    ids = arrays.get(f"{split}_id", np.arange(count))
    if ids.shape != (count,):
        raise InputError(f"{path}: {split}_id: expected one for each of {count} recordings, got shape {ids.shape}")
    return [f"{path.name}:{split}/{name}" for name in ids.tolist()]
