"""The pages that are generated: tutorials from their scripts, the API from docstrings, scene keys from the schema.

They are written to `docs/generated`, which git ignores. A public name without a docstring is refused.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import annotated_types
import jupytext
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from torchdismech.io.schema import Document
from torchdismech.io.schema_base import per_robot

__all__ = ["ROOMS", "Room", "documented_names", "scene_keys", "write"]


@dataclass(frozen=True)
class Room:
    """A page of the API reference: what it is called, the modules whose public names it has, the guide to it."""

    title: str
    modules: tuple[str, ...]
    guide: str = ""


ROOMS = {
    "building": Room(
        "Building a robot",
        ("builder", "materials", "geometry.curves", "geometry.meshes", "io.dismech", "io.meshes"),
        "rods.md",
    ),
    "model": Room("Model, state and control", ("model", "state", "errors")),
    "integrate": Room("Steps", ("integrate", "rollout"), "speed.md"),
    "trajectory": Room("Trajectories", ("trajectory",), "scene.md"),
    "forces": Room("Forces", ("forces",), "gradients.md"),
    "elastic": Room("Elastic terms and energies", ("elastic",), "shells.md"),
    "contact": Room("Contact", ("contact",), "contact.md"),
    "magnetics": Room("Magnetised rods", ("magnetics",), "magnetics.md"),
    "control": Room("Closed loops", ("control",), "control.md"),
    "trainable": Room("Trainable constants", ("trainable",), "gradients.md"),
    "vibration": Room("Vibrations", ("vibration",), "modes.md"),
    "rigid": Room("Chains of rigid elements", ("rigid",), "rigid_elements.md"),
    "constant_curvature": Room("Pneumatic arms", ("constant_curvature",), "pneumatic_arm.md"),
    "environments": Room("Environments for learning", ("environments",), "environments.md"),
    "view": Room("Looking at runs", ("view", "view.page", "view.movie", "view.export"), "looking.md"),
    "scenes": Room("Scenes from Python", ("io.scene",), "scene.md"),
    "testing": Room("Checks of your own terms", ("testing",), "extending.md"),
    "solvers": Room("Linear solvers", ("solve.linear", "sparse"), "speed.md"),
}


def write(source: Path) -> None:
    """Write all generated pages below `source/generated`."""
    folder = source / "generated"
    for name, text in _texts(source):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # else a second build reads it again
            path.write_text(text, encoding="utf-8")


def _texts(source: Path) -> Iterator[tuple[str, str]]:
    for script in sorted((source / "tutorials").glob("*.py")):
        yield f"tutorials/{script.stem}.md", tutorial(script)
    yield "scene_keys.md", scene_keys()
    yield "reference/index.md", _names_of_the_package()
    for page, room in ROOMS.items():
        yield f"reference/{page}.md", _reference(room)


def tutorial(script: Path) -> str:
    """Return the page of a tutorial: its prose as it is, its code in blocks."""
    text = jupytext.writes(jupytext.read(script, fmt="py:percent"), fmt="md")
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    return f"{body}\n*This page is `docs/tutorials/{script.name}`: it runs as it is, and opens as a notebook by jupytext.*\n"


# ---- the API -----------------------------------------------------------------------------------------------------


def documented_names(module: types.ModuleType) -> list[str]:
    """Return the public names of a module; refuse those that nothing is said about."""
    names = list(module.__all__)
    silent = [name for name in names if not _said(getattr(module, name))]
    if silent:
        raise ValueError(
            f"{module.__name__}: without a docstring: {', '.join(silent)}: write one, or leave it out of __all__"
        )
    return names


def _said(thing: object) -> bool:
    """Whether a class, function or module has a docstring of its own; of data it is the comment in the source."""
    if isinstance(thing, type) or callable(thing) or isinstance(thing, types.ModuleType):
        return bool(inspect.getdoc(thing))
    return True


def _reference(room: Room) -> str:
    guide = f"Guide: [{room.guide.removesuffix('.md')}](../../{room.guide}).\n\n" if room.guide else ""
    return f"# {room.title}\n\n{guide}" + "\n".join(_module_text(f"torchdismech.{name}", room) for name in room.modules)


def _module_text(name: str, room: Room) -> str:
    documented_names(importlib.import_module(name))
    heading = f"## {name}\n\n" if len(room.modules) > 1 else ""
    return f"{heading}```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n   :show-inheritance:\n```\n"


def _names_of_the_package() -> str:
    """Return the page that says where each name of `import torchdismech` is documented."""
    public = importlib.import_module("torchdismech.public")
    homes = {name: page for page, room in ROOMS.items() for module in room.modules for name in _members(module)}
    rows = []
    for name in documented_names(public):
        thing = getattr(public, name)
        page = _room_of(thing) if isinstance(thing, types.ModuleType) else homes.get(name)
        if page is None:
            raise ValueError(
                f"torchdismech.{name} is on no page of the reference: add its module to ROOMS in docs/pages.py"
            )
        said = (inspect.getdoc(thing) or "").split("\n")[0]
        rows.append(f"| [`{name}`]({page}.md) | {said} |")
    table = "\n".join(["| name | what it is |", "|---|---|", *rows])
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *ROOMS, "```"])
    return (
        "# API reference\n\nPublic tensors have the batch first; units are SI; float64 unless asked otherwise. These are "
        f"the names of `import torchdismech`; each room has more.\n\n{table}\n\n{toctree}\n"
    )


def _members(module: str) -> list[str]:
    return list(importlib.import_module(f"torchdismech.{module}").__all__)


def _room_of(module: types.ModuleType) -> str | None:
    name = module.__name__.removeprefix("torchdismech.")
    return next((page for page, room in ROOMS.items() if name in room.modules), None)


# ---- scene keys --------------------------------------------------------------------------------------------------


def scene_keys() -> str:
    """Return the page of all keys of a scene, table by table: type, default, what it is."""
    parts = [
        "# Scene keys",
        "Every table and key, from the schema that scenes are read by. [Scene files](../scene.md) shows them in one file. "
        "Keys with a star may be drawn for each robot in `[batch.randomize]`.",
    ]
    for name, field in Document.model_fields.items():
        table = _table_of(field.annotation)
        if table is not None:
            listed = "list" in str(field.annotation)
            parts += list(_table_text(f"[[{name}]]" if listed else f"[{name}]", table))
    return "\n\n".join(parts) + "\n"


def _table_text(title: str, table: type[BaseModel]) -> Iterator[str]:
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    inner = []
    for key, field in table.model_fields.items():
        rows.append(
            f"| `{field.alias or key}`{_star(field)} | {_type(field)} | {_default(field)} | {_plain(field.description or '')} |"
        )
        below = _table_of(field.annotation)
        if below is not None:
            inner.append((f"{title.strip('[]')}.{key}", below))
    yield f"## {title}"
    yield _plain(inspect.getdoc(table) or "").split("\n")[0]
    yield "\n".join(rows)
    for name, below in inner:
        yield from _table_text(name, below)


def _table_of(annotation: object) -> type[BaseModel] | None:
    """Return the table that a key holds, if it does."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_table_of(part) for part in typing.get_args(annotation))
    return next((table for table in found if table is not None), None)


