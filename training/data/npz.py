"""Recordings from NumPy archives: `<split>` (K, T, N, 3) [m], `dt` [s], optionally `<split>_id` (K,).

A single recording may be (T, N, 3). Inputs `<name>` or `<split>_<name>` are (K, T) or (K, T, C), of a single recording
(T,) or (T, C); of several columns C the names are `<name>0`, `<name>1`, .... Of a chain with branches, `edges` (E, 2)
are the nodes that edges lead from and to (see `Recordings`).
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from torchdismech.errors import InputError
from training.data.file_checks import refuse_oversized, short_error
from training.data.recordings import Recordings
from training.data.stacking import number_array, recordings_of

__all__ = ["read_npz"]


def read_npz(path: Path, split: str | None = None, inputs: tuple[str, ...] = ()) -> Recordings:
    """Return the recordings of a split with the named inputs; `split` None takes the only split of the archive.

    Raises
    ------
    InputError
        A key is missing or an array has the wrong shape or dtype; objects are never unpickled.
    """
    arrays = _arrays(path)
    split = _split(path, arrays, split, inputs)
    if "dt" not in arrays:
        raise InputError(f"{path}: expected a key dt, the time between frames [s], got {', '.join(arrays)}")
    dt = number_array(arrays["dt"], f"{path}: dt")
    if dt.size != 1:
        raise InputError(f"{path}: dt: expected one number, got the shape {dt.shape}")
    positions = number_array(arrays[split], f"{path}: {split}")
    single = positions.ndim == 3 and positions.shape[2] == 3 and f"{split}_id" not in arrays
    positions = positions[None] if single else positions
    if positions.ndim != 4 or positions.shape[3] != 3:
        raise InputError(f"{path}: {split}: expected (recordings, frames, nodes, 3), got {positions.shape}")
    if not positions.shape[0]:
        raise InputError(f"{path}: {split}: no recordings in it, {positions.shape}; name another split")
    own, columns = _inputs(path, arrays, split, inputs, positions.shape[:2], single)
    names = _names(path, arrays, split, len(positions))
    return recordings_of(positions, dt.item(), names, own, columns, edges=_edges(path, arrays, inputs))


def _edges(path: Path, arrays: dict[str, np.ndarray], inputs: tuple[str, ...]) -> np.ndarray | None:
    """Return the edges (E, 2) of a chain with branches; None where the archive has none."""
    edges = None if "edges" in inputs else arrays.get("edges")
    if edges is not None and edges.dtype.kind not in "iu":
        raise InputError(f"{path}: edges: expected whole numbers (edges, 2), got dtype {edges.dtype}")
    return edges


def _inputs(
    path: Path,
    arrays: dict[str, np.ndarray],
    split: str,
    inputs: tuple[str, ...],
    shape: tuple[int, ...],
    single: bool,
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the inputs (K, T, C) of these names, and the names of their columns."""
    found: list[np.ndarray] = []
    columns: list[str] = []
    for name in inputs:
        key = f"{split}_{name}" if f"{split}_{name}" in arrays else name
        if key not in arrays:
            raise InputError(
                f"{path}: no input {name!r:.80}; expected a key {split}_{name} or {name}; it has: {', '.join(arrays)}"
            )
        values = number_array(arrays[key], f"{path}: {key}")
        values = values[None] if single else values
        values = values[..., None] if values.ndim == 2 else values
        if values.ndim != 3 or values.shape[:2] != shape:
            raise InputError(
                f"{path}: {key}: expected a number, or several, for each of {shape[0]} recordings and {shape[1]} "
                f"frames: inputs have to cover the recording; got the shape {arrays[key].shape}"
            )
        found.append(values)
        count = values.shape[2]
        columns += [name] if count == 1 else [f"{name}{k}" for k in range(count)]
    return (np.concatenate(found, axis=2) if found else None), tuple(columns)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of an archive by key; refuse one that is damaged or holds objects."""
    try:
        with zipfile.ZipFile(path) as archive:
            refuse_oversized(path, 2 * sum(member.file_size for member in archive.infolist()))
            return {member.filename.removesuffix(".npy"): _array(archive, member) for member in archive.infolist()}
    except InputError:
        raise
    except Exception as error:  # a broken archive may raise anything; the message says what
        raise InputError(
            f"{path}: not an archive of plain numbers: {short_error(error)}; save float arrays by numpy.savez"
        ) from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    content = archive.read(member)  # to its end, where zipfile compares its checksum
    file = io.BytesIO(content)
    array = np.lib.format.read_array(file, allow_pickle=False)
    if not len(content) == member.file_size == file.tell():
        raise ValueError(f"{member.filename!r:.80} is not as long as it says")
    return array


def _split(path: Path, arrays: dict[str, np.ndarray], split: str | None, inputs: tuple[str, ...]) -> str:
    splits = [key for key, array in arrays.items() if array.ndim == 4]
    if not splits:
        splits = [k for k, a in arrays.items() if a.ndim == 3 and a.shape[2] == 3 and k not in inputs]
    if split is None:
        if len(splits) != 1:
            found = ", ".join(splits) or f"none among {', '.join(arrays) or 'no keys at all'}"
            raise InputError(f"{path}: expected one array (recordings, frames, nodes, 3), got {found}; name a split")
        return splits[0]
    if split not in arrays:
        raise InputError(f"{path}: there is no split {split!r}; it has {', '.join(splits) or 'none'}")
    return split


def _names(path: Path, arrays: dict[str, np.ndarray], split: str, count: int) -> list[str]:
    ids = arrays.get(f"{split}_id", np.arange(count))
    if ids.dtype.kind not in "iuU":
        raise InputError(f"{path}: {split}_id: expected whole numbers or texts, got dtype {ids.dtype}")
    if ids.shape != (count,):
        raise InputError(f"{path}: {split}_id: expected one for each of {count} recordings, got shape {ids.shape}")
    return [f"{path.name}:{split}/{name}" for name in ids.tolist()]
