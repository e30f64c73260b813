"""Compiled code for what torch has no fast operation for: the C++ files beside this one.

It is compiled at its first use for the machine's own instructions, which takes some ten seconds on two cores, and kept
in the user's cache directory (`cache.py`). It needs a C++ compiler, GCC or clang.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, warn
from torchdismech.native import cache
from torchdismech.native.taping import taped
from torchdismech.system.telling import tell

__all__ = ["Library", "Unavailable", "address", "compiled_source", "compiler", "function_of", "in_threads", "library"]

SOURCES = sorted(Path(__file__).parent.glob("*.cpp"))
HEADERS = sorted(Path(__file__).parent.glob("*.h"))  # sources include them by name, generated ones too
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno")
# Products are rounded before they are added. A compiler joins both in some places and not in others, so that two loops
# of the same formulas, of which one finds more than the other, would differ in the last bits, on some machines.
LOOP_FLAGS = ("-ffp-contract=off",)

NUMBER, ARRAY = ctypes.c_int64, ctypes.c_void_p  # what compiled functions take and return


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


def function_of(name: str, dtype: torch.dtype | None = None) -> Callable | None:
    """Return a compiled function, the one for this dtype if a dtype is given; None where there is none.

    Then torch has to do the same, which is slower. Solvers, and `torchdismech check`, say what is missing where nothing
    can be compiled.
    """
    try:
        code = library().code
    except Unavailable:
        return None
    if dtype is None:
        return getattr(code, name)
    suffix = {torch.float64: "float64", torch.float32: "float32"}.get(dtype)
    return None if suffix is None else getattr(code, f"{name}_{suffix}")


def _compiled() -> Library:
    """Return the code from the cache, compiled first if it is not there."""
    code, flags = _code([source.read_bytes() for source in SOURCES], SOURCES[0].parent)
    _declare(code)
    shown = " ".join([*compiler(), "-O3", *(flag for flag in flags if flag not in FLAGS)])
    return Library(code, shown, code.band_vector_bytes())


def compiled_source(text: str) -> ctypes.CDLL:
    """Return the compiled code of a generated source, from the cache or compiled now.

    Raises
    ------
    Unavailable : as for `library`.
    """
    code, _ = _code([text.encode()], "generated code", LOOP_FLAGS)
    return code


def _code(sources: list[bytes], name: Path | str, more: Sequence[str] = ()) -> tuple[ctypes.CDLL, list[str]]:
    """Return the code of sources, from the cache or compiled, and the flags it is compiled with, `more` among them."""
    command = compiler()
    flags, target = _flags_and_target(tuple(command))
    flags = [*flags, *more]
    # The macros tell the compiler's version and the instructions of this machine, so machines may share a directory.
    parts = [*sources, *_headers().values(), shlex.join([*command, *flags]).encode(), target]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    directory = _cache()
    danger = cache.danger(directory)
    if danger is None:
        found = cache.find(directory, key)
        if found is None and len(sources) > 1:
            tell("compiling its own code for this machine: about ten seconds, once, then from the cache on disk")
        return _loaded(found or _made(command, flags, directory, key, sources, name)), flags
    warn(
        f"compiled code is made for this process alone, which takes seconds each time, as {danger}; set "
        "XDG_CACHE_HOME to a directory of your own to keep it",
        RuntimeWarning,
    )
    with _scratch(None) as own:
        if (danger := cache.danger(own)) is not None:
            raise Unavailable(f"there is no safe place for compiled code: {danger}; set TMPDIR to a safe directory")
        # once it is loaded the file is not needed
        return _loaded(_made(command, flags, own, key, sources, name)), flags


@lru_cache
def _headers() -> dict[str, bytes]:
    """Return what sources may include: the text of each header, by its name."""
    return {header.name: header.read_bytes() for header in HEADERS}


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(
            f"the compiled code cannot be loaded ({error}); remove {path}, or set XDG_CACHE_HOME to another directory"
        ) from error


def compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, else the first that is found.

    Raises
    ------
    Unavailable : if there is none.
    """
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


@lru_cache
def _flags_and_target(compiler: tuple[str, ...]) -> tuple[list[str], bytes]:
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
    try:
        return cache.user_directory()
    except RuntimeError as error:
        raise Unavailable(f"there is no place for compiled code ({error}); set XDG_CACHE_HOME to one") from error
    except OSError as error:
        raise _unwritable(error.filename, error) from error


def _unwritable(directory: Path | str, error: OSError) -> Unavailable:
    return Unavailable(
        f"compiled code cannot be written to {directory} ({error}); set XDG_CACHE_HOME to a directory that is writable"
    )


