"""Python that a scene names: run, with what goes wrong in it named."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from torchdismech.io.scene.refusals import SceneError

__all__ = ["line_in", "named_in_code"]

_KNOWN: dict[str, set[str]] = {}  # by folder of files that were run: the modules that there were before


def named_in_code(scene: Path, key: str, name: str) -> tuple[Path, Callable]:
    """Return the file and what is called so in it, for the name "file.py:function" relative to the scene's folder.

    Running the file runs whatever code is in it. It imports modules that lie beside it, as a script does.
    """
    file, _, attribute = name.rpartition(":")
    path = scene.parent / file
    try:
        module = _run(path)
    except (Exception, SystemExit) as error:  # whatever the user's file raises: named here, with its cause kept
        said = error.msg if isinstance(error, SyntaxError) else error
        problem = f"{path} does not run: {type(error).__name__}{line_in(path, error)}: {said}"
        raise SceneError(scene, key, problem) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise SceneError(scene, key, f"{path} has no function {attribute!r}")
    return path, function


def _run(path: Path) -> ModuleType:
    """Return the module that a file makes; it stays among Python's modules, where dataclasses and pickles look."""
    whole = path.absolute()
    digest = hashlib.sha256(str(whole).encode()).hexdigest()[:12]
    called = f"torchdismech_scene_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(called, whole)
    assert spec is not None and spec.loader is not None  # the schema asks for a name that ends in .py
    module = importlib.util.module_from_spec(spec)
    with _folder_first(str(whole.parent)):
        sys.modules[called] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[called]
            raise
    return module


@contextmanager
def _folder_first(folder: str) -> Iterator[None]:
    """Let Python find modules in a folder before all others, and afterwards, for what functions import, at last."""
    for name in _strangers(folder):
        del sys.modules[name]
    _KNOWN.setdefault(folder, set(sys.modules))
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _strangers(folder: str) -> list[str]:
    """Return which modules were imported beside files of other folders and are called as one in this folder."""
    elsewhere = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name:
            home = str(Path(file).parents[1 if hasattr(module, "__path__") else 0])
            if home != folder and name not in _KNOWN.get(home, {name}) and _has_module(folder, name):
                elsewhere.add(name)
    return [name for name in list(sys.modules) if name.partition(".")[0] in elsewhere]


def _has_module(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, f"{name}.py")) or os.path.isdir(os.path.join(folder, name))


def line_in(path: Path, error: BaseException) -> str:
    """Return " in line ..": the last line of a file that an error came through; nothing if it did not.

    Where the error was raised in another file of the same folder, that one's line is said, too.
    """
    own = os.path.realpath(path)  # frames have whole paths
    places = [(os.path.realpath(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places.append((os.path.realpath(error.filename), error.lineno))
    lines = [line for file, line in places if file == own]
    if not lines:
        return ""
    file, line = [place for place in places if os.path.dirname(place[0]) == os.path.dirname(own)][-1]
    return f" in line {lines[-1]}" + ("" if file == own else f", from line {line} of {os.path.basename(file)}")
