"""What is asked of models beside motions: equilibrium paths, small vibrations."""

from torchdismech.analysis.following import EquilibriumPath, follow
from torchdismech.analysis.vibration import Modes, modes

__all__ = ["EquilibriumPath", "Modes", "follow", "modes"]
