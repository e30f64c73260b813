"""Banded factors by compiled code: `band.cpp`, one matrix in each lane of a vector.

The code is compiled at its first use for the machine's own instructions, which takes about a second, and kept in the
user's cache directory ($XDG_CACHE_HOME or ~/.cache, /torchdismech). It needs a C++ compiler, GCC or clang.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.sparse.ordering import BandedOrder

__all__ = ["Library", "NativeBand", "Unavailable", "band_bytes", "band_sources", "library"]

SOURCE = Path(__file__).with_name("band.cpp")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC")
# A thread takes about 0.1 ms to start: each gets at least as many numbers of bands, about 1 ms of factoring.
NUMBERS_A_THREAD = 500_000
LINE = 64  # bytes; what vectors are aligned to


class Unavailable(InputError):
    """The compiled code cannot be had: the message names what is missing and what to do."""


@dataclass(frozen=True)
class Library:
    """The compiled code.

    Attributes
    ----------
    code : its functions.
    made_by : the compiler and the flags that matter.
    vector_bytes : size of the vectors that it works with.
    """

    code: ctypes.CDLL
    made_by: str
    vector_bytes: int

    def lanes(self, dtype: torch.dtype) -> int:
        """Return how many matrices share a vector."""
        return self.vector_bytes // dtype.itemsize


_found: Library | Unavailable | None = None


def library() -> Library:
    """Return the compiled code; the first call of a process looks for it in the cache or compiles it.

    Raises
    ------
    Unavailable : if there is no compiler, it fails, or the cache directory cannot be written.
    """
    global _found
    if _found is None:
        try:
            _found = _compiled()
        except Unavailable as error:
            _found = error  # looked for once: whoever asks next hears the same
    if isinstance(_found, Unavailable):
        raise Unavailable(str(_found))
    return _found


def _compiled() -> Library:
    """Return the code from the cache, compiled first if it is not there."""
    compiler = _compiler()
    flags, target = _flags_and_target(compiler)
    source = SOURCE.read_bytes()
    # The macros tell the compiler's version and the instructions of this machine, so machines may share a directory.
    key = hashlib.sha256(b"\0".join([source, shlex.join([*compiler, *flags]).encode(), target])).hexdigest()[:24]
    path = _cache() / f"band-{key}.so"
    if not path.exists():
        _compile(compiler, flags, path)
    try:
        code = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"the compiled code cannot be loaded ({error}); remove {path} and try again") from error
    _declare(code)
    shown = " ".join([*compiler, "-O3", *(flag for flag in flags if flag not in FLAGS)])
    return Library(code, shown, code.band_vector_bytes())


def _compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, else the first that is found."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise Unavailable(f"the C++ compiler $CXX = {named[0]!r} is not found; set CXX to one that is, or unset it")
        return named
    for name in COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise Unavailable(
        f"no C++ compiler is found (looked for {', '.join(COMPILERS)}); install GCC or clang, or set CXX to one"
    )


def _flags_and_target(compiler: list[str]) -> tuple[list[str], bytes]:
    """Return the flags that the compiler takes, and the macros that it defines with them."""
    for flags in ([*FLAGS, "-march=native"], [*FLAGS]):
        done = _run([*compiler, *flags, "-x", "c++", "-dM", "-E", os.devnull])
        if done.returncode == 0:
            return flags, done.stdout
    raise Unavailable(f"the C++ compiler {shlex.join(compiler)} fails: {_complaint(done)}; set CXX to GCC or clang")


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise Unavailable(
            f"the C++ compiler {command[0]} cannot be started ({error}); set CXX to GCC or clang"
        ) from error


def _complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the first line that says what is wrong."""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else f"it returns {done.returncode}")


