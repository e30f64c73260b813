"""Files of a run: read where they are files, written whole or not at all; a full disk is told in one sentence."""

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

TEXT_BYTES = 4_000_000  # a config is some kilobytes


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what a full or read-only disk raises into one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror or error}; what is there already stays as it was: make room, "
            "or choose another folder"
        ) from error


def made_folder(folder: Path) -> None:
    """Make a folder where there is none."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Refuse to write into a folder while another process does; a lock ends with its process, however that ends."""
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
    """Write a file; a kill, a signal or a full disk at any moment leaves the old one or the new one.

    It is written under a name that nobody can know before, next to its place, and renamed when it is on the disk.
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
    """Return the text of a file, without the mark of byte order that some editors put first.

    Raises
    ------
    InputError
        It is no file, too large for a text that people write, or not UTF-8.
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