def _made(
    compiler: list[str], flags: list[str], directory: Path, key: str, sources: list[bytes], name: Path | str
) -> Path:
    """Compile the sources, which errors call by the name, into the directory and return the library's path.

    It is made elsewhere in there, under a name that nobody can guess, and renamed: no process loads half of it.
    """
    with _scratch(directory) as own:
        files = {f"{k}.cpp": text for k, text in enumerate(sources)}
        for file, text in (files | _headers()).items():
            (own / file).write_bytes(text)
        made = own / "native.so"
        done = _built([*compiler, *flags], [own / file for file in files], made)
        if done.returncode != 0:
            raise Unavailable(
                f"the C++ compiler {shlex.join(compiler)} fails on {name}: {_complaint(done)}; set CXX to "
                "GCC 9 or clang 12 or newer"
            )
        try:
            return cache.keep(made, directory, key)
        except OSError as error:
            raise _unwritable(directory, error) from error


def _built(command: list[str], files: list[Path], made: Path) -> subprocess.CompletedProcess[bytes]:
    """Compile files side by side and link them; return the first compilation that failed, else the last process."""
    if len(files) == 1:
        return _run([*command, str(files[0]), "-o", str(made)])
    objects = [file.with_suffix(".o") for file in files]
    largest_first = sorted(zip(files, objects, strict=True), key=lambda pair: -pair[0].stat().st_size)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiling = [pool.submit(_run, [*command, "-c", str(file), "-o", str(to)]) for file, to in largest_first]
    failed = next((done for each in compiling if (done := each.result()).returncode), None)
    return failed or _run([*command, *map(str, objects), "-o", str(made)])


@contextmanager
def _scratch(directory: Path | None) -> Iterator[Path]:
    """Make a directory that only this user can enter, in the given one or where the system has such; remove it."""
    try:
        scratch = tempfile.TemporaryDirectory(dir=directory, prefix="compiling-")
    except OSError as error:
        raise _unwritable(directory or tempfile.gettempdir(), error) from error
    with scratch as name:
        yield Path(name)


def _declare(code: ctypes.CDLL) -> None:
    """Say what the functions take."""
    _declare_solvers_and_sums(code)
    _declare_pairs(code)
    _declare_chains(code)
    _declare_tapes(code)


def _declare_solvers_and_sums(code: ctypes.CDLL) -> None:
    """Say what takes whole vectors and matrices: bands, sums, norms, moves along edges."""
    code.band_vector_bytes.restype = NUMBER
    for dtype in ("float64", "float32"):
        for kind in ("band", "single_band"):
            factor, solve = getattr(code, f"{kind}_factor_{dtype}"), getattr(code, f"{kind}_solve_{dtype}")
            factor.argtypes = [NUMBER] * 4 + [ARRAY, ARRAY, NUMBER, ARRAY, ARRAY, ARRAY, ARRAY, NUMBER, NUMBER]
            solve.argtypes = [NUMBER] * 4 + [ARRAY, ARRAY, ARRAY, NUMBER, ARRAY, ARRAY, NUMBER, NUMBER]
            factor.restype = solve.restype = None
        numbers = getattr(code, f"single_band_numbers_{dtype}")
        numbers.argtypes, numbers.restype = [NUMBER] * 3, NUMBER
        weighted_sums = getattr(code, f"weighted_sums_{dtype}")
        weighted_sums.argtypes = [NUMBER] + [ARRAY] * 5 + [NUMBER, NUMBER]
        subtract_sums = getattr(code, f"subtract_sums_{dtype}")
        subtract_sums.argtypes = [NUMBER] + [ARRAY] * 5 + [NUMBER] + [ARRAY] * 2 + [NUMBER, NUMBER]
        norms, finite = getattr(code, f"weighted_norms_{dtype}"), getattr(code, f"finite_rows_{dtype}")
        norms.argtypes, finite.argtypes = [NUMBER] + [ARRAY] * 3 + [NUMBER] * 2, [NUMBER] + [ARRAY] * 2 + [NUMBER] * 2
        columns = getattr(code, f"finite_columns_{dtype}")
        columns.argtypes = [NUMBER] * 2 + [ARRAY] * 2 + [NUMBER] * 2
        totals = getattr(code, f"totals_{dtype}")
        totals.argtypes = [NUMBER] + [ARRAY] * 2 + [NUMBER] * 2
        norms.restype = finite.restype = columns.restype = totals.restype = None
        shifts = getattr(code, f"node_shifts_{dtype}")
        shifts.argtypes = [NUMBER] * 7 + [ARRAY] * 6 + [NUMBER, NUMBER]
        trees = getattr(code, f"tree_shifts_{dtype}")
        trees.argtypes = [NUMBER] * 7 + [ARRAY] * 5 + [NUMBER, NUMBER]
        weighted_sums.restype = subtract_sums.restype = shifts.restype = trees.restype = None
        for name, sizes, arrays in (("one_y", 4, 1), ("all_zero", 1, 1), ("all_finite", 1, 1), ("plane_of", 5, 4)):
            of_plane = getattr(code, f"{name}_{dtype}")
            of_plane.argtypes, of_plane.restype = [NUMBER] * sizes + [ARRAY] * arrays, NUMBER
    code.node_shift_blocks.argtypes, code.node_shift_blocks.restype = [NUMBER] * 2, NUMBER


