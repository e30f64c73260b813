"""Options that a config hands on to a function: checked against what its signature says, before it is called."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

from torchdismech.errors import InputError

__all__ = ["checked", "faults"]

SHOWN = 5  # faults in one message


def faults(error: ValidationError) -> str:
    """Return what pydantic found, in one line: each field, what was expected, what came."""
    found = []
    for fault in error.errors():
        place = ".".join(str(part)[:80] for part in fault["loc"] if not str(part).startswith("("))  # tags of unions
        came = "" if fault["type"] in ("value_error", "missing", "extra_forbidden") else f", got {fault['input']!r:.80}"
        expected = fault["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        expected = expected.replace("Field required", "it is missing")
        expected = re.sub(r"a valid dictionary( or instance of \w+)?", "a table", expected)
        if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            expected, came = "there is no such field", ""
        found.append(f"{place}: {expected}{came}" if place else expected)
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "; ".join([*found[:SHOWN], *more])


def checked(function: Callable[..., Any], options: Mapping[str, Any], where: str, given: tuple = ()) -> dict[str, Any]:
    """Return options converted to the types, and within the bounds, that a signature states.

    Parameters
    ----------
    function : whose parameters say what is expected; `Annotated[float, Field(gt=0)]` states bounds.
    where : begins the message; empty where the caller says it.
    given : parameters that are not options, as the caller passes them.

    Raises
    ------
    InputError
        An option that the function does not have, one that it needs, or one of a wrong type or size.
    """
    begin = f"{where}: " if where else ""
    takes: Any = function
    hints = typing.get_type_hints(takes.__init__ if isinstance(function, type) else takes, include_extras=True)
    own = {n: p for n, p in inspect.signature(function).parameters.items() if n not in given}
    unknown = [name for name in options if name not in own]
    if unknown:
        known = ", ".join(own) or "none"
        raise InputError(f"{begin}{function.__name__} has no {unknown[0]!r}; it takes: {known}")
    fields: dict[str, Any] = {  # a class of the user's need not say types: then any is right
        n: (hints.get(n, Any), ... if p.default is p.empty else p.default) for n, p in own.items()
    }
    settings = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        made = create_model(function.__name__, __config__=settings, **fields)(**plain)
    except ValidationError as error:
        raise InputError(f"{begin}{faults(error)}") from error
    return {name: getattr(made, name) for name in options}
