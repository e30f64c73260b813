"""What the tables of a scene file are made of: kinds of numbers, and a table that takes no others."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["PER_ROBOT", "Index", "NotNegative", "Positive", "Table", "Vector", "exactly_one", "nonzero"]


class _PerRobot:
    """Marks a number that [batch.randomize] may draw for each robot."""


PER_ROBOT = _PerRobot()

Index = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Vector = Annotated[list[float], Field(min_length=3, max_length=3)]


class Table(BaseModel):
    """A table of a scene file: no key that is not listed, no conversion of types, finite numbers only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def exactly_one(table: Table, *names: str) -> str:
    """Return which of the keys is given; refuse none and several."""
    given = [name for name in names if getattr(table, name) is not None]
    if len(given) != 1:
        listed = " or ".join(names)
        raise ValueError(f"expected exactly one of {listed}, got {' and '.join(given) if given else 'none of them'}")
    return given[0]


def nonzero(direction: list[float]) -> list[float]:
    """Return the vector; refuse one without a direction."""
    if not any(direction):
        raise ValueError("expected a direction that is not zero")
    return direction