def _cache() -> Path:
    """Return the directory for compiled code, made if it is missing."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    directory = Path(home) / "torchdismech"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(directory, error) from error
    return directory


def _unwritable(directory: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"compiled code cannot be written to {directory} ({error}); set XDG_CACHE_HOME to a directory that is writable"
    )


def _compile(compiler: list[str], flags: list[str], path: Path) -> None:
    """Compile to a file of another name and rename it, so that no other process loads half of it."""
    try:
        scratch = tempfile.TemporaryDirectory(dir=path.parent, prefix="compiling-")
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    with scratch as directory:
        made = Path(directory) / path.name
        done = _run([*compiler, *flags, str(SOURCE), "-o", str(made)])
        if done.returncode != 0:
            raise Unavailable(
                f"the C++ compiler {shlex.join(compiler)} fails on {SOURCE}: {_complaint(done)}; set CXX to GCC 9 or "
                "clang 12 or newer"
            )
        made.replace(path)


def _declare(code: ctypes.CDLL) -> None:
    """Say what the functions take."""
    number, array = ctypes.c_int64, ctypes.c_void_p
    code.band_vector_bytes.restype = number
    for dtype in ("float64", "float32"):
        factor, solve = getattr(code, f"band_factor_{dtype}"), getattr(code, f"band_solve_{dtype}")
        factor.argtypes = [number] * 4 + [array, number, array, ctypes.c_double, array, array, number, number]
        solve.argtypes = [number] * 4 + [array, array, number, array, array, number, number]
        factor.restype = solve.restype = None


class NativeBand:
    """Factors of b banded matrices in the storage of `band.cpp`, without row exchanges.

    Parameters
    ----------
    order : the order of the unknowns and the bandwidths.
    sources : from `band_sources`, which entry stands at each place.
    values : (nnz, b) on the CPU.
    growth : how many times as large as the largest entry of a matrix a term of its elimination may be; None says that
        the matrices are symmetric, one half is stored, and pivots have to be positive.

    Attributes
    ----------
    ok : (b,) bool, where pivots or terms were as they have to be.
    """

    def __init__(self, order: BandedOrder, sources: np.ndarray, values: Tensor, growth: float | None = None):
        self._library, values = library(), values.contiguous()
        upper = -1 if growth is None else order.upper
        self._order = order.order
        self._shape = (values.shape[1], len(order.order), order.lower, upper)
        self._groups = -(-values.shape[1] // self._library.lanes(values.dtype))
        self._bands = _aligned(self._groups * len(sources) * self._library.lanes(values.dtype), values.dtype)
        self.ok = torch.empty(values.shape[1], dtype=torch.bool)
        factor = getattr(self._library.code, f"band_factor_{_name(values.dtype)}")
        self._split(factor, values, len(values), sources, growth or 0.0, self._bands, self.ok)

    def solve(self, rhs: Tensor, transpose: bool) -> Tensor:
        """Return (b, n) solutions; rows that are not ok may hold anything."""
        rhs = rhs.contiguous()
        x = torch.empty_like(rhs)
        solve = getattr(self._library.code, f"band_solve_{_name(rhs.dtype)}")
        self._split(solve, self._bands, self._order, int(transpose), rhs, x)
        return x

    def _split(self, function: Callable, *arguments: Tensor | np.ndarray | float) -> None:
        """Call the function for all groups, by as many threads as torch uses and as are worth starting."""
        given = [_address(a) for a in arguments]
        threads = max(1, min(torch.get_num_threads(), self._groups, len(self._bands) // NUMBERS_A_THREAD))
        if threads == 1:
            function(*self._shape, *given, 0, self._groups)
            return
        ends = [self._groups * k // threads for k in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:  # ctypes lets go of the interpreter during a call
            list(pool.map(lambda first, last: function(*self._shape, *given, first, last), ends[:-1], ends[1:]))


def band_sources(rows: np.ndarray, cols: np.ndarray, order: BandedOrder, symmetric: bool) -> np.ndarray:
    """Return for each number of a matrix's factor the entry that it starts as, -1 for zero.

    The lower half comes by columns, diagonal first; then, unless symmetric, the upper half by rows, the first place of
    each free.

    Parameters
    ----------
    rows, cols : (nnz,) of the entries: the lower triangle of a symmetric pattern, or all.
    order : the order of the unknowns and the bandwidths.
    symmetric : whether one half is stored.
    """
    row, col = order.place[rows], order.place[cols]
    low, high = np.minimum(row, col), np.maximum(row, col)
    lower_half = low * (order.lower + 1) + high - low
    upper_half = len(order.order) * (order.lower + 1) + low * (order.upper + 1) + high - low
    places = lower_half if symmetric else np.where(row >= col, lower_half, upper_half)
    sources = np.full(_numbers(order, symmetric), -1, dtype=np.int64)
    sources[places] = np.arange(len(rows))
    return sources


def band_bytes(order: BandedOrder, symmetric: bool, batch: int) -> int:
    """Return the bytes that factors of `batch` float64 matrices take, whole vectors of the widest kind."""
    lanes = LINE // 8
    return -(-batch // lanes) * LINE * _numbers(order, symmetric)


def _numbers(order: BandedOrder, symmetric: bool) -> int:
    return len(order.order) * (order.lower + 1 + (0 if symmetric else order.upper + 1))


def _aligned(count: int, dtype: torch.dtype) -> Tensor:
    """Return `count` numbers of fresh memory that begin where a vector may."""
    spare = LINE // dtype.itemsize
    memory = torch.from_numpy(np.empty(count + spare, dtype=_name(dtype)))
    start = -memory.data_ptr() % LINE // dtype.itemsize
    return memory[start : start + count]


def _name(dtype: torch.dtype) -> str:
    return "float32" if dtype == torch.float32 else "float64"


def _address(argument: Tensor | np.ndarray | float) -> float:
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    return argument.ctypes.data if isinstance(argument, np.ndarray) else argument
