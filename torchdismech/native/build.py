"""Builds C++ sources into a shared library and loads it: from the cache on disk, or by running the compiler.

Code is compiled for the instruction set of the machine, which takes some ten seconds on two cores for the files of this
package. Libraries are stored in the user's cache directory (`cache.py`) under a key made from the sources, the command,
and the macros that the compiler defines, which tell its version and the instruction set.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from torchdismech.errors import warn
from torchdismech.native import cache
from torchdismech.native.availability import Unavailable
from torchdismech.system.telling import tell

__all__ = ["Built", "built", "compiler"]

HEADERS = sorted(Path(__file__).parent.glob("*.h"))  # generated sources include them, too
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno")
NO_SPACE = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))  # messages of a compiler if the disk is full


class Built(NamedTuple):
    """A library that is loaded.

    Attributes
    ----------
    code : its functions.
    made_by : the compiler and its main flags, for messages.
    """

    code: ctypes.CDLL
    made_by: str


def built(sources: list[bytes], name: Path | str, more: Sequence[str] = ()) -> Built:
    """Return the library of some C++ sources, from the cache or compiled now.

    Parameters
    ----------
    name : name of the sources in error messages.
    more : compiler flags beside those that all sources get.

    Raises
    ------
    Unavailable : there is no compiler, it fails, or there is no safe directory that can be written.
    """
    command = compiler()
    flags, target = _flags_and_target(tuple(command))
    flags = [*flags, *more]
    made_by = " ".join([*command, "-O3", *(flag for flag in flags if flag not in FLAGS)])
    # with the compiler's macros in the key, different machines may share a cache directory
    parts = [*sources, *_headers().values(), shlex.join([*command, *flags]).encode(), target]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    try:
        return Built(_loaded(_kept_file(command, flags, key, sources, name)), made_by)
    except _Unkept as error:
        no_cache = str(error)
    try:
        with tempfile.TemporaryDirectory(prefix=cache.COMPILING) as scratch:
            _refuse_danger(Path(scratch))
            _warn_once(
                f"compiled code is made for this process alone, which takes seconds each time, as {no_cache}; set "
                "XDG_CACHE_HOME to a directory of your own to keep it"
            )
            # the file is not needed any more once the library is loaded
            return Built(_loaded(_library_file(command, flags, Path(scratch), key, sources, name)), made_by)
    except (OSError, _Unkept) as error:
        raise Unavailable(
            f"there is no safe place for compiled code: {no_cache}, and {error}; set XDG_CACHE_HOME to a directory of "
            "your own"
        ) from error


class _Unkept(Unavailable):
    """Compiled code cannot be stored in a directory: the message says why."""


def _kept_file(command: list[str], flags: list[str], key: str, sources: list[bytes], name: Path | str) -> Path:
    """Return the path of the library in the user's cache directory, after compiling it if it is not there.

    If several processes want the same library, one compiles it and the others wait.

    Raises
    ------
    _Unkept : nothing can be stored there, or other users could change it.
    """
    try:
        directory = _cache_directory()
        found = cache.find(directory, key)
        if found is not None:
            return found
        if len(sources) > 1:
            tell("compiling its own code for this machine: about ten seconds, once, then from the cache on disk")
        with cache.alone(directory, key):
            found = cache.find(directory, key)
            if found is None:
                found = _library_file(command, flags, directory, key, sources, name)
                cache.remove_old(directory)
            return found
    except OSError as error:
        raise _unwritable(error.filename, error) from error


def _cache_directory() -> Path:
    """Return the user's cache directory; refuse users without a home, and a directory where others could put files."""
    try:
        directory = cache.user_directory()
    except RuntimeError as error:  # no home
        raise _Unkept(str(error)) from error
    _refuse_danger(directory)
    return directory


def _refuse_danger(directory: Path) -> None:
    """Refuse a directory into which other users could put files."""
    danger = cache.danger(directory)
    if danger is not None:
        raise _Unkept(danger)


@lru_cache
def _warn_once(message: str) -> None:
    warn(message, RuntimeWarning)


@lru_cache
def _headers() -> dict[str, bytes]:
    """Return the text of each header that sources may include, by its name."""
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
    Unavailable : if there is none, or $CXX is no command.
    """
    given = os.environ.get("CXX", "")
    try:
        named = shlex.split(given)
    except ValueError as error:
        raise Unavailable(
            f"$CXX = {given!r} is no command ({error}); set CXX to a C++ compiler, or unset it"
        ) from error
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
    """Return the flags that the compiler accepts, and the macros that it defines with them."""
    for flags in ([*FLAGS, "-march=native"], [*FLAGS]):
        done = _run([*compiler, *flags, "-x", "c++", "-dM", "-E", os.devnull])
        if done.returncode == 0:
            return flags, done.stdout
    raise Unavailable(f"the C++ compiler {shlex.join(compiler)} fails: {_complaint(done)}; set CXX to GCC or clang")


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a compiler with messages in English, so that they can be searched."""
    try:
        return subprocess.run(command, capture_output=True, check=False, env=os.environ | {"LC_ALL": "C"})
    except OSError as error:
        raise Unavailable(
            f"the C++ compiler {command[0]} cannot be started ({error}); set CXX to GCC or clang"
        ) from error


def _complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the first line of a compiler's output that reports an error."""
    lines = _lines(done)
    return next((line for line in lines if "error" in line), lines[0] if lines else f"it returns {done.returncode}")


def _lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """Return the lines of a compiler's error output."""
    return done.stderr.decode(errors="replace").strip().splitlines()


def _unwritable(directory: Path | str, error: OSError) -> _Unkept:
    return _Unkept(f"{directory} cannot be written to ({error})")


def _library_file(
    compiler: list[str], flags: list[str], directory: Path, key: str, sources: list[bytes], name: Path | str
) -> Path:
    """Compile the sources into the directory and return the path of the library.

    The library is written in a subdirectory with an unpredictable name and then renamed, so that no process loads half
    of it.

    Raises
    ------
    _Unkept : the directory cannot be written, or its disk is full.
    Unavailable : the compiler fails.
    """
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=cache.COMPILING) as scratch:
            files = {f"{k}.cpp": text for k, text in enumerate(sources)}
            for file, text in (files | _headers()).items():
                (Path(scratch) / file).write_bytes(text)
            made = Path(scratch) / "native.so"
            done = _compiled_and_linked([*compiler, *flags], [Path(scratch) / file for file in files], made)
            if done.returncode == 0:
                return cache.keep(made, directory, key)
    except OSError as error:
        raise _unwritable(directory, error) from error
    if full := next((line for line in _lines(done) if any(words in line for words in NO_SPACE)), None):
        raise _Unkept(f"{directory} cannot be written to ({full})")
    raise Unavailable(
        f"the C++ compiler {shlex.join(compiler)} fails on {name}: {_complaint(done)}; set CXX to "
        "GCC 9 or clang 12 or newer"
    )


def _compiled_and_linked(command: list[str], files: list[Path], made: Path) -> subprocess.CompletedProcess[bytes]:
    """Compile files in parallel and link them; return the first compilation that failed, else the linking."""
    if len(files) == 1:
        return _run([*command, str(files[0]), "-o", str(made)])
    objects = [file.with_suffix(".o") for file in files]
    largest_first = sorted(zip(files, objects, strict=True), key=lambda pair: -pair[0].stat().st_size)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiling = [pool.submit(_run, [*command, "-c", str(file), "-o", str(to)]) for file, to in largest_first]
    failed = next((done for each in compiling if (done := each.result()).returncode), None)
    return failed or _run([*command, *map(str, objects), "-o", str(made)])
