"""Types of the networks' options with their bounds, against which options from a config are checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

__all__ = ["Positive", "PositiveEach", "Rounds", "Strains", "Width", "Widths"]

Positive = Annotated[float, Field(gt=1e-15, le=1e15)]
PositiveEach = Annotated[tuple[Positive, ...], Field(min_length=1)]
Rounds = Annotated[int, Field(ge=1, le=32)]
Strains = Annotated[int, Field(ge=1, le=3)]
Width = Annotated[int, Field(ge=1, le=4096)]
Widths = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]
