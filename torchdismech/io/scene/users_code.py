"""Python files that a scene names: how they are run and imported, and how errors in them are located."""

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
from typing import Any

from torchdismech.errors import InputError
from torchdismech.io.scene.refusals import SceneError
from torchdismech.model import Model
from torchdismech.robot.state import Control

__all__ = ["UsersFunction", "line_in", "named_in_code", "naming_line"]

# by folder: the modules that were imported before the first of its files was run
_MODULES_BEFORE: dict[str, set[str]] = {}


class UsersFunction:
    """A function that a scene names by "file.py:function": its calls, in which errors name scene, file and line.

    Parameters
    ----------
    scene, key, name : the scene file, the key, and the name there; the file is run (see `named_in_code`).
    made : what messages call what returns its controls, if that is not the function itself.
    """

    def __init__(self, scene: Path, key: str, name: str, made: str = ""):
        self._path, self.function = named_in_code(scene, key, name)
        self._scene, self._key, self._attribute, self._made = scene, key, name.rpartition(":")[2], made

    def refused(self, problem: str) -> SceneError:
        """Return an error that names scene, file and function, and says the problem."""
        return SceneError(self._scene, self._key, f"{self._attribute} of {self._path} {problem}")

    def call(self, function: Callable, *arguments: Any) -> Any:
        """Call this function, or what it has made; raise what it raises as a `SceneError` that names its line."""
        try:
            return function(*arguments)
        except SceneError:  # of another call of the user's code, within this one
            raise
        except Exception as error:  # the user's code may raise anything
            raise self.refused(f"raised {type(error).__name__}{line_in(self._path, error)}: {error}") from error

    def checked(self, control: object, model: Model, batch: int) -> Control:
        """Return `control` if it is a `Control` that fits the robot; refuse anything else."""
        if not isinstance(control, Control):
            expected = "has to return a Control, such as control.replace(...)"
            raise self.refused(f"{self._made}{expected}, got {type(control).__name__}")
        try:
            model.check_control(control, batch)
        except InputError as error:
            raise self.refused(f"{self._made}returned what does not fit the robot: {error}") from error
        return control


def named_in_code(scene: Path, key: str, name: str, folder: Path | None = None) -> tuple[Path, Callable]:
    """Return the path and the function for a name "file.py:function", relative to a folder.

    Running the file runs whatever code is in it. It imports modules that lie beside it, as a script does.

    Parameters
    ----------
    scene, key : the file and the key in it that give the name, for messages.
    folder : by default that of the scene.
    """
    file, _, attribute = name.rpartition(":")
    path = (scene.parent if folder is None else folder) / file
    try:
        module = _run(path)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        reason = error.msg if isinstance(error, SyntaxError) else error
        problem = f"{path} does not run: {type(error).__name__}{line_in(path, error)}: {reason}"
        raise SceneError(scene, key, problem) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise SceneError(scene, key, f"{path} has no {attribute!r} that can be called")
    return path, function


def _run(path: Path) -> ModuleType:
    """Run a file and return its module, which stays in `sys.modules`, where dataclasses and pickle look for it."""
    absolute = path.absolute()
    digest = hashlib.sha256(str(absolute).encode()).hexdigest()[:12]
    module_name = f"torchdismech_scene_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(module_name, absolute)
    assert spec is not None and spec.loader is not None  # the schema asks for a name that ends in .py
    module = importlib.util.module_from_spec(spec)
    with _folder_first(str(absolute.parent)):
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    return module


@contextmanager
def _folder_first(folder: str) -> Iterator[None]:
    """Search a folder first for what the block imports, and last for what is imported later, in functions.

    Modules of the same names from folders of other users' files are forgotten before.
    """
    for name in _shadowing_modules(folder):
        del sys.modules[name]
    _MODULES_BEFORE.setdefault(folder, set(sys.modules))
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _shadowing_modules(folder: str) -> list[str]:
    """Return the modules that files of other folders imported from there, and that this folder has by the same name.

    Python would take them in place of those in this folder.
    """
    elsewhere = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name:
            home = str(Path(file).parents[1 if hasattr(module, "__path__") else 0])
            if home != folder and name not in _MODULES_BEFORE.get(home, {name}) and _has_module(folder, name):
                elsewhere.add(name)
    return [name for name in list(sys.modules) if name.partition(".")[0] in elsewhere]


def _has_module(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, f"{name}.py")) or os.path.isdir(os.path.join(folder, name))


@contextmanager
def naming_line(path: Path, what: str) -> Iterator[None]:
    """Raise what users' code raises in the block as an `InputError` that says which line of its file did.

    Refusals by the library pass: they are sentences already.

    Parameters
    ----------
    what : the beginning of the sentence: what was called.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # users' code may raise anything
        raise InputError(f"{what} raised {type(error).__name__}{line_in(path, error)}: {error}") from error


def line_in(path: Path, error: BaseException) -> str:
    """Return " in line ..", the innermost line of a file in an error's traceback; empty if the file is not in it.

    If the error was raised in another file of the same folder, that file and its line follow.
    """
    real_path = os.path.realpath(path)  # paths in tracebacks are absolute
    lines_of_files = [(os.path.realpath(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        lines_of_files.append((os.path.realpath(error.filename), error.lineno))
    lines = [line for file, line in lines_of_files if file == real_path]
    if not lines:
        return ""
    file, line = [entry for entry in lines_of_files if os.path.dirname(entry[0]) == os.path.dirname(real_path)][-1]
    return f" in line {lines[-1]}" + ("" if file == real_path else f", from line {line} of {os.path.basename(file)}")
