"""The tables of a scene file for what acts along routes through a robot: [[tendon]], [[chamber]]."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from torchdismech.io.schema.base import (
    Edges,
    FileName,
    Nodes,
    NonEmpty,
    NotNegative,
    PerRobot,
    Positive,
    Table,
    TimeTableName,
    Vector,
    exactly_one,
)

__all__ = ["Chamber", "Tendon", "drive_file"]


class Tendon(Table):
    """[[tendon]]: a tendon through points of the robot."""

    not_both = (("offset", "offsets"),)

    nodes: Nodes | None = Field(None, description="node indices, from the motor on")
    edges: Edges | None = Field(None, description="rod edge indices, from the motor on")
    at: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="where along each edge, 0 to 1")
    offset: Vector | None = Field(None, description="of all points from their nodes or edges [m]")
    offsets: NonEmpty[Vector] | None = Field(None, description="of each point from its node or edge [m]")
    frame: Literal["world", "material"] = Field("world", description="axes of offset and offsets")
    motor: Vector | None = Field(None, description="a point in space before the others [m]")
    tension: PerRobot[NotNegative] | None = Field(None, description="tension at the motor [N]")
    tension_file: TimeTableName | None = Field(None, description="name of a table: time, tension")
    pull: PerRobot[float] | None = Field(None, description="length taken in by the motor [m]")
    pull_file: TimeTableName | None = Field(None, description="name of a table: time, pull")
    stiffness: PerRobot[Positive] | None = Field(None, description="EA of the tendon [N]")
    pretension: PerRobot[NotNegative] | None = Field(
        None, description="tension of the robot as built with nothing taken in [N]"
    )
    friction: PerRobot[NotNegative] | None = Field(None, description="coefficient at the points")
    slip_velocity: PerRobot[Positive] | None = Field(None, description="below it friction fades [m/s]")

    @model_validator(mode="after")
    def _complete(self) -> Tendon:
        where = exactly_one(self, "nodes", "edges")
        if where == "nodes" and "at" in self.model_fields_set:
            raise ValueError("at is a place along edges; points at nodes do not use it: remove the key")
        points = len(getattr(self, where))
        if self.offsets is not None and len(self.offsets) != points:
            raise ValueError(f"offsets: expected one of each of the {points} {where}, got {len(self.offsets)}")
        if points + (self.motor is not None) < 2:
            raise ValueError(f"expected two points or more: add to {where}, or a motor, where the tendon begins")
        driven = exactly_one(self, "tension", "tension_file", "pull", "pull_file")
        by_length = self.driven_by == "pull"
        for name in ("stiffness", "pretension"):
            if not by_length and getattr(self, name) is not None:
                raise ValueError(f"{name} is of tendons driven by length; {driven} does not use it: remove the key")
        if by_length and self.stiffness is None:
            raise ValueError("stiffness is missing: EA [N] of a tendon driven by length")
        if self.friction is not None and points + (self.motor is not None) == 2:
            raise ValueError("friction: a tendon of two points has no point between them to rub at: remove the key")
        if self.friction is None and self.slip_velocity is not None:
            raise ValueError("slip_velocity belongs to friction, which is not given")
        return self

    @property
    def driven_by(self) -> str:
        """The quantity that drives the tendon: "tension", or "pull", the length that is pulled in."""
        return "pull" if self.tension is None and self.tension_file is None else "tension"


class Chamber(Table):
    """[[chamber]]: a pressure chamber along a rod."""

    one_of = ("pressure", "pressure_file")
    driven_by: ClassVar[str] = "pressure"

    nodes: Annotated[Nodes, Field(min_length=2)] = Field(description="node indices along the chamber")
    offset: Vector = Field(description="from the nodes to the middle of the chamber's sections [m]")
    frame: Literal["world", "material"] = Field("world", description="axes of offset")
    area: PerRobot[Positive] = Field(description="area of its sections [m^2]")
    pressure: PerRobot[float] | None = Field(None, description="pressure over that outside [Pa]")
    pressure_file: TimeTableName | None = Field(None, description="name of a table: time, pressure")


def drive_file(table: Tendon | Chamber) -> FileName | None:
    """Return the name of the file that drives a tendon or chamber over time; None if a number does."""
    return getattr(table, f"{table.driven_by}_file")
