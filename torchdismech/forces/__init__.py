"""External forces: each an `nn.Module` with its derivatives by position and velocity."""

from torchdismech.forces.base import Block, Force
from torchdismech.forces.damping import MassDamping, Viscous
from torchdismech.forces.loads import Buoyancy, Gravity, PointForce
from torchdismech.forces.local import LocalForce
from torchdismech.forces.resistive import QuadraticResistive, Resistive

__all__ = [
    "Block",
    "Buoyancy",
    "Force",
    "Gravity",
    "LocalForce",
    "MassDamping",
    "PointForce",
    "QuadraticResistive",
    "Resistive",
    "Viscous",
]