def _star(field: FieldInfo) -> str:
    return "\\*" if per_robot(field) else ""


def _type(field: FieldInfo) -> str:
    """Return a key's type in the words of a TOML file, with its bounds."""
    return " ".join([_words(field.annotation), *filter(None, map(_bound, field.metadata))])


def _bound(mark: object) -> str:
    match mark:
        case annotated_types.Gt(gt=low):
            return f"> {low}"
        case annotated_types.Ge(ge=low):
            return f"&ge; {low}"
        case annotated_types.Le(le=high):
            return f"&le; {high}"
        case annotated_types.Lt(lt=high):
            return f"< {high}"
    return ""


def _words(annotation: object) -> str:
    names = {float: "number", int: "whole number", bool: "true or false", str: "text"}
    if annotation in names:
        return names[typing.cast(type, annotation)]
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{part!r}`".replace("'", '"') for part in parts)
    if origin is typing.Annotated:
        return _words(parts[0])
    if origin is list:
        return f"list of {_words(parts[0])}"
    if origin is dict:
        return "table"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(part) for part in parts if part is not type(None)))
    return "table" if _table_of(annotation) else getattr(annotation, "__name__", str(annotation))


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "needed" if field.default_factory is None else ""
    if field.default is None:
        return ""
    return f"`{field.default!r}`".replace("'", '"').replace("True", "true").replace("False", "false")


def _plain(text: str) -> str:
    """Return text as it stands in a cell of a table."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ").replace("[[", "\\[\\[")
