"""Random numbers of an episode: a function of the robot's seed and of which of its episodes it is.

So what a robot draws does not depend on the other robots, on when they begin anew, or on how many there are.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from torchdismech.control.noise import uniform

__all__ = ["Draws"]

FAR = 2**60  # where calls of draws with a name begin: further than anybody counts


class Draws:
    """Draws for one episode of each robot; each call draws further numbers.

    Parameters
    ----------
    seed, episode : (B,) int64.
    first : number of the first call, from which it counts on.
    """

    def __init__(self, seed: Tensor, episode: Tensor, first: int = 0):
        self.seed, self.episode = seed, episode
        self._calls = first

    def named(self, name: str) -> Draws:
        """Return draws of the same episodes that depend on a name, and not on what else is drawn."""
        digest = hashlib.sha256(name.encode()).digest()
        return Draws(self.seed, self.episode, FAR + int.from_bytes(digest[:7], "big"))

    def uniform(self, low: float, high: float, count: int | None = None) -> Tensor:
        """Return numbers (B,), or (B, count), that are spread evenly between two bounds, in float64."""
        self._calls += 1
        drawn = uniform(self.seed, self.episode, self.episode.new_full(self.episode.shape, self._calls), count or 1)
        drawn = low + (high - low) * drawn
        return drawn[:, 0] if count is None else drawn

    def loguniform(self, low: float, high: float, count: int | None = None) -> Tensor:
        """Return numbers (B,), or (B, count), whose logarithms are spread evenly between those of two bounds."""
        return self.uniform(math.log(low), math.log(high), count).exp()

    def normal(self, mean: float, deviation: float, count: int | None = None) -> Tensor:
        """Return normal numbers (B,), or (B, count), in float64."""
        # by Box and Muller's transform, as `control.noise.normal`
        first, second = self.uniform(0.0, 1.0, count), self.uniform(0.0, 1.0, count)
        return mean + deviation * torch.sqrt(-2 * first.log()) * torch.cos(2 * math.pi * second)
