"""Error messages for scene files, which name file, key, what was expected and what came."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from torchdismech.errors import InputError, any_of, shown
from torchdismech.io.schema.base import PER_ROBOT, Key, is_marked

__all__ = ["Key", "SceneError", "field_at", "naming", "sentences"]

WORDS = {
    r"a valid dictionary.*": "a table",
    r"a valid (list|tuple)": "a list",
    r"a valid number": "a number",
    r"a valid integer": "a whole number",
    r"a valid boolean": "true or false",
    r"a valid string": "text",
    r"List should have (at \w+ \d+) items? after validation, not \d+": r"expected a list of \1 items",
    r"Dictionary should have (at \w+ \d+) items? after validation, not \d+": r"expected a table of \1 key",
    r"String should have (at \w+ \d+) characters?": r"expected text of \1 characters",
}
MAX_LENGTH = 1000  # characters of a message: names and texts of a scene may be of any length


class SceneError(InputError):
    """A scene that cannot be run: the message names file, key, what was expected and what came."""

    def __init__(self, path: str | Path, key: str | Key, problem: str):
        name = _plain(key if isinstance(key, str) else ".".join(str(part) for part in key))
        super().__init__(f"{path}: {name}: {_plain(problem)}" if name else f"{path}: {_plain(problem)}")


@contextmanager
def naming(path: str | Path, key: str | Key) -> Iterator[None]:
    """Raise an `InputError` of the block as a `SceneError` that names the scene file and the key."""
    try:
        yield
    except SceneError:
        raise
    except InputError as error:
        raise SceneError(path, key, str(error)) from error


def _plain(text: str) -> str:
    """Return a message with control characters escaped, and its middle left out if it is longer than `MAX_LENGTH`."""
    shown = text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH // 2]} ... {text[-MAX_LENGTH // 2 :]}"
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in shown)


# ---- what pydantic found -----------------------------------------------------------------------------------------


def sentences(error: ValidationError, raw: dict[str, Any], document: type[BaseModel]) -> list[tuple[Key, str]]:
    """Return (key, sentence) for each fault that pydantic found in the tables of a file, once each."""
    return list(dict.fromkeys(_sentence(fault, raw, document) for fault in error.errors()))


def _sentence(fault: Any, raw: dict[str, Any], document: type[BaseModel]) -> tuple[Key, str]:
    key = _key_in_file(fault, raw)
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return key, _unknown_key(key, fault["loc"], document)
    if fault["type"] == "value_error":
        return key, fault["msg"].removeprefix("Value error, ")
    field = field_at(document, fault["loc"])
    description = field.description if field is not None and field.description else ""
    meaning = f" ({description})" if description else ""
    if fault["type"] == "missing":
        choices = _choices(field)
        return key, f"missing{f'; expected {choices}' if choices else ''}{meaning}"
    if fault["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_tag(key, fault, field)
    if fault["type"] == "list_type" and isinstance(fault["input"], dict) and len(key) == 1:
        return key, f"expected a list of tables: write [[{key[0]}]] in place of [{key[0]}]"
    if description and _names_alternative(fault["loc"], key):
        return key, f"expected {description}, got {shown(fault['input'])}"
    expected = _in_words_of_toml(fault["msg"])
    if fault["type"] in ("dict_type", "model_type") and (fields := _fields_of_named_tables(document, fault["loc"][:1])):
        expected = f"expected tables with names, as [{key[0]}.NAME], of the keys {', '.join(fields)}"
    if field is not None and fault["type"] in ("too_short", "too_long"):
        bound = fault["ctx"]["min_length" if fault["type"] == "too_short" else "max_length"]
        if bound in _exact_lengths(field.annotation, field.metadata):
            expected = re.sub(r"at \w+", "exactly", expected)
    return key, f"{expected}{meaning}, got {shown(fault['input'])}{_of_each_robot(key, field, fault)}"


def _fields_of_named_tables(document: type[BaseModel], location: Key) -> list[str]:
    """Return the keys of the tables that a key holds under names of the user's choice; [] if it holds none."""
    field = field_at(document, location)
    return _keys_at(document, location) if field is not None and typing.get_origin(field.annotation) is dict else []


