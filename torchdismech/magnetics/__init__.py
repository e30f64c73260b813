"""Magnetised rods and shells in magnetic fields."""

from torchdismech.magnetics.field import Field
from torchdismech.magnetics.fields import Gradient, Learned
from torchdismech.magnetics.force import Magnetic, MagneticShells
from torchdismech.magnetics.magnets import Dipole, MovingDipole
from torchdismech.magnetics.uniform import Constant, Rotating, Table, Timed

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
