"""Recordings from pickles of plain numbers: a list of T frames, each (3, N) [m].

A pickle is a program, and an unknown one may do anything. So nothing that it names is ever imported or called: lists,
tuples and numbers need no names, and for the few names that NumPy writes for arrays of floats there are stand-ins here,
which hold plain data.
"""

from __future__ import annotations

import pickle
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from torchdismech.errors import InputError
from training.data.file_checks import refuse_oversized, short_error
from training.data.stacking import Single

__all__ = ["read_pickle"]


BYTES_A_BYTE = 10  # in memory for a byte of the file: a float of 9 bytes becomes an object of 24 and two references


class _Dtype:
    """Stand-in for numpy.dtype: float32 or float64, and its byte order."""

    def __init__(self, code: Any, *_) -> None:
        if code not in ("f4", "f8"):
            raise InputError(f"an array of dtype {code!r}; expected floats (f4 or f8)")
        self.code, self.order = code, "<"

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if order not in ("<", ">", "="):
            raise InputError(f"an array of byte order {order!r}; expected < or >")
        self.order = order

    def array(self, data: Any) -> np.ndarray:
        """Return the numbers in some bytes, as float64."""
        return np.frombuffer(bytes(data), np.dtype(self.order + self.code)).astype(np.float64)


class _Array:
    """Stand-in for numpy.ndarray, with values from the start or, as NumPy pickles them, by `__setstate__`."""

    def __init__(self, values: np.ndarray | None = None) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, columns_first, data = state
        self.values = _shaped(data, dtype, shape, "F" if columns_first else "C")


def _shaped(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(dtype, _Dtype) or order not in ("C", "F"):
        raise InputError("an array that NumPy did not write")
    return dtype.array(data).reshape(shape, order=order)


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(_shaped(data, dtype, shape, order))


def _scalar(dtype: _Dtype, data: bytes) -> float:
    return dtype.array(data).item()


def _latin1(text: str, encoding: str) -> bytes:
    """Return the bytes of a text; old protocols of pickles write bytes so."""
    if encoding != "latin1":
        raise InputError(f"bytes in encoding {encoding!r}; expected latin1")
    return text.encode("latin1")


# the names that NumPy 1 and 2 write for arrays and numbers, in protocols 2 to 5
STAND_INS: dict[tuple[str, str], Callable] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _latin1,
}
for _core in ("numpy.core", "numpy._core"):
    STAND_INS[_core + ".multiarray", "_reconstruct"] = lambda *_: _Array()
    STAND_INS[_core + ".multiarray", "scalar"] = _scalar
    STAND_INS[_core + ".numeric", "_frombuffer"] = _from_buffer


class _Unpickler(pickle.Unpickler):
    """Admits plain numbers in lists, tuples and NumPy arrays; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name, without an import; refuse every other name."""
        try:
            stand_in = STAND_INS[module, name]
        except KeyError:
            asked = ascii(f"{module}.{name}")[1:-1]
            raise InputError(
                f"refused: it asks for {asked[:80]}; expected lists of floats only: do not load it elsewhere unless "
                "its author is trusted"
            ) from None
        # a pickle may set attributes of a function that it gets: of a new one, as one of this module would keep them
        return stand_in if isinstance(stand_in, type) else lambda *given: stand_in(*given)


def read_pickle(path: Path, dt: float) -> Single:
    """Return the recording of a file; the file does not hold the time between frames `dt` [s].

    Raises
    ------
    InputError
        The pickle names anything but arrays of floats, or holds anything but frames of (3, N) numbers.
    """
    refuse_oversized(path, BYTES_A_BYTE * path.stat().st_size)
    with path.open("rb") as file:
        try:
            content = _Unpickler(file).load()
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        except Exception as error:  # a broken pickle may raise anything; the message says what
            raise InputError(
                f"{path}: no pickle of plain numbers, or cut off: {short_error(error)}; write it again"
            ) from error
    return Single(path.name, _positions(content, path), dt)


def _positions(content: Any, path: Path) -> np.ndarray:
    """Return the positions (T, N, 3) in a pickle's content, a list of T frames."""
    if isinstance(content, _Array):
        content = content.values
    if not isinstance(content, (list, tuple, np.ndarray)) or len(content) == 0:
        raise InputError(f"{path}: expected a list of frames, got {_described(content)}")
    first = _frame(content[0], f"{path}: frame 0")
    # a pickle may refer to one list many times, so that a small file holds an endless recording
    refuse_oversized(path, float(len(content)) * first.nbytes)
    frames = [_frame(values, f"{path}: frame {t}") for t, values in enumerate(content)]
    for t, frame in enumerate(frames):
        if frame.shape != frames[0].shape:
            raise InputError(
                f"{path}: frame {t} has {len(frame)} nodes, frame 0 has {len(frames[0])}; expected the same in all: "
                "write NaN where a marker was not seen"
            )
    return np.stack(frames)


def _frame(values: Any, what: str) -> np.ndarray:
    """Return a frame (N, 3) from nested lists (3, N) of plain numbers."""
    plain = _plain(values, what, depth=2)
    try:
        frame = np.asarray(plain, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{what}: expected three equally long rows of numbers: {error}") from error
    if frame.ndim != 2 or frame.shape[0] != 3:
        raise InputError(f"{what}: expected (3, nodes): all x, all y, all z; got shape {frame.shape}")
    return frame.T


def _plain(values: Any, what: str, depth: int) -> Any:
    """Return nested lists of numbers, with stand-ins replaced by their arrays; refuse anything else."""
    if isinstance(values, _Array):
        values = values.values
    if isinstance(values, np.ndarray) or (isinstance(values, (float, int)) and not isinstance(values, bool)):
        return values
    if isinstance(values, (list, tuple)) and depth > 0:
        return [_plain(value, what, depth - 1) for value in values]
    raise InputError(f"{what}: expected three rows of numbers, got {_described(values)} in it: save plain floats")


def _described(value: Any) -> str:
    kind = type(value).__name__.removeprefix("_")
    plain = isinstance(value, (str, bytes, int, float, list, tuple, dict))
    return f"{kind} {reprlib.repr(value)[:40]!r}" if plain else kind  # reprlib is short for any nesting