def _wrong_tag(key: Key, fault: Any, field: FieldInfo | None) -> tuple[Key, str]:
    """Return key and sentence where the key that tells alternative tables apart is missing, or has an unknown value."""
    assert field is not None, "alternatives stand in a field"
    tag = fault["ctx"]["discriminator"].strip("'")
    choices = any_of(*(repr(name) for table in _tables(field.annotation) for name in _tags(table)))
    if fault["type"] == "union_tag_not_found":
        close = difflib.get_close_matches(tag, map(str, fault["input"]), n=1)
        return (*key, tag), f"missing{f' ({close[0]!r} is no key)' if close else ''}; expected {choices}"
    return (*key, tag), f"expected {choices}, got {shown(fault['input'][tag])}"


def _choices(field: FieldInfo | None) -> str:
    """Return the values that a key may have, in words: "'a', 'b' or 'c'"; empty unless its type lists them."""
    if field is None or typing.get_origin(field.annotation) is not typing.Literal:
        return ""
    return any_of(*map(repr, typing.get_args(field.annotation)))


def _of_each_robot(key: Key, field: FieldInfo | None, fault: Any) -> str:
    """Return a hint at [batch.randomize] where a list is given for a number that may be drawn; else an empty text."""
    is_list = fault["type"] == "float_type" and isinstance(fault["input"], list)
    if field is None or not is_list or not is_marked(field, PER_ROBOT):
        return ""
    name = ".".join(map(str, key))
    return f'; numbers of each robot stand in [batch.randomize]: "{name}" = {{values = [..]}}'


def _exact_lengths(annotation: Any, metadata: Sequence[Any] = ()) -> Iterator[int]:
    """Yield the length of each list in an annotation that allows only one length."""
    bounds = [bound for part in metadata for bound in (getattr(part, "metadata", None) or [part])]
    most = [bound.max_length for bound in bounds if hasattr(bound, "max_length")]
    yield from (bound.min_length for bound in bounds if getattr(bound, "min_length", None) in most)
    for part in typing.get_args(annotation):
        yield from _exact_lengths(part, getattr(part, "__metadata__", ()))


def _names_alternative(location: Key, key: Key) -> bool:
    """Return whether pydantic's location ends with the name of a type, one of those that a value may have.

    It is then not a key of the file.
    """
    return isinstance(location[-1], str) and location[-1] not in (key[-1], "[key]")  # [key]: what is wrong is the key


def _in_words_of_toml(message: str) -> str:
    """Return what pydantic expected, with the names that things have in a TOML file."""
    words = message.replace("Input should be", "expected").replace("Extra inputs", "unknown keys")
    for pattern, name in WORDS.items():
        words = re.sub(pattern, name, words)
    return words[0].lower() + words[1:]


def _key_in_file(fault: Any, raw: Any) -> Key:
    """Return a fault's location without what the file does not have: names of alternatives, the 0 of a single [rod]."""
    key: list[str | int] = []
    names_missing_key = fault["type"] in ("missing", "value_error")  # else its last part may be the name of a type
    for k, part in enumerate(fault["loc"]):
        last = k == len(fault["loc"]) - 1
        if isinstance(raw, dict):
            missing = last and names_missing_key and str(part).isidentifier() and part != raw.get("shape")
            if part not in raw and not missing:
                continue
            raw = raw.get(part)
        elif isinstance(raw, list | tuple) and isinstance(part, int):
            raw = raw[part] if part < len(raw) else None
        else:
            continue
        key.append(part)
    return tuple(key)


def _unknown_key(key: Key, location: Key, document: type[BaseModel]) -> str:
    known = _keys_at(document, location[:-1])
    return f"unknown key; {_meant(key, known, document)}expected one of {', '.join(known)}{_quotes(key)}"


