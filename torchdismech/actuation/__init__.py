"""What pulls and pushes along routes through a robot: tendons and pressure chambers."""

from torchdismech.actuation.chamber import Chamber
from torchdismech.actuation.route import AtNodes, Fixed, OnEdges
from torchdismech.actuation.tendon import Tendon

__all__ = ["AtNodes", "Chamber", "Fixed", "OnEdges", "Tendon"]
