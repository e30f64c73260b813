"""Reading and writing the files of a run: atomic writes, a lock on the folder, I/O errors as one-sentence refusals."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchdismech.errors import InputError
from torchdismech.system.interrupts import held_back

__all__ = ["made_folder", "only_writer", "text_of", "write", "writing"]

TEXT_BYTES = 4_000_000  # the most that a text may have; configs have some kilobytes


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block, as of a full or read-only disk, into an InputError of one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror or error}; what is there already stays as it was: make room, "
            "or choose another folder"
        ) from error


def made_folder(folder: Path) -> None:
    """Create a folder and its parents, unless it exists."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder; refuse where another process holds it.

    The operating system releases the lock when its process ends, however that ends.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another fit writes there: wait for it, or choose another --out") from None
        except OSError as error:  # a file system without locks
            print(f"warning: {folder}: {error.strerror}: nothing keeps a second fit from writing there")
        yield
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes | str) -> None:
    """Write a file atomically: a kill, a signal or a full disk at any moment leaves the old content or the new one.

    The content goes to a file of an unpredictable name in the same folder, which is renamed once it is on the disk.
    """
    data = content.encode() if isinstance(content, str) else content
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    with writing(path), held_back():
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def text_of(path: Path) -> str:
    """Return the text of a UTF-8 file, without the byte order mark that some editors put first.

    Raises
    ------
    InputError
        It is no plain file, cannot be read, is larger than `TEXT_BYTES`, or is not UTF-8.
    """
    try:
        if not path.is_file():
            raise InputError(f"{path}: {'not a plain file' if path.exists() else 'no such file'}")
        size = path.stat().st_size
        if size > TEXT_BYTES:
            raise InputError(f"{path}: {size} bytes; expected a text of at most {TEXT_BYTES}")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from error
