"""Analyses of a model beside its motion: paths of equilibria under a growing load, and small vibrations."""

from torchdismech.analysis.following import EquilibriumPath, follow
from torchdismech.analysis.vibration import Modes, modes

__all__ = ["EquilibriumPath", "Modes", "follow", "modes"]
