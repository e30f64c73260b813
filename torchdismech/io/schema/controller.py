"""The table of a scene file for a feedback controller: [controller]."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from torchdismech.io.schema.base import (
    FileName,
    FunctionName,
    Index,
    NonEmpty,
    NotNegative,
    PerRobot,
    Positive,
    Table,
    TimeTableName,
    exactly_one,
)

__all__ = ["Controller"]

# strains; curvature stands for kappa1 and kappa2
Strain = Literal["stretch", "curvature", "kappa1", "kappa2", "twist", "hinge_angle"]
ByStrain = Annotated[dict[Strain, NotNegative], Field(min_length=1)]  # of twist in rad/m, hinge_angle in rad
ElementsByStrain = Annotated[dict[Strain, NonEmpty[Index]], Field(min_length=1)]


class Controller(Table):
    """[controller]: what closes the loop."""

    kind: Literal["pi"] | None = Field(None, description='"pi": feedback from strains to natural strains')
    python: FunctionName | None = Field(None, description='"file.py:function"')
    fields: NonEmpty[Strain] = Field(["stretch", "curvature"], description="strains that are controlled")
    elements: ElementsByStrain | None = Field(None, description="{stretch = [..], ..}: of which elements")
    actuators: ElementsByStrain | None = Field(None, description="{stretch = [..], ..}: elements that act")
    target: FileName | None = Field(None, description="name of a table: x, y, z of each node")
    target_directors: FileName | None = Field(
        None, description="name of a table: x, y, z of the first director of each rod edge, in the target"
    )
    reference: TimeTableName | None = Field(None, description="name of a table: time, strains of each field")
    beyond: Literal["refuse", "hold"] = Field("refuse", description="what is before and after the reference")
    Kp: PerRobot[NotNegative] = Field(0.5, description="gain [1]")
    Ki: PerRobot[NotNegative] = Field(10.0, description="gain of the integral [1/s]")
    feed_forward: bool = Field(False, description="true or false: add the reference")
    smoothing: Annotated[int, Field(ge=0, le=1000)] = Field(0, description="passes of (1, 2, 1) / 4")
    rate: ByStrain | None = Field(None, description="{stretch = .., ..}: largest change in a second")
    limit: ByStrain | None = Field(None, description="{stretch = .., ..}: largest natural strain")
    least_length: Annotated[float, Field(gt=0, lt=1)] = Field(0.1, description="least share of rest lengths")
    every: Positive | None = Field(None, description="sampling time [s]")
    delay: Annotated[int, Field(ge=0, le=1000)] = Field(0, description="steps by which what it sees is late")
    noise: ByStrain | None = Field(None, description="{stretch = .., ..}: standard deviation of what it sees")

    @model_validator(mode="after")
    def _complete(self) -> Controller:
        if exactly_one(self, "kind", "python") == "python":
            if others := sorted(self.model_fields_set - {"python"}):
                raise ValueError(f'{others[0]} belongs to kind = "pi"; what python names has its own: remove the key')
            return self
        if "least_length" in self.model_fields_set and "stretch" not in self.fields:
            raise ValueError('least_length is of fields with "stretch"; these do not use it: remove the key')
        chosen = exactly_one(self, "target", "reference")
        if chosen == "target" and "beyond" in self.model_fields_set:
            raise ValueError("beyond belongs to reference; a target has no times: remove the key")
        if chosen == "reference" and self.target_directors is not None:
            raise ValueError("target_directors belongs to target: remove the key")
        return self
