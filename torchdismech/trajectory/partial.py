"""Files that replace others only once they are complete, and writes that are never partial."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

__all__ = ["remove_partial_files", "replacing", "write_all"]


@contextmanager
def replacing(path: Path) -> Iterator[FileIO]:
    """Yield a new file, open to read and write, that is renamed to `path` when the block ends; it stays open.

    Until then it has a random name beside `path`, so that nobody can put a link there beforehand. If the block fails,
    it is closed and removed, and `path` is unchanged.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    # 0o666 with the umask: the permissions of any new file
    number = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    stream = FileIO(number, "r+")
    try:
        yield stream
        os.close(os.dup(number))  # network file systems may report only at a close that they are full
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        stream.close()
        raise


def remove_partial_files(path: Path) -> None:
    """Remove the partial files of killed writers of `path`; only the holder of its owner mark may do this."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}.partial"):
        left.unlink(missing_ok=True)


def write_all(stream: FileIO, offset: int, data) -> None:
    """Write a whole buffer at an offset of a file, in several writes if one accepts only a part."""
    rest = memoryview(data)
    if rest.nbytes == 0:
        return
    rest = rest.cast("B")
    stream.seek(offset)
    while rest:
        rest = rest[stream.write(rest) :]
