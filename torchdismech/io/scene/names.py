"""Dotted names of the keys of a scene, such as "rod.1.section.radius"."""

from __future__ import annotations

import copy
import re
import tomllib
import typing
from typing import Any

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError, shown
from torchdismech.io.schema.scene import Document

__all__ = ["number_in_list", "number_of_table", "put", "setting"]

SEVERAL = {name for name, field in Document.model_fields.items() if typing.get_origin(field.annotation) is list}
ALONE = {"rod", "shell"}  # those of `SEVERAL` that a scene may write as a single [table]


def setting(text: str) -> tuple[str, Any]:
    """Return the dotted key and the value of "key=value" from a command line.

    The value is read as TOML is; where it is not TOML it is text, which needs no quotes then.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (equals and key):
        raise InputError(f"--set: expected KEY=VALUE, got {text!r:.80}")
    try:
        read = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        return key, value
    return key, read["value"] if len(read) == 1 else value


def put(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set the key with a dotted name to a value, in the tables of a scene as they are read.

    Refused are names of places that there are not; the value itself is checked later, with the tables.
    """
    if isinstance(value, np.ndarray | np.generic | Tensor):
        value = value.tolist()
    elif isinstance(value, dict | list):  # other names may lead into it
        value = copy.deepcopy(value)
    parts = _as_written(tables, key)
    inside: Any = tables
    for k, part in enumerate(parts):
        so_far = ".".join(parts[:k])
        if not isinstance(inside, dict | list):
            raise InputError(f"{so_far} is {shown(inside)}: there is no {part!r:.80} in it to be changed")
        entry_key: Any = number_in_list(so_far, part, len(inside)) if isinstance(inside, list) else part
        if k == len(parts) - 1:
            inside[entry_key] = value
        else:
            inside = inside.setdefault(entry_key, {}) if isinstance(inside, dict) else inside[entry_key]


def _as_written(tables: dict[str, Any], key: str) -> list[str]:
    """Return the parts of a dotted key, with the number of its table if the file has [[rod]], without it for [rod]."""
    first, *rest = key.split(".")
    if not rest or first not in SEVERAL:
        return [first, *rest]
    table = tables.get(first)
    if table == [] or (table is None and first not in ALONE):
        raise InputError(f"there is no [[{first}]] in the scene to be changed")
    number = number_of_table(first, rest[0], len(table) if isinstance(table, list) else 1)
    if isinstance(table, list):
        return [first, "0", *rest] if number is None else [first, *rest]
    return [first, *rest] if number is None else [first, *rest[1:]]


def number_of_table(name: str, part: str, count: int) -> int | None:
    """Return the number of the table, out of `count` called `name`, that a part of a dotted name gives.

    None: the part is a key, as the number of a table that stands alone may be left out.
    """
    if count == 1 and part.isidentifier():
        return None
    number = _number(part)
    if number is not None and number < count:
        return number
    of_several = f"of one of the {count} tables, 0 to {count - 1}, as in {name}.0"
    expected = of_several if count > 1 else "0, as there is one table, or none"
    raise InputError(f"expected the number {expected}, got {part!r:.80}")


def number_in_list(name: str, part: str, count: int) -> int:
    """Return the index, below `count`, that a part of a dotted name gives for the list called `name`."""
    number = _number(part)
    if number is not None and number < count:
        return number
    expected = f"an index 0 to {count - 1}" if count else "no index, as it is empty"
    raise InputError(f"{name}: expected {expected}, got {part!r:.80}")


def _number(part: str) -> int | None:
    """Return the whole number that a text is; None if it is not one, or larger than any index."""
    return int(part) if re.fullmatch("[0-9]{1,10}", part) else None
