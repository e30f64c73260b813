"""Magnetised rods in magnetic fields."""

from torchdismech.magnetics.fields import Constant, Dipole, Field, Gradient, Learned, Rotating, Table, Timed
from torchdismech.magnetics.force import Magnetic

__all__ = ["Constant", "Dipole", "Field", "Gradient", "Learned", "Magnetic", "Rotating", "Table", "Timed"]
