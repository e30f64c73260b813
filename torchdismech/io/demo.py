"""The scene of `torchdismech demo`, which comes with the package in `demo/`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from torchdismech.errors import InputError

__all__ = ["FILES", "copied_scene", "refuse_changed"]

FILES = ("scene.toml", "rod.txt")


def refuse_changed(folder: Path) -> None:
    """Refuse a folder in which the user has changed a file of the demo: such files are never overwritten.

    Raises
    ------
    InputError
        A file has the name of one of the demo's and another content, or cannot be read.
    """
    for name in FILES:
        path = folder / name
        try:
            changed = path.exists() and path.read_text(encoding="utf-8", errors="replace") != _text(name)
        except OSError as error:
            raise InputError(f"--out {folder}: {name} cannot be read: {error}; name another folder") from error
        if changed:
            raise InputError(
                f"--out {folder}: {name} is there already, changed, and is not replaced: run your scene by "
                f"torchdismech simulate {folder / FILES[0]}, or name another folder for the demo"
            )


def copied_scene(folder: Path) -> Path:
    """Copy those files of the demo into a folder that are not there yet, and return the path of its scene.

    Raises
    ------
    InputError
        The folder cannot be written to.
    """
    for name in FILES:
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(_text(name), encoding="utf-8")
        except OSError as error:
            raise InputError(f"--out {folder}: {name} cannot be written there: {error}; name another folder") from error
    return folder / FILES[0]


def _text(name: str) -> str:
    """Return the text of a file of the demo as it comes with the package."""
    return (files("torchdismech") / "demo" / name).read_text(encoding="utf-8")
