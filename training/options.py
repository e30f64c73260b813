"""Checks of options that a config hands on to a function, against the function's signature, before it is called."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from torchdismech.errors import InputError
from torchdismech.io.scene.refusals import sentences

__all__ = ["checked", "faults"]

SHOWN = 5  # faults in one message


def faults(error: ValidationError, raw: dict[str, Any], document: type[BaseModel]) -> str:
    """Return in one line the faults that pydantic found in the tables `raw` of a file, each by its key."""
    found = []
    for key, sentence in sentences(error, raw, document):
        place = ".".join(str(part)[:80] for part in key)
        found.append(f"{place}: {sentence}" if place else sentence)
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "; ".join([*found[:SHOWN], *more])


def _takes_lists(hint: Any) -> bool:
    """Return whether a type in a signature, or a part of it, is that of lists, to which tuples do not belong."""
    return list in (hint, typing.get_origin(hint)) or any(_takes_lists(part) for part in typing.get_args(hint))


def checked(function: Callable[..., Any], options: Mapping[str, Any], where: str, given: tuple = ()) -> dict[str, Any]:
    """Return options converted to the types, and checked against the bounds, that a function's signature states.

    What a function takes by `**` alone is passed on unchecked.

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
    parameters = [p for n, p in inspect.signature(function).parameters.items() if n not in given]
    own = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_any_name = any(p.kind == p.VAR_KEYWORD for p in parameters)
    unknown = [name for name in options if name not in own]
    if unknown and not takes_any_name:
        known = ", ".join(own) or "none"
        raise InputError(f"{begin}{function.__name__} has no {unknown[0]!r}; it takes: {known}")
    fields: dict[str, Any] = {  # a parameter without a type, as a user's class may have, takes anything
        n: (hints.get(n, Any), ... if p.default is p.empty else p.default) for n, p in own.items()
    }
    settings = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        plain = {
            n: tuple(v) if isinstance(v, list) and not _takes_lists(hints.get(n)) else v for n, v in options.items()
        }
        model = create_model(function.__name__, __config__=settings, **fields)
        made = model(**{name: value for name, value in plain.items() if name in own})
    except ValidationError as error:
        raise InputError(f"{begin}{faults(error, plain, model)}") from error
    return {name: getattr(made, name) if name in own else plain[name] for name in options}
