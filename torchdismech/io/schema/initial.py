"""The table of a scene file that says where its robots begin and how they move there: [initial]."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from torchdismech.io.schema.base import MAX_COUNT, FileName, Index, Nodes, PerRobot, Table, Vector

__all__ = ["Initial"]

MOTIONS = ("velocity", "angular_velocity", "velocity_file")


class Initial(Table):
    """[initial]: where the robots begin, and how they move there; without a key as built, at rest."""

    not_both = (("positions_file", "trajectory"),)

    positions_file: FileName | None = Field(None, description="name of a table: x, y, z of each node [m]")
    trajectory: FileName | None = Field(None, description="name of a trajectory file: a run begins in its frame")
    frame: Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)] = Field(
        -1, description="which frame of the trajectory, from 0; from -1 back the last ones"
    )
    robot: Index | None = Field(None, description="which robot of the trajectory; by default each its own")
    velocity: PerRobot[Vector] | None = Field(None, description="velocity [x, y, z] in m/s")
    angular_velocity: PerRobot[Vector] | None = Field(
        None, description="angular velocity [x, y, z] in rad/s about the center"
    )
    center: PerRobot[Vector] | None = Field(
        None, description="about which it turns [x, y, z] in m, by default the middle of mass"
    )
    nodes: Nodes | None = Field(None, description="indices of the nodes that move so, by default all")
    velocity_file: FileName | None = Field(None, description="name of a table: velocity x, y, z of each node")

    @model_validator(mode="after")
    def _consistent(self) -> Initial:
        if not self.model_fields_set:
            raise ValueError(f"expected at least one of positions_file, trajectory, {', '.join(MOTIONS)}")
        for name in ("frame", "robot"):
            if name in self.model_fields_set and self.trajectory is None:
                raise ValueError(f"{name} is of a trajectory, which is not given")
        if self.velocity_file is not None and not {"velocity", "angular_velocity"}.isdisjoint(self.model_fields_set):
            raise ValueError("expected velocity_file, or velocity and angular_velocity, got both")
        if self.center is not None and self.angular_velocity is None:
            raise ValueError("center is what angular_velocity turns about, which is not given")
        if self.nodes is not None and self.velocity is None and self.angular_velocity is None:
            raise ValueError("nodes are those with velocity and angular_velocity, which are not given")
        return self

    @property
    def moved(self) -> bool:
        """Whether the robots begin elsewhere than as built."""
        return self.positions_file is not None or self.trajectory is not None

    @property
    def motion(self) -> str | None:
        """The first key that gives the robots a velocity; None if none of them is there."""
        return next((name for name in MOTIONS if getattr(self, name) is not None), None)
