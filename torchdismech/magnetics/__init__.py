"""Magnetised rods and shells in magnetic fields."""

from torchdismech.magnetics.fields import (
    Constant,
    Dipole,
    Field,
    Gradient,
    Learned,
    MovingDipole,
    Rotating,
    Table,
    Timed,
)
from torchdismech.magnetics.force import Magnetic, MagneticShells

__all__ = [
    "Constant",
    "Dipole",
    "Field",
    "Gradient",
    "Learned",
    "Magnetic",
    "MagneticShells",
    "MovingDipole",
    "Rotating",
    "Table",
    "Timed",
]