def _meant(key: Key, known: Sequence[str], document: type[BaseModel]) -> str:
    """Return a hint at the key that is meant by an unknown one: one of nearly that name, or one of another table.

    It is empty where there is no such key.

    Parameters
    ----------
    known : the keys that its table may have.
    """
    slip = _nearest(str(key[-1]), known, cutoff=0.8)  # a letter or two are wrong
    return slip or _elsewhere(key, document) or _nearest(str(key[-1]), known, cutoff=0.6)


def _nearest(name: str, known: Sequence[str], cutoff: float) -> str:
    matches = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {matches[0]!r}? " if matches else ""


def _elsewhere(key: Key, document: type[BaseModel]) -> str:
    """Return a hint at the table to which a key in the wrong table belongs; empty where that is not known.

    Keys at the top of the file are looked for in all tables, other keys in the tables inside the one that they are in.
    What [robot] does not have, [rod] or [shell] may: materials and sections are theirs.
    A key that is the name of a table of the scene is named as such: in TOML all that follows the head of a table
    belongs to it, so a table written as a key ends up in the table before.
    """
    first, name = key[0], str(key[-1])
    if first != name and name in document.model_fields:
        is_list = typing.get_origin(document.model_fields[name].annotation) is list
        return f"{name} is a table of its own, {f'[[{name}]]' if is_list else f'[{name}]'}; "
    above = [] if len(key) == 1 else [str(first)]
    places = _places(name, above, key, document)
    if first == "robot" and not places:
        parts = {"rod", "shell"} & {*_keys_at(document, [])}
        places = [f"{part}.{name}" for part in sorted(parts) if name in _keys_at(document, [part])]
        places = places or [place for part in sorted(parts) for place in _places(name, [part], key, document)]
    return f"did you mean {' or '.join(places)}? " if 0 < len(places) <= 2 else ""


def _places(name: str, above: list[str], key: Key, document: type[BaseModel]) -> list[str]:
    """Return the dotted places of a key of this name in the tables inside another one, but for those around `key`."""
    tables = [table for table in _keys_at(document, above) if table not in key[:-1]]
    return [".".join([*above, table, name]) for table in tables if name in _keys_at(document, [*above, table])]


def _quotes(key: Key) -> str:
    """Return a hint at the quotes that a dotted name in [batch.randomize] lacks; empty for other keys."""
    if key[:2] != ("batch", "randomize") or "." in str(key[2]):
        return ""
    return f'; a name with dots stands in quotes: "{".".join(map(str, key[2:]))}" = {{..}}'


def _keys_at(document: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Return the keys that the table at pydantic's location may have; none where there is no table."""
    field = field_at(document, location)
    if field is None:
        return list(document.model_fields)
    tables = list(_tables(field.annotation))
    chosen = [table for table in tables if location[-1] in _tags(table)] or tables
    return list(dict.fromkeys(name for table in chosen for name in table.model_fields))


def field_at(document: type[BaseModel], location: Sequence[str | int]) -> FieldInfo | None:
    """Return the innermost named field at pydantic's location; None for the document itself."""
    field, tables = None, [document]
    for part in location:
        if isinstance(part, int):
            continue
        inner = next((t.model_fields[part] for t in tables if part in t.model_fields), None)
        if inner is not None:
            field, tables = inner, list(_tables(inner.annotation))
        elif any(part in _tags(table) for table in tables):
            tables = [table for table in tables if part in _tags(table)]
    return field


def _tags(table: type[BaseModel]) -> tuple[str, ...]:
    """Return the names by which pydantic's locations tell alternative tables apart: the shape, or the class."""
    shape = table.model_fields.get("shape")
    return (f"({table.__name__})",) if shape is None else typing.get_args(shape.annotation)


def _tables(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the classes of the tables that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _tables(part)
