"""Lengths of tendons that motors take in beyond plain spools: by springs that keep tendons taut, play, winding."""

from __future__ import annotations

from torch import Tensor, nn

from models.mlp import mlp

__all__ = ["LearnedPulls"]


class LearnedPulls(nn.Module):
    """Lengths of all tendons as a smooth function of all motors' angles; zero as long as it is untrained.

    Parameters
    ----------
    columns, elements : numbers of motors and of tendons.
    width : of two hidden layers.
    angle : angle that counts as one, in the unit of the recordings; length : length for an output of one [m].
    """

    def __init__(self, columns: int, elements: int, width: int = 32, angle: float = 30.0, length: float = 1e-3):
        super().__init__()
        self.angle, self.length = angle, length
        self.network = mlp(columns, elements, (width, width))

    def forward(self, inputs: Tensor, time: Tensor) -> Tensor:
        """Return lengths (B, F, elements) [m] for angles (B, F, columns); they do not depend on the time."""
        return self.length * self.network(inputs / self.angle)
