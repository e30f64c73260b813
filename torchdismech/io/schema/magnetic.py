"""The table of a scene file for the field around its magnetised rods and shells: [magnetic]."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from torchdismech.io.schema.base import (
    Direction,
    FunctionName,
    PerRobot,
    Table,
    TimeTableName,
    Triple,
    Vector,
    exactly_one,
)

__all__ = ["Dipole", "Gradient", "Magnetic", "Rotating"]


class Rotating(Table):
    """A field of constant size that turns in the plane of two axes."""

    amplitude: PerRobot[float] = Field(description="size of the field [T]")
    frequency: PerRobot[float] = Field(description="turns in a second [1/s]")
    plane: Literal["xy", "yx", "xz", "zx", "yz", "zy"] = Field(
        description='two axes: at phase 0 the field is along the first and turns to the second, as in "xz"'
    )
    phase: PerRobot[float] = Field(0.0, description="angle from the first axis at time 0 [rad]")


class Gradient(Table):
    """A field that is linear in space."""

    value: PerRobot[Vector] = Field(description="field at the center [x, y, z] in T")
    gradient: Triple[Vector] = Field(
        description="its derivatives in T/m: a row for each component, a column for each axis"
    )
    center: PerRobot[Vector] = Field([0.0, 0.0, 0.0], description="center [x, y, z] in m")


class Dipole(Table):
    """The field of a small magnet, at rest or moved."""

    moment: PerRobot[Direction] | None = Field(None, description="magnetic moment [x, y, z] in A m^2")
    center: PerRobot[Vector] | None = Field(None, description="where the magnet is [x, y, z] in m")
    file: TimeTableName | None = Field(None, description="name of a table: time, its center x, y, z, moment x, y, z")

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

    constant: PerRobot[Vector] | None = Field(None, description="field [x, y, z] in T")
    rotating: Rotating | None = Field(None, description="{amplitude = .., frequency = .., plane = ..}")
    gradient: Gradient | None = Field(None, description="{value = [..], gradient = [..], center = [..]}")
    dipole: Dipole | None = Field(None, description='{moment = [..], center = [..]} or {file = ".."}')
    file: TimeTableName | None = Field(None, description="name of a table: time, Bx, By, Bz")
    scale: PerRobot[float] = Field(1.0, description="factor of the field in the file")
    python: FunctionName | None = Field(None, description='"file.py:function"')

    @model_validator(mode="after")
    def _one_field(self) -> Magnetic:
        given = exactly_one(self, "constant", "rotating", "gradient", "dipole", "file", "python")
        if "scale" in self.model_fields_set and given != "file":
            raise ValueError(f"scale is a factor of the field in a file; {given} does not use it: remove the key")
        return self
