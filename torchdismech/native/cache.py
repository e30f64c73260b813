"""Where compiled code is kept between processes: a directory that only its user can write to.

What is loaded from there runs, so nobody else may be able to put it there; and a library that is cut off would end the
process. A library's name holds the checksum of its content: `native-KEY-CHECKSUM.so`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["alone", "danger", "find", "keep", "remove_old", "user_directory"]

OTHERS = stat.S_IWGRP | stat.S_IWOTH  # may write
COMPILING = "compiling-"  # with which names begin of directories in which something is compiled
DAY = 86_400.0  # s
UNUSED, UNFINISHED = 180 * DAY, DAY  # after which a library, and what an interrupted compilation left, are removed
LONGEST, PAUSE = 300.0, 0.1  # s that a process waits for another one, and between two looks


def user_directory() -> Path:
    """Return the directory, made if it is missing: $XDG_CACHE_HOME or ~/.cache, /torchdismech.

    Raises
    ------
    OSError : if it cannot be made.
    RuntimeError : for a user without a home.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    directory = (Path(given) if given else Path.home() / ".cache") / "torchdismech"
    directory.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    return directory


def danger(directory: Path) -> str | None:
    """Return how others could put files into a directory; None where they cannot.

    They can if it or what it stands in is theirs to change. In a directory with the sticky bit, as /tmp, nobody can
    replace what is another's.
    """
    directory = directory.resolve()
    info = directory.stat()
    if info.st_uid != os.geteuid():
        return f"{directory} belongs to user {info.st_uid}, not to {os.geteuid()}"
    if info.st_mode & OTHERS:
        return f"others can write to {directory} (chmod go-w {directory} forbids it)"
    for parent in directory.parents:
        info = parent.stat()
        own_group = info.st_gid == os.getegid() == os.geteuid()  # many systems give each user a group of that number
        others = stat.S_IWOTH if own_group else OTHERS
        if info.st_mode & others and not info.st_mode & stat.S_ISVTX:
            return f"others can write to {parent}, where {directory} stands"
    return None


def find(directory: Path, key: str) -> Path | None:
    """Return the library of that key, if there is one that is whole and the user's own; anything else is left aside."""
    of_key = f"native-{key}-"  # by hand, as `glob` takes ten times as long in a directory of some hundred files
    names = sorted(name for name in os.listdir(directory) if name.startswith(of_key) and name.endswith(".so"))
    found = next((directory / name for name in names if _is_sound(directory / name)), None)
    if found is not None:
        with suppress(OSError):  # a directory that may be read alone
            _mark_as_used(found)
    return found


def keep(made: Path, directory: Path, key: str) -> Path:
    """Move a library into the directory, in one go, under the name by which it is found; return its path."""
    made.chmod(stat.S_IRWXU)
    path = directory / f"native-{key}-{_checksum(made.read_bytes())}.so"
    made.replace(path)
    return path


def _mark_as_used(path: Path) -> None:
    """Let `remove_old` know, once a day, that a library is in use."""
    if _age(path) > DAY:
        os.utime(path)


def remove_old(directory: Path) -> None:
    """Remove libraries that no process has loaded for half a year, and what compilations that were killed left.

    Such libraries are of other versions, compilers and machines. What cannot be removed stays.
    """
    for path in [*directory.iterdir()]:
        with suppress(OSError):
            age = _age(path)
            if path.match(f"{COMPILING}*") and age > UNFINISHED:
                shutil.rmtree(path)
            elif (path.match("native-*.so") and age > UNUSED) or (path.match("native-*.lock") and age > UNFINISHED):
                path.unlink()


def _age(path: Path) -> float:
    """Return how long ago a file was written or marked as used [s]."""
    return time.time() - path.lstat().st_mtime


@contextmanager
def alone(directory: Path, key: str) -> Iterator[None]:
    """Let one process, and one thread, at a time do something for a key; others wait, for `LONGEST` at most.

    Where the file system knows no locks nobody waits.

    Raises
    ------
    OSError : the directory cannot be written.
    """
    path = directory / f"native-{key}.lock"
    end = time.monotonic() + LONGEST
    while (lock := _locked(path)) is None and time.monotonic() < end:
        time.sleep(PAUSE)
    try:
        yield
    finally:
        if lock is not None:
            path.unlink(missing_ok=True)
            os.close(lock)


def _locked(path: Path) -> int | None:
    """Return a file that is locked for this process until it is closed; None where another one has it.

    The system unlocks it where a process ends in any way.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, stat.S_IRUSR | stat.S_IWUSR)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = path.stat()
    except (BlockingIOError, FileNotFoundError):  # another has it, or had it and removed it meanwhile
        os.close(opened)
        return None
    except OSError:  # no locks here
        return opened
    if os.path.samestat(os.fstat(opened), there):
        return opened
    os.close(opened)
    return None


def _is_sound(path: Path) -> bool:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # a link, or another's
        return False
    with open(opened, "rb") as file:
        info = os.fstat(opened)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & OTHERS:
            return False
        return path.stem.endswith(f"-{_checksum(file.read())}")


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
