"""The scene that the package brings along."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from torchdismech.errors import InputError

__all__ = ["FILES", "copied_scene", "refuse_changed"]

FILES = ("scene.toml", "rod.txt")


def refuse_changed(folder: Path) -> None:
    """Refuse a folder in which a file has the name of one of the demo's and another content.

    Raises
    ------
    InputError
        There is such a file, or one that cannot be read.
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
    """Return the scene of the demo in a folder, where it can be changed; those of its files that are there stay.

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
    """Return what is in a file of the demo."""
    return (files("torchdismech") / "demo" / name).read_text(encoding="utf-8")
