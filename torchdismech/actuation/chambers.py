"""Pressure chambers in rods."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchdismech.actuation.routed import Route, RoutedForce, by_route, extent_of, per_route
from torchdismech.actuation.tension import Segments
from torchdismech.errors import InputError, warn
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import Given, untrained

__all__ = ["Chambers"]


class Chambers(RoutedForce):
    """Pressure chambers of constant section along parts of rods.

    Pressure p does the work p A dL where the line through the middle of a chamber's sections becomes longer by dL: on
    its part of the rod it is an axial force p A and, at an offset d, a moment p A d. That is a tendon that pushes: the
    energy is - p A L. Where a chamber ends inside a rod, the bending spring at its end gets half of the moment, because
    the chamber fills half of the length that belongs to this spring.

    A number holds for all chambers, or is given for each (T,), for each robot (B, 1), or for each of both (B, T).

    Parameters
    ----------
    routes : for each of the T chambers the middle of its sections: `AtNodes(nodes, offset)`.
    area : A [m^2].
    pressure : p over that outside [Pa]; below zero it sucks. `Control(values={"Chambers.pressure": (B, T)})` sets it in
        a step, if it was given for each chamber here.
    """

    conservative = True
    not_negative = ("area",)
    per_robot = ("offset", "area", "pressure")
    area: Tensor
    pressure: Tensor

    def __init__(self, routes: Sequence[Route | Sequence[Route]], area: Given, pressure: Given):
        super().__init__(routes)
        for name, value in (("area", area), ("pressure", pressure)):
            constant = per_route(value, f"Chambers.{name}", len(self.routes))
            if name == "area" and bool((constant <= 0).any()):
                raise InputError(f"Chambers.area: expected more than 0, got {constant.min().item():g}")
            setattr(self, name, untrained(constant))

    def bind(self, body: Body) -> None:
        """Find what carries the points; warn of sections that are larger than the robot."""
        super().bind(body)
        area, extent = float(self.area.max()), extent_of(body)
        if area > extent**2:
            warn(
                f"Chambers.area: {area:.4g} m^2 is more than the square of the robot's extent, {extent:.4g} m: give it "
                "in m^2, 1 mm^2 is 1e-6"
            )

    def tension_in(self, segments: Segments, rates: Tensor | None) -> Tensor:
        """Return the tensions - p A (M, B) of the segments [N]."""
        return self._thrust()[self.paths.path_of].expand_as(segments.length)

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the energy (B,) [J]."""
        return (self._thrust() * self.segments(state).total).sum(0)

    def _thrust(self) -> Tensor:
        """Return the tensions - p A (T, 1 or B) of the chambers [N]."""
        return by_route(-self.pressure * self.area, len(self.routes))
