"""The tables [robot] and [simulation] of a config, of a rod whose nodes are the markers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from training.config.base import Gravity, Stiffness, Table

__all__ = ["Robot", "Simulation"]


class Robot(Table):
    """A rod whose nodes are the markers; rest lengths are measured: the medians over the training recordings.

    Attributes
    ----------
    gripped : nodes that move as recorded, negative ones counted from the end.
    hold : what a grip fixes: "nodes" only, so that the rod bends at the last of them over half of either edge, or its
        "direction", too: the rod leaves the last node exactly along the gripped edge.
    hold_twist : whether edges between gripped nodes are kept from turning about themselves.
    linear_density : [kg/m]. Positions cannot tell it: it sets the scale of all forces.
    bending : EI to start from [N m^2]; twisting : GJ to start from [N m^2]; stretching : EA [N].
    relaxation_time : of bending and twisting [s] (Kelvin-Voigt); drag : force per length and velocity [Pa s].
    hysteresis : bending stiffness of strands that rub on each other, before they slide, as a share of `bending`;
        their state is not measured, so a window begins as if they had never slid.
    hysteresis_limit : the curvature [1/m] that they resist at most (`elastic.Dahl`).
    gravity : [m/s^2].
    """

    gripped: list[int] = Field(min_length=1)
    hold: Literal["nodes", "direction"] = "nodes"
    hold_twist: bool = True
    linear_density: float = Field(0.1, gt=1e-9, le=1e6)
    bending: Stiffness = 5e-3
    twisting: Stiffness = 3e-3
    stretching: Stiffness = 2e3
    relaxation_time: float = Field(0.01, gt=1e-12, le=1e6)
    drag: float = Field(0.02, gt=1e-12, le=1e9)
    hysteresis: float = Field(0.0, ge=0, le=1e3)
    hysteresis_limit: float = Field(1.0, gt=1e-6, le=1e6)
    gravity: tuple[Gravity, Gravity, Gravity] = Field((0.0, 0.0, -9.81), strict=False)

    @model_validator(mode="after")
    def _limit_of_strands(self) -> Robot:
        if not self.hysteresis and self.changed("hysteresis_limit"):
            raise ValueError("hysteresis_limit: is of strands, which hysteresis gives: set that, or leave it out")
        return self


class Simulation(Table):
    """How steps are taken.

    Attributes
    ----------
    integrator : "implicit_euler", "implicit_midpoint" or "newmark".
    substeps : steps between two frames.
    force_tolerance : largest residual of a step [N], at most 1.
    relative_tolerance : largest residual of a step over the size of the acting forces.
    max_substeps : most parts that a failing step is divided into.
    compile : whether to compile what steps evaluate: true, false, or "auto", where the fit is long enough to gain.
    """

    integrator: Literal["implicit_euler", "implicit_midpoint", "newmark"] = "implicit_euler"
    substeps: int = Field(1, ge=1, le=1000)
    force_tolerance: float = Field(1e-6, gt=1e-15, le=1)
    relative_tolerance: float = Field(1e-6, ge=0, le=0.01)
    max_substeps: int = Field(4, ge=0, le=1024)
    compile: Literal["auto", True, False] = "auto"
