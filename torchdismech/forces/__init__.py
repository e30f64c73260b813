"""External forces: each is an `nn.Module` that also gives its derivatives by position and velocity."""

from torchdismech.forces.base import Force
from torchdismech.forces.damping import MassDamping, Viscous
from torchdismech.forces.dependence import Block
from torchdismech.forces.loads import Buoyancy, Gravity, LineLoad, PointForce
from torchdismech.forces.local import LocalForce
from torchdismech.forces.moments import PointMoment
from torchdismech.forces.pairs import PairForce
from torchdismech.forces.resistive import QuadraticResistive, Resistive
from torchdismech.forces.surface import Drag, Pressure
from torchdismech.forces.thrust import Thrust

__all__ = [
    "Block",
    "Buoyancy",
    "Drag",
    "Force",
    "Gravity",
    "LineLoad",
    "LocalForce",
    "MassDamping",
    "PairForce",
    "PointForce",
    "PointMoment",
    "Pressure",
    "QuadraticResistive",
    "Resistive",
    "Thrust",
    "Viscous",
]
