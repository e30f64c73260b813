"""The scene that the package brings along."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from torchdismech.errors import InputError

__all__ = ["FILES", "copied_scene"]

FILES = ("scene.toml", "rod.txt")


def copied_scene(folder: Path, overwrite: bool) -> Path:
    """Return the scene of the demo, copied with the file that it names into a folder, where it can be changed.

    Raises
    ------
    InputError
        The folder cannot be written to, or one of the files is there, was changed, and shall not be replaced.
    """
    for name in FILES:
        text = (files("torchdismech") / "demo" / name).read_text(encoding="utf-8")
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and not overwrite and path.read_text(encoding="utf-8") != text:
                raise InputError(
                    f"--out {folder}: {name} is there already, changed: name another folder, or pass --overwrite"
                )
            path.write_text(text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--out {folder}: {name} cannot be written there: {error}; name another folder") from error
    return folder / FILES[0]
