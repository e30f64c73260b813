"""Networks that act inside a time step, one a file; those in `FORCES` and `ENERGIES` go by name in configs of fits.

A network of your own needs no entry here: a config names it as "file.py:Name" (docs/training.md, "A network of your
own"). A class with `records = True` promises what recorded steps need of it (docs/speed.md, "What users write").

Networks see and give numbers of a size of about one. Their classes have arguments for the scales: `speed`, `size` and
the like are the quantity that counts as one.
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
