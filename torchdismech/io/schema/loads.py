"""The tables of a scene file for loads on parts of a robot: [[point_force]], [[line_load]], [[moment]]."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from torchdismech.io.schema.base import (
    OF_NODES,
    Edges,
    Index,
    Nodes,
    NonEmpty,
    Pair,
    PerRobot,
    Stop,
    Table,
    Vector,
    ordered,
)

__all__ = ["LineLoad", "Moment", "PointForce"]

Sides = Annotated[NonEmpty[Pair[Index]], OF_NODES]


class Load(Table):
    """A load that acts from a start to a stop."""

    start: float = Field(-math.inf, description="time [s]; without it the load acts from the beginning")
    stop: Stop = Field(math.inf, description="time [s], or inf")

    @model_validator(mode="after")
    def _ordered(self) -> Load:
        ordered(self)
        return self


class PointForce(Load):
    """[[point_force]]: a constant force on nodes."""

    nodes: Nodes = Field(description="node indices")
    force: PerRobot[Vector] = Field(description="force on each node [x, y, z] in N")


class LineLoad(Load):
    """[[line_load]]: a constant force along lines, spread evenly over their rest length."""

    one_of = ("edges", "sides")

    edges: Edges | None = Field(None, description="rod edge indices")
    sides: Sides | None = Field(None, description="pairs of node indices, such as sides of triangles")
    load: PerRobot[Vector] = Field(description="force for each length [x, y, z] in N/m")


class Moment(Load):
    """[[moment]]: a constant moment on rods."""

    one_of = ("nodes", "edges")

    nodes: Nodes | None = Field(None, description="node indices; the edges at each share the moment")
    edges: Edges | None = Field(None, description="rod edge indices")
    moment: PerRobot[Vector] = Field(description="moment on each of them [N m]")
    frame: Literal["world", "material"] = Field(
        "world", description="axes: x, y, z, or m1, m2 and the tangent of the section, which it follows"
    )
