"""Pressure chambers in rods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from torchdismech.actuation.route import AtNodes
from torchdismech.actuation.routed import RoutedForce
from torchdismech.actuation.tension import Segments
from torchdismech.errors import InputError
from torchdismech.forces.base import scalar
from torchdismech.state import Control, State

__all__ = ["Chamber"]


class Chamber(RoutedForce):
    """A pressure chamber of constant section along part of a rod.

    Pressure p does the work p A dL where the line through the middle of its sections becomes longer by dL: on its part
    of the rod it is an axial force p A and, at an offset d, a moment p A d. That is a tendon that pushes: the energy is
    - p A L. At an end inside a rod half of the moment acts on the spring there, as half of the rod that belongs to it
    is chamber.

    Parameters
    ----------
    nodes : of the rod, along the chamber.
    offset : from the nodes to the middle of the chamber's sections, as in `AtNodes` [m].
    area : A, () or (B, 1) [m^2].
    pressure : p over that outside, () or (B, 1) [Pa]; below zero it sucks. `Control(values={"Chamber.pressure": ...})`
        sets it in a step.
    frame : the axes of `offset`, as in `AtNodes`.
    """

    conservative = True
    not_negative = ("area",)
    per_robot = ("offset", "area", "pressure")
    area: Tensor
    pressure: Tensor

    def __init__(self, nodes: Sequence[int], offset: Any, area, pressure, frame: str = "world"):
        super().__init__([AtNodes(nodes, offset, frame)])
        for name, value in (("area", area), ("pressure", pressure)):
            number = scalar(value, f"Chamber.{name}").detach().clone()
            if name == "area" and bool((number <= 0).any()):
                raise InputError(f"Chamber.area: expected more than 0, got {number.min().item():g}")
            setattr(self, name, nn.Parameter(number, requires_grad=False))

    def tension_in(self, segments: Segments, rates: Tensor | None) -> Tensor:
        """Return - p A (B, M) [N]."""
        return (-self.pressure * self.area).expand_as(segments.length)

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the energy (B,) [J]."""
        return (-self.pressure * self.area * Segments.between(self.points(state)).length).sum(1)