def _declare_pairs(code: ctypes.CDLL) -> None:
    """Say what finds pairs that may touch, and what they add up to."""
    for dtype in ("float64", "float32"):
        placed = [ARRAY, NUMBER, ARRAY, ARRAY, ARRAY]
        further: dict[str, list] = {
            "values": [ARRAY, ARRAY, NUMBER, ARRAY],
            "touching": [ARRAY, ARRAY],
            "summary": [ARRAY, ARRAY, NUMBER, ARRAY, ARRAY],
            "known": [ARRAY, ARRAY],
            "least": [ARRAY, ARRAY],
            "forces": [ARRAY] * 3,
            "blocks": [ARRAY] * 4 + [NUMBER, ARRAY, ARRAY],
        }
        for name, more in further.items():
            of_pairs = getattr(code, f"pair_{name}_{dtype}")
            of_pairs.argtypes, of_pairs.restype = [*placed, *more], NUMBER if name == "touching" else None
    code.blocks_of_pairs.argtypes = [NUMBER] * 2 + [ARRAY, NUMBER, ARRAY, ARRAY, NUMBER, ARRAY]
    code.blocks_of_pairs.restype = NUMBER
    code.overlapping_boxes.argtypes = [NUMBER] * 2 + [ARRAY] * 2 + [NUMBER] + [ARRAY] * 3 + [NUMBER] * 2 + [ARRAY]
    code.overlapping_boxes.restype = NUMBER


def _declare_chains(code: ctypes.CDLL) -> None:
    """Say what is for chains of rigid elements."""
    for what in ("torque", "factor", "solve", "acceleration"):
        for dtype in ("float64", "complex128") if what in ("factor", "solve") else ("float64",):
            for kind in ("plane", "space"):
                function = getattr(code, f"{kind}_{what}_{dtype}")
                function.argtypes, function.restype = [NUMBER] * 3 + [ARRAY] * 3 + [NUMBER, NUMBER], None
    code.space_turn_float64.argtypes = [NUMBER] * 3 + [ARRAY] * 2 + [NUMBER, NUMBER]
    code.space_turn_float64.restype = None


def _declare_tapes(code: ctypes.CDLL) -> None:
    """Say what tapes call."""
    code.calls_in_turn.argtypes, code.calls_in_turn.restype = [NUMBER, ARRAY, ARRAY, NUMBER], NUMBER
    code.steps_in_turn.argtypes, code.steps_in_turn.restype = [ARRAY, NUMBER, NUMBER, ARRAY], NUMBER
    code.all_hold.argtypes, code.all_hold.restype = [NUMBER, ARRAY], NUMBER
    code.most_arguments.restype = NUMBER
    code.copies_in_turn.argtypes, code.copies_in_turn.restype = [NUMBER, ARRAY], None
    code.strided_operations.argtypes, code.strided_operations.restype = [NUMBER, ARRAY], NUMBER


def in_threads(
    function: Callable,
    arguments: tuple[Tensor | np.ndarray | float, ...],
    parts: int,
    most: int,
    reads: Sequence[Tensor] = (),
    writes: Sequence[Tensor] | None = None,
) -> None:
    """Call function(*arguments, first, last) for all of `parts`, by as many threads as torch uses, at most `most`.

    Tensors and arrays are handed over by their addresses; they have to be contiguous. `reads` are tensors that the
    function knows by other ways; `writes` as for `taped`.
    """
    given = tuple(map(address, arguments))
    threads = 1 if most < 2 else min(torch.get_num_threads(), parts, most)
    whole = partial(function, *given, 0, parts)
    work = whole if threads < 2 else partial(_divided, partial(function, *given), parts, threads)
    taped(work, *arguments, reads=reads, writes=writes)


def _divided(function: Callable, parts: int, threads: int) -> None:
    """Call function(first, last) for all parts by so many threads."""
    ends = [parts * k // threads for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:  # ctypes lets go of the interpreter during a call
        list(pool.map(function, ends[:-1], ends[1:]))


def address(argument: Tensor | np.ndarray | float | None) -> float | None:
    """Return where the numbers of a tensor or array stand in memory; anything else as it is.

    Raises
    ------
    InputError : the tensor is not on the CPU, whose code would end the process there.
    """
    if isinstance(argument, Tensor):
        if not argument.is_cpu:
            raise InputError(f"compiled code for the CPU: expected tensors on cpu, got one on {argument.device}")
        return argument.data_ptr()
    return argument.ctypes.data if isinstance(argument, np.ndarray) else argument
