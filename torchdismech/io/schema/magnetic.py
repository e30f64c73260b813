"""The table of a scene file for the field around its magnetised rods and shells: [magnetic]."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from torchdismech.io.schema.base import (
    PER_ROBOT,
    Direction,
    FunctionName,
    Table,
    TimeTableName,
    Vector,
    exactly_one,
)

__all__ = ["Dipole", "Gradient", "Magnetic", "Rotating"]


class Rotating(Table):
    """A field of constant size that turns in the plane of two axes."""

    amplitude: Annotated[float, PER_ROBOT] = Field(description="size of the field [T]")
    frequency: Annotated[float, PER_ROBOT] = Field(description="turns in a second [1/s]")
    plane: Literal["xy", "yx", "xz", "zx", "yz", "zy"] = Field(
        description='two axes: at phase 0 the field is along the first and turns to the second, as in "xz"'
    )
    phase: Annotated[float, PER_ROBOT] = Field(default=0.0, description="angle from the first axis at time 0 [rad]")


class Gradient(Table):
    """A field that is linear in space."""

    value: Annotated[Vector, PER_ROBOT] = Field(description="field at the center [x, y, z] in T")
    gradient: Annotated[list[Vector], Field(min_length=3, max_length=3)] = Field(
        description="its derivatives in T/m: a row for each component, a column for each axis"
    )
    center: Annotated[Vector, PER_ROBOT] = Field(default=[0.0, 0.0, 0.0], description="center [x, y, z] in m")


class Dipole(Table):
    """The field of a small magnet, at rest or moved."""

    moment: Annotated[Direction, PER_ROBOT] | None = Field(
        default=None, description="magnetic moment [x, y, z] in A m^2"
    )
    center: Annotated[Vector, PER_ROBOT] | None = Field(default=None, description="where the magnet is [x, y, z] in m")
    file: TimeTableName | None = Field(
        default=None, description="name of a table: time, its center x, y, z, moment x, y, z"
    )

    @model_validator(mode="after")
    def _at_rest_or_moved(self) -> Dipole:
        given = [name for name in ("moment", "center", "file") if getattr(self, name) is not None]
        if given not in (["moment", "center"], ["file"]):
            raise ValueError(
                f"expected moment and center, or a file of a magnet that moves; got {', '.join(given) or 'none'}"
            )
        return self


class Magnetic(Table):
    """[magnetic]: the field."""

    constant: Annotated[Vector, PER_ROBOT] | None = Field(default=None, description="field [x, y, z] in T")
    rotating: Rotating | None = Field(default=None, description="{amplitude = .., frequency = .., plane = ..}")
    gradient: Gradient | None = Field(default=None, description="{value = [..], gradient = [..], center = [..]}")
    dipole: Dipole | None = Field(default=None, description='{moment = [..], center = [..]} or {file = ".."}')
    file: TimeTableName | None = Field(default=None, description="name of a table: time, Bx, By, Bz")
    scale: Annotated[float, PER_ROBOT] = Field(default=1.0, description="factor of the field in the file")
    python: FunctionName | None = Field(default=None, description='"file.py:function"')

    @model_validator(mode="after")
    def _one_field(self) -> Magnetic:
        given = exactly_one(self, "constant", "rotating", "gradient", "dipole", "file", "python")
        if "scale" in self.model_fields_set and given != "file":
            raise ValueError(f"scale is a factor of the field in a file; {given} does not use it: remove the key")
        return self
