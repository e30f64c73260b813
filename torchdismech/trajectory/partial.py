"""Files that appear whole under their name or not at all."""

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
    """Yield a new file, to read and write, that takes the place of `path` when the block ends; it stays open.

    Until then it stands beside `path` under a name that nobody can foresee, and is never opened through a link. If the
    block fails it is closed and removed, and `path` is what it was.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    # the rights that any new file gets
    number = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    stream = FileIO(number, "r+")
    try:
        yield stream
        os.close(os.dup(number))  # file systems of other machines may say only now that they are full
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        stream.close()
        raise


def remove_partial_files(path: Path) -> None:
    """Remove what killed writers of `path` left beside it; only for whoever has its owner mark."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}.partial"):
        left.unlink(missing_ok=True)


def write_all(stream: FileIO, offset: int, data) -> None:
    """Write all of a buffer at a place of a file; a single write may take a part."""
    rest = memoryview(data)
    if rest.nbytes == 0:
        return
    rest = rest.cast("B")
    stream.seek(offset)
    while rest:
        rest = rest[stream.write(rest) :]
