"""CRC-32 checksums of the contents of a trajectory file; they cover values and names, not offsets in the file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

import numpy as np

__all__ = ["fixed_checksum", "row_checksums", "state_checksum"]


def row_checksums(datasets: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the checksums (T, datasets) uint32 of each row of each dataset; columns are sorted by dataset name."""
    columns = [[_of(row) for row in datasets[name]] for name in sorted(datasets)]
    return np.array(columns, dtype=np.uint32).T.copy()


def state_checksum(fields: Mapping[str, np.ndarray], step: int) -> int:
    """Return the checksum of a copy of the state and its step number."""
    checksum = _of(np.array(step, dtype=np.int64))
    for name in sorted(fields):
        checksum = _of(fields[name], checksum)
    return checksum


def fixed_checksum(
    kinds: Mapping[str, tuple[np.dtype, tuple[int, ...]]], known_before: Mapping[str, np.ndarray]
) -> int:
    """Return the checksum of all that does not change in a run: names, dtypes and shapes, and the fixed arrays.

    Parameters
    ----------
    kinds : dtype and shape of the datasets that a run fills, by name.
    known_before : the arrays of all other datasets.
    """
    arrays = {name: (values.dtype, values.shape) for name, values in known_before.items()} | dict(kinds)
    described = {name: [dtype.str, [int(size) for size in shape]] for name, (dtype, shape) in arrays.items()}
    checksum = zlib.crc32(json.dumps(described, sort_keys=True).encode())
    for name in sorted(known_before):
        checksum = _of(known_before[name], checksum)
    return checksum


def _of(values: np.ndarray, before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(values).data, before)
