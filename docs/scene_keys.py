"""The page of all keys of a scene, from the schema that scenes are read by."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from torchdismech.io.schema import Document
from torchdismech.io.schema_base import per_robot

__all__ = ["scene_keys"]


def scene_keys() -> str:
    """Return the page of all keys of a scene, table by table: type, default, what it is."""
    parts = [
        "# Scene keys",
        "Every table and key, from the schema that scenes are read by. [Scene files](../scene.md) shows them in one "
        "file. Keys with a star may be drawn for each robot in `[batch.randomize]`.",
    ]
    for name, field in Document.model_fields.items():
        title = f"[[{name}]]" if "list" in str(field.annotation) else f"[{name}]"
        parts += _tables_text(title, field)
    return "\n\n".join(parts) + "\n"


def _tables_text(title: str, field: FieldInfo) -> Iterator[str]:
    """Yield the sections of the tables that a key may hold; several are told apart by a key that has one value."""
    tables = list(_tables_of(field.annotation))
    for table in tables:
        yield from _table_text(title + (_kind(table) if len(tables) > 1 else ""), table)


def _table_text(title: str, table: type[BaseModel]) -> Iterator[str]:
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for key, field in table.model_fields.items():
        cells = [
            f"`{field.alias or key}`{_star(field)}",
            _type(field),
            _default(field),
            _plain(field.description or ""),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    said = re.sub(r"^\[+\w+\]+: ", "", (inspect.getdoc(table) or "").split("\n")[0])
    yield f"## {title}"
    yield _plain(said[:1].upper() + said[1:])
    yield "\n".join(rows)
    for key, field in table.model_fields.items():
        yield from _tables_text(f"{title.strip('[]')}.{key}", field)


def _kind(table: type[BaseModel]) -> str:
    fields = {key: field.annotation for key, field in table.model_fields.items()}
    choices = {key: typing.get_args(kind) for key, kind in fields.items() if typing.get_origin(kind) is typing.Literal}
    return "".join(f' with {key} = "{values[0]}"' for key, values in choices.items() if len(values) == 1)


def _tables_of(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the tables that a key may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _tables_of(part)


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
    if field.default is None:
        return ""
    return f"`{field.default!r}`".replace("'", '"').replace("True", "true").replace("False", "false")


def _plain(text: str) -> str:
    """Return text as it stands in a cell of a table."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ").replace("[[", "\\[\\[")
