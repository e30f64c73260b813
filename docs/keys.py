"""The pages of all keys of scenes and of fits' configs, from the schemas that these are read by."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import types
import typing
from collections.abc import Iterator

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from torchdismech.io.schema.base import PER_ROBOT, is_marked
from torchdismech.io.schema.scene import Document
from training.config import Config

__all__ = ["config_keys", "scene_keys"]


def scene_keys() -> str:
    """Return the page of all keys of a scene, table by table: type, default, what it is."""
    parts = [
        "# Scene keys",
        "Every table and key, from the schema that scenes are read by. [Scene files](../scene.md) shows them in one "
        "file. Keys with a star may be drawn for each robot in `[batch.randomize]`.",
    ]
    return _page(parts, Document)


def config_keys() -> str:
    """Return the page of all keys of a fit's config."""
    parts = [
        "# Config keys",
        "Every table and key of a config of `torchdismech train`, from the schema that configs are read by. "
        "[Fits to recordings](../training.md) says how they go together; `training.config.load` reads one from Python.",
    ]
    return _page([*parts, *_table_text("Without a table", Config)], Config)


def _page(parts: list[str], document: type[BaseModel]) -> str:
    tables = (_tables_text(f"[{name}]", field) for name, field in document.model_fields.items())
    return "\n\n".join([*parts, *itertools.chain(*tables)]) + "\n"


def _tables_text(title: str, field: FieldInfo) -> Iterator[str]:
    """Yield the sections of the tables that a key `[title]` may hold; several are told apart by a key of theirs."""
    name = title.strip("[]")
    if "list" in str(field.annotation):
        title = f"[[{name}]]"
    elif typing.get_origin(field.annotation) is dict:
        title, name = f"[{name}.NAME]", f"{name}.NAME"
    tables = list(_tables_of(field.annotation))
    for table in tables:
        yield from _table_text(title + (_kind(table) if len(tables) > 1 else ""), table)
        for key, inner in _fields(table).items():
            yield from _tables_text(f"[{name}.{key}]", inner)


def _table_text(title: str, table: type) -> Iterator[str]:
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    told = dict(_told(table))
    for key, field in _fields(table).items():
        if title == "Without a table" and any(_tables_of(field.annotation)):
            continue  # has a section of its own
        cells = [
            f"`{field.alias or key}`{_star(field)}",
            _type(field),
            _default(field),
            _plain(field.description or told.get(key, "")),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    said = re.sub(r"^\[+\w+\]+: ", "", (inspect.getdoc(table) or "").split("\n")[0])
    yield f"## {title}"
    yield _plain(said[:1].upper() + said[1:])
    yield "\n".join(rows)


def _fields(table: type) -> dict[str, FieldInfo]:
    """Return the keys of a table; tables without a check of their own are dataclasses."""
    if issubclass(table, BaseModel):
        return table.model_fields
    types_of = typing.get_type_hints(table)
    return {
        field.name: FieldInfo(annotation=types_of[field.name], default=field.default)
        for field in dataclasses.fields(table)
    }


def _told(table: type) -> Iterator[tuple[str, str]]:
    """Yield what a docstring's section "Attributes" says of each key."""
    _, _, section = (inspect.getdoc(table) or "").partition("Attributes\n----------\n")
    for entry in re.split(r"\n(?! )", section):
        for part in re.split(r"; (?=\w+(?:, \w+)* : )", " ".join(entry.split())):
            names, _, said = part.partition(" : ")
            yield from ((name, said) for name in names.split(", "))


def _kind(table: type) -> str:
    """Return by what a table is told apart from others in its place: a key of one value, or one that only it needs."""
    fields = {key: field.annotation for key, field in _fields(table).items()}
    choices = {key: typing.get_args(kind) for key, kind in fields.items() if typing.get_origin(kind) is typing.Literal}
    only = [f' with {key} = "{values[0]}"' for key, values in choices.items() if len(values) == 1]
    return only[0] if only else f" with {next(key for key, field in _fields(table).items() if field.is_required())}"


def _tables_of(annotation: object) -> Iterator[type]:
    """Yield the tables that a key may hold."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _tables_of(part)


def _star(field: FieldInfo) -> str:
    return "\\*" if is_marked(field, PER_ROBOT) else ""


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
        return names[annotation]
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
    return "table" if any(_tables_of(annotation)) else getattr(annotation, "__name__", str(annotation))


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "needed" if field.default_factory is None else ""
    if field.default is None or any(_tables_of(type(field.default))):
        return ""
    return f"`{field.default!r}`".replace("'", '"').replace("True", "true").replace("False", "false")


def _plain(text: str) -> str:
    """Return text as it stands in a cell of a table."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ").replace("[[", "\\[\\[")
