"""Networks that act inside the step, one a file; `FORCES` and `ENERGIES` are what a config may name.

A network of one's own needs no entry here: a config names it as "file.py:Name" (docs/training.md, "A network of your
own"). With `records = True` a class promises what recorded steps need of it (docs/speed.md, "What users write").
"""

from models.controller import CurvatureController
from models.convex_energy import ConvexEnergy
from models.drag_law import DragLaw
from models.free_nodes import FreeNodes
from models.message_passing import MessagePassingForce
from models.residual_energy import ResidualEnergy
from models.residual_force import ResidualForce

__all__ = [
    "ENERGIES",
    "FORCES",
    "ConvexEnergy",
    "CurvatureController",
    "DragLaw",
    "FreeNodes",
    "MessagePassingForce",
    "ResidualEnergy",
    "ResidualForce",
]

FORCES = {network.__name__: network for network in (DragLaw, MessagePassingForce, ResidualForce)}
ENERGIES = {network.__name__: network for network in (ConvexEnergy, ResidualEnergy)}
