"""The tables of a scene file for loads on parts of a robot: [[point_force]], [[line_load]], [[moment]]."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from torchdismech.io.schema.base import (
    OF_NODES,
    PER_ROBOT,
    Edges,
    Index,
    Nodes,
    Stop,
    Table,
    Vector,
    exactly_one,
    ordered,
)

__all__ = ["LineLoad", "Moment", "PointForce"]

Sides = Annotated[list[Annotated[list[Index], Field(min_length=2, max_length=2)]], Field(min_length=1), OF_NODES]


class Load(Table):
    """A load that acts from a start to a stop."""

    start: float = Field(default=-math.inf, description="time [s]; without it the load acts from the beginning")
    stop: Stop = Field(default=math.inf, description="time [s], or inf")

    @model_validator(mode="after")
    def _ordered(self) -> Load:
        ordered(self)
        return self


class PointForce(Load):
    """[[point_force]]: a constant force on nodes."""

    nodes: Nodes = Field(description="node indices")
    force: Annotated[Vector, PER_ROBOT] = Field(description="force on each node [x, y, z] in N")


class LineLoad(Load):
    """[[line_load]]: a constant force along lines, spread evenly over their rest length."""

    edges: Edges | None = Field(default=None, description="rod edge indices")
    sides: Sides | None = Field(default=None, description="pairs of node indices, such as sides of triangles")
    load: Annotated[Vector, PER_ROBOT] = Field(description="force for each length [x, y, z] in N/m")

    @model_validator(mode="after")
    def _somewhere(self) -> LineLoad:
        exactly_one(self, "edges", "sides")
        return self


class Moment(Load):
    """[[moment]]: a constant moment on rods."""

    nodes: Nodes | None = Field(default=None, description="node indices; the edges at each share the moment")
    edges: Edges | None = Field(default=None, description="rod edge indices")
    moment: Annotated[Vector, PER_ROBOT] = Field(description="moment on each of them [N m]")
    frame: Literal["world", "material"] = Field(
        default="world", description="axes: x, y, z, or m1, m2 and the tangent of the section, which it follows"
    )

    @model_validator(mode="after")
    def _somewhere(self) -> Moment:
        exactly_one(self, "nodes", "edges")
        return self
