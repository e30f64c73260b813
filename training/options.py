"""Checks of options that a config hands on to a function, against the function's signature, before it is called."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from torchdismech.errors import InputError
from torchdismech.io.scene.refusals import Key, choices_of, field_at, keys_at, meant

__all__ = ["checked", "faults"]

SHOWN = 5  # faults in one message
IN_WORDS = {  # regular expressions of pydantic's phrases, and the words that take their place
    r"Input should be": "expected",
    r"a valid dictionary( or instance of \w+)?": "a table",
    r"a valid (list|tuple)": "a list",
    r"a valid number": "a number",
    r"a valid integer": "a whole number",
    r"a valid boolean": "true or false",
    r"a valid string": "text",
}


def faults(error: ValidationError, document: type[BaseModel]) -> str:
    """Return the faults that pydantic found in a document, in one line: each with its field and what was expected."""
    found = []
    for fault in error.errors():
        # tags of unions, such as "(Robot)", are no keys of the document
        key = tuple(part for part in fault["loc"] if not str(part).startswith("("))
        place, sentence = ".".join(str(part)[:80] for part in key), _sentence(fault, key, document)
        found.append(f"{place}: {sentence}" if place else sentence)
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "; ".join([*found[:SHOWN], *more])


def _sentence(fault: Any, key: Key, document: type[BaseModel]) -> str:
    """Return what is wrong with one field, and which values or fields it could have."""
    place, kind = fault["loc"], fault["type"]
    if kind == "missing":
        choices = choices_of(field_at(document, place))
        return f"it is missing; expected {choices}" if choices else "it is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = keys_at(document, place[:-1])
        return f"there is no such field; {meant(key, known, document)}expected one of {', '.join(known)}"
    if kind == "value_error":
        return fault["msg"].removeprefix("Value error, ")
    expected = fault["msg"]
    for pattern, words in IN_WORDS.items():
        expected = re.sub(pattern, words, expected)
    if kind in ("dict_type", "model_type") and (fields := _fields_of_named_tables(document, place[:1])):
        expected = f"expected tables with names, as [{place[0]}.NAME], of the fields {', '.join(fields)}"
    return f"{expected}, got {fault['input']!r:.80}"


def _fields_of_named_tables(document: type[BaseModel], place: Key) -> list[str]:
    """Return the fields of the tables that a field holds under names of the user's choice; [] if it holds none."""
    field = field_at(document, place)
    return keys_at(document, place) if field is not None and typing.get_origin(field.annotation) is dict else []


def checked(function: Callable[..., Any], options: Mapping[str, Any], where: str, given: tuple = ()) -> dict[str, Any]:
    """Return options converted to the types, and checked against the bounds, that a function's signature states.

    Parameters
    ----------
    function : what the options are for; `Annotated[float, Field(gt=0)]` in its signature states bounds.
    where : prefix of messages; empty where the caller adds one.
    given : names of parameters that the caller passes itself, so that they are no options.

    Raises
    ------
    InputError
        An option that the function does not have, a missing one, or one of a wrong type or size.
    """
    begin = f"{where}: " if where else ""
    takes: Any = function
    hints = typing.get_type_hints(takes.__init__ if isinstance(function, type) else takes, include_extras=True)
    own = {n: p for n, p in inspect.signature(function).parameters.items() if n not in given}
    unknown = [name for name in options if name not in own]
    if unknown:
        known = ", ".join(own) or "none"
        raise InputError(f"{begin}{function.__name__} has no {unknown[0]!r}; it takes: {known}")
    fields: dict[str, Any] = {  # a parameter without a type, as a user's class may have, takes anything
        n: (hints.get(n, Any), ... if p.default is p.empty else p.default) for n, p in own.items()
    }
    settings = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        model = create_model(function.__name__, __config__=settings, **fields)
        made = model(**plain)
    except ValidationError as error:
        raise InputError(f"{begin}{faults(error, model)}") from error
    return {name: getattr(made, name) for name in options}
