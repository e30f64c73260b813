"""Python that a scene names: run, with what goes wrong in it named."""

from __future__ import annotations

import importlib.util
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from torchdismech.io.scene.refusals import SceneError

__all__ = ["line_in", "named_in_code"]


def named_in_code(scene: Path, key: str, name: str) -> tuple[Path, Callable]:
    """Return the file and what is called so in it, for the name "file.py:function" relative to the scene's folder.

    Running the file runs whatever code is in it.
    """
    file, _, attribute = name.rpartition(":")
    path = scene.parent / file
    spec = importlib.util.spec_from_file_location(f"torchdismech_scene_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # the schema asks for a name that ends in .py
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises: named here, with its cause kept
        raise SceneError(scene, key, f"{path} does not run: {type(error).__name__}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise SceneError(scene, key, f"{path} has no function {attribute!r}")
    return path, function


def line_in(path: Path, error: Exception) -> str:
    """Return " in line ..": the last line of a file that an error came through; nothing if it did not."""
    frames, file = traceback.extract_tb(error.__traceback__), os.path.realpath(path)  # frames have whole paths
    lines = [frame.lineno for frame in frames if os.path.realpath(frame.filename) == file]
    return f" in line {lines[-1]}" if lines else ""
