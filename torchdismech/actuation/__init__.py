"""Actuators along routes through a robot: tendons, which pull, and pressure chambers, which push."""

from torchdismech.actuation.chambers import Chambers
from torchdismech.actuation.route import AtNodes, Fixed, OnEdges
from torchdismech.actuation.tendons import Tendons

__all__ = ["AtNodes", "Chambers", "Fixed", "OnEdges", "Tendons"]
