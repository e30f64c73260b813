"""Cache of compiled libraries on disk: a directory that only its user can write to.

Code that is loaded from there is run, so no other user may be able to write there. Loading a truncated library would
crash the process, so the name of a library contains a checksum of its content: `native-KEY-CHECKSUM.so`.
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

OTHERS = stat.S_IWGRP | stat.S_IWOTH  # write permission of group and others
COMPILING = "compiling-"  # prefix of directories in which something is being compiled
DAY = 86_400.0  # s
UNUSED, UNFINISHED = 180 * DAY, DAY  # age at which unused libraries, and files of interrupted compilations, are removed
LONGEST, PAUSE = 300.0, 0.1  # s that a process waits for another one at most, and between two checks


def user_directory() -> Path:
    """Return the cache directory, torchdismech in $XDG_CACHE_HOME or ~/.cache; create it if it is missing.

    Raises
    ------
    OSError : if it cannot be created.
    RuntimeError : for a user without a home.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    directory = (Path(given) if given else Path.home() / ".cache") / "torchdismech"
    directory.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    return directory


def danger(directory: Path) -> str | None:
    """Return a text that says how other users could put files into a directory; None if they cannot.

    They can if they may write to it or to one of its parents. A parent with the sticky bit, such as /tmp, is safe:
    nobody can replace another user's files there.
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
    """Return the path of a library with that key that is complete and owned by the user; None if there is none."""
    of_key = f"native-{key}-"  # not by `glob`, which takes ten times as long in a directory of some hundred files
    names = sorted(name for name in os.listdir(directory) if name.startswith(of_key) and name.endswith(".so"))
    found = next((directory / name for name in names if _is_sound(directory / name)), None)
    if found is not None:
        with suppress(OSError):  # the directory may be read-only
            _mark_as_used(found)
    return found


def keep(made: Path, directory: Path, key: str) -> Path:
    """Move a library into the directory under its final name, atomically; return its path."""
    made.chmod(stat.S_IRWXU)
    path = directory / f"native-{key}-{_checksum(made.read_bytes())}.so"
    made.replace(path)
    return path


def _mark_as_used(path: Path) -> None:
    """Update the time stamp of a library that is in use, at most once a day, for `remove_old`."""
    if _age(path) > DAY:
        os.utime(path)


def remove_old(directory: Path) -> None:
    """Remove libraries that no process has loaded for half a year, and files of compilations that were killed.

    Such libraries belong to other versions, compilers or machines. Files that cannot be removed stay.
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
    """Return a context that one process, and one thread, at a time enters for a key; others wait up to `LONGEST` s.

    Nobody waits on a file system without locks.

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
    """Return the descriptor of a lock file, locked until it is closed; None if another process holds the lock.

    The system releases the lock when the process ends, in whatever way.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, stat.S_IRUSR | stat.S_IWUSR)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = path.stat()
    except (BlockingIOError, FileNotFoundError):  # another process holds it, or has just released and removed it
        os.close(opened)
        return None
    except OSError:  # the file system has no locks
        return opened
    if os.path.samestat(os.fstat(opened), there):
        return opened
    os.close(opened)
    return None


def _is_sound(path: Path) -> bool:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # a symbolic link, or not readable
        return False
    with open(opened, "rb") as file:
        info = os.fstat(opened)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & OTHERS:
            return False
        return path.stem.endswith(f"-{_checksum(file.read())}")


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
