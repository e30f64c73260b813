"""OwnerMark: ensures one writer per file by a mark file beside it, which also works without file locks."""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from pathlib import Path

from torchdismech.errors import InputError
from torchdismech.trajectory.partial import remove_partial_files

__all__ = ["OwnerMark", "writable"]

MAX_BYTES = 4096  # how much of a mark is read

# file name endings that are refused for a trajectory, and what makes such a file from one
MAKERS = {
    (".mp4", ".gif", ".avi", ".mov", ".mkv", ".webm"): "torchdismech movie makes the movie",
    (".png", ".jpg", ".jpeg", ".pdf", ".svg"): "torchdismech plot makes the picture",
    (".glb", ".usda", ".usdc", ".pvd"): "torchdismech export makes that file",
    (".csv", ".tsv", ".txt", ".dat", ".xlsx"): "torchdismech export makes a table, in .csv",
    (".npz", ".npy", ".mat", ".json", ".pt", ".pth", ".pkl", ".toml", ".zip"): (
        "Trajectory.load makes tensors, and h5py arrays"
    ),
}


class OwnerMark:
    """The exclusive right to write a file, held until `release`, or until the process ends.

    It is a file `.NAME.owner` beside the file, which only one process can create. It names host and process, so that
    the mark of a dead process of this host can be taken over.

    Raises
    ------
    InputError
        Another process, or another writer of this process, holds the mark, or it cannot be created.
    """

    def __init__(self, path: Path):
        mark, owner = writable(path).with_name(f".{path.name}.owner"), _this_process()
        try:
            if not _create_mark(mark, owner):
                _take_from_dead(mark, path)
                if not _create_mark(mark, owner):
                    raise InputError(f"{path}: another process has just begun to write it: choose another file")
            self.release = weakref.finalize(self, _remove, mark, owner)
            remove_partial_files(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> OwnerMark:
        return self

    def __exit__(self, *_) -> None:
        self.release()


def writable(path: Path) -> Path:
    """Return the path; refuse the ending of another format, a folder, and a folder that does not exist."""
    for endings, maker in MAKERS.items():
        if path.suffix.lower() in endings:
            raise InputError(
                f"{path}: this writes a trajectory, in HDF5; give it another ending, such as "
                f"{path.with_suffix('.h5').name}, of which {maker}"
            )
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; expected the name of a file")
    return path


def _this_process() -> dict[str, str | int | None]:
    """Return the content of this process's marks: what identifies it among all processes, and the time."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "machine": _content("/etc/machine-id"),
        "boot": _content("/proc/sys/kernel/random/boot_id"),
        "processes": _process_space(),
        "process": pid,
        "process_started": _started(pid),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _create_mark(mark: Path, owner: dict) -> bool:
    """Create the mark file; return False if there is one already."""
    try:
        number = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        os.write(number, json.dumps(owner).encode())
    except OSError:
        mark.unlink(missing_ok=True)
        raise
    finally:
        os.close(number)
    return True


def _take_from_dead(mark: Path, path: Path) -> None:
    """Remove the mark of a dead process; raise an error if the process lives or may live."""
    owner = _read(mark)
    if owner is None:  # its owner removed it in the meantime
        return
    if not _has_died(owner):
        raise InputError(f"{path}: {_who(owner)} or choose another file{_remedy(owner, mark)}")
    # Only one process at a time may do this; otherwise one could remove the mark that another has just created in place
    # of the dead process's.
    turn = mark.with_name(f"{mark.name}.turn")
    if not _create_mark(turn, _this_process()):
        raise InputError(f"{path}: another process is about to write it; if there is none, delete {turn}")
    try:
        if _read(mark) == owner:
            mark.unlink()
    finally:
        turn.unlink()


def _remove(mark: Path, owner: dict) -> None:
    """Remove the mark if it still is that of this process; a forked child does not remove its parent's."""
    if os.getpid() == owner["process"] and _read(mark) == owner:
        mark.unlink(missing_ok=True)


def _read(mark: Path) -> dict | None:
    """Return the content of a mark: {} if it cannot be read or parsed, None if there is no mark."""
    try:
        number = os.open(mark, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return None
    except OSError:
        return {}
    try:
        content = json.loads(os.read(number, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(number)
    return content if isinstance(content, dict) else {}


def _has_died(owner: dict) -> bool:
    """Return whether the owner is known to be dead: a process of this machine that no longer runs."""
    here, pid = _this_process(), owner.get("process")
    if not isinstance(pid, int) or pid < 1 or any(owner.get(k) != here[k] for k in ("host", "machine")):
        return False
    if owner.get("boot") != here["boot"]:
        # the machine was rebooted since; without a machine id it may be another machine of the same host name
        return here["machine"] is not None
    if owner.get("processes") != here["processes"]:
        return False  # another container: its process numbers mean nothing here
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # a process of this number exists and belongs to another user
    return owner.get("process_started") != _started(pid)


def _who(owner: dict) -> str:
    """Return the part of an error message that tells who writes the file and what to do."""
    if not owner:
        return "another process writes it, or the mark that says so is damaged: wait for it"
    if owner.get("process") == os.getpid() and not _has_died(owner) and owner.get("host") == socket.gethostname():
        return f"this process writes it already since {owner.get('since')}: close its writer first"
    return f"process {owner.get('process')} on {owner.get('host')} writes it since {owner.get('since')}: wait for it"


def _remedy(owner: dict, mark: Path) -> str:
    return "" if owner.get("process") == os.getpid() else f"; if no such process runs any more, delete {mark}"


def _started(pid: int) -> str | None:
    """Return the start time of a process in Linux's clock ticks; None on other systems or if it has ended."""
    stat = _content(f"/proc/{pid}/stat")
    if stat is None:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]  # Z, X: a zombie or dead process, which does not write any more


def _process_space() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _content(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
