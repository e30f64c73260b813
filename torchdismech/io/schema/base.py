"""What the tables of a scene file are made of: types of keys, strict base classes, and marks of what keys stand for."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

__all__ = [
    "MAX_COUNT",
    "NAMES_FILE",
    "NAMES_FUNCTION",
    "NAMES_TIME_TABLE",
    "OF_EDGES",
    "OF_NODES",
    "PER_ROBOT",
    "Direction",
    "Edges",
    "FileName",
    "FilledTable",
    "FunctionName",
    "Index",
    "Key",
    "Name",
    "Nodes",
    "NonEmpty",
    "NotNegative",
    "Pair",
    "PerRobot",
    "Positive",
    "Stop",
    "Table",
    "TimeTableName",
    "Triple",
    "Vector",
    "exactly_one",
    "is_marked",
    "marked",
    "ordered",
]


# marks of types: of a number that [batch.randomize] may draw for each robot, of the name of a file relative to the
# scene's folder, of that of a table over time, whose rows begin with their times, and of that of a function in a file,
# and of lists of indices
PER_ROBOT, NAMES_FILE, NAMES_TIME_TABLE = "may differ between robots", "names a file", "names a table over time"
NAMES_FUNCTION, OF_NODES, OF_EDGES = "names a function", "indices of nodes", "indices of rod edges"
MAX_COUNT = 2**31 - 1  # of anything that is counted

Key = tuple[str | int, ...]  # of a value in a scene, such as ("rod", 0, "youngs")
FileName = Annotated[str, Field(min_length=1, max_length=1000), NAMES_FILE]
TimeTableName = Annotated[FileName, NAMES_TIME_TABLE]
T = TypeVar("T")
PerRobot = Annotated[T, PER_ROBOT]
NonEmpty = Annotated[list[T], Field(min_length=1)]
Pair = Annotated[list[T], Field(min_length=2, max_length=2)]
Triple = Annotated[list[T], Field(min_length=3, max_length=3)]
Index = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Nodes = Annotated[NonEmpty[Index], OF_NODES]
Edges = Annotated[NonEmpty[Index], OF_EDGES]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Stop = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Vector = Triple[float]


def _nonzero(direction: list[float]) -> list[float]:
    """Return the vector; refuse one whose squared length is zero or infinite as a number."""
    if not 0 < sum(component * component for component in direction) < math.inf:
        raise ValueError("expected a direction that is not zero, and of a length whose square is a number")
    return direction


def _usable(name: str) -> str:
    """Return a name that reports can use; refuse what is not a letter and then letters, digits, _ or -."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ValueError(f"expected a letter and then letters, digits, _ or -, got {name!r}")
    return name


def _file_and_function(name: str) -> str:
    """Return the name "file.py:function"; refuse any other text."""
    file, _, function = name.rpartition(":")
    if not (file.endswith(".py") and function.isidentifier()):
        raise ValueError('expected "file.py:function"')
    return name


Direction = Annotated[Vector, AfterValidator(_nonzero)]
Name = Annotated[str, AfterValidator(_usable)]
FunctionName = Annotated[FileName, AfterValidator(_file_and_function), NAMES_FUNCTION]


class Table(BaseModel):
    """A table of a scene file: no key that is not listed, no conversion of types, finite numbers only."""

    # validators are built at their first use: most tables are part of another one, whose validator includes theirs
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)
    one_of: ClassVar[tuple[str, ...]] = ()  # keys of which a table has to have exactly one
    not_both: ClassVar[tuple[tuple[str, str], ...]] = ()  # keys of which a table has one at most
    of_laws: ClassVar[Mapping[str, Sequence[str]]] = {}  # the keys that a table needs by its law; others have them not

    @model_validator(mode="after")
    def _has_its_keys(self) -> Table:
        if self.one_of:
            exactly_one(self, *self.one_of)
        for first, second in self.not_both:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(f"expected {first} or {second}, got both")
        if self.of_laws:
            _refuse_other_laws(self, self.of_laws)
        return self


class FilledTable(Table):
    """A table that has at least one of its keys."""

    @model_validator(mode="after")
    def _not_empty(self) -> FilledTable:
        if not self.model_fields_set:
            raise ValueError(f"expected at least one of {', '.join(type(self).model_fields)}")
        return self


def exactly_one(table: Table, *names: str) -> str:
    """Return the name of the key that is given; refuse a table with none or several of them."""
    given = [name for name in names if getattr(table, name) is not None]
    if len(given) != 1:
        listed = " or ".join(names)
        raise ValueError(f"expected exactly one of {listed}, got {' and '.join(given) if given else 'none of them'}")
    return given[0]


def _refuse_other_laws(table: Any, of_laws: Mapping[str, Sequence[str]]) -> None:
    """Refuse a table without a key of its law, or with one of another; `of_laws` has them by law."""
    for law, names in of_laws.items():
        for name in names:
            if name in of_laws[table.law] and getattr(table, name) is None:
                raise ValueError(f'{name} is missing: law = "{table.law}" needs it')
            if name not in of_laws[table.law] and getattr(table, name) is not None:
                raise ValueError(f'{name} belongs to law = "{law}"; "{table.law}" does not use it: remove the key')


def ordered(table: Any) -> None:
    """Refuse a table that does not start before it stops."""
    if table.stop <= table.start:
        raise ValueError(f"expected start < stop, got start = {table.start}, stop = {table.stop}")


def is_marked(field: FieldInfo, mark: str) -> bool:
    """Return whether the type of a field, or a part of it, has one of the marks above."""
    return mark in (*field.metadata, *_metadata(field.annotation))


def marked(table: BaseModel, mark: str, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield (key, value) of what is given in a table, or in tables within it, and has a mark; `key` is the table's."""
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if value is not None and is_marked(field, mark):
            yield (*key, name), value
        elif isinstance(value, BaseModel):
            yield from marked(value, mark, (*key, name))
        elif isinstance(value, list):
            for k, entry in enumerate(value):
                if isinstance(entry, BaseModel):
                    yield from marked(entry, mark, (*key, name, k))


def _metadata(annotation: Any) -> Iterator[Any]:
    """Yield the metadata that `Annotated` attaches to an annotation or to any part of it."""
    yield from getattr(annotation, "__metadata__", ())
    for part in typing.get_args(annotation):
        yield from _metadata(part)
