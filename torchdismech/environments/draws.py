"""Random numbers of an episode: a function of the robot's seed and of which of its episodes it is.

So what a robot draws does not depend on the other robots, on when they begin anew, or on how many there are.
"""

from __future__ import annotations

from torch import Tensor

from torchdismech.control.noise import uniform

__all__ = ["Draws"]


class Draws:
    """Draws for one episode of each robot; each call draws further numbers.

    Parameters
    ----------
    seed, episode : (B,) int64.
    """

    def __init__(self, seed: Tensor, episode: Tensor):
        self.seed, self.episode = seed, episode
        self._calls = 0

    def uniform(self, low: float, high: float, count: int | None = None) -> Tensor:
        """Return numbers (B,), or (B, count), that are spread evenly between two bounds, in float64."""
        self._calls += 1
        drawn = uniform(self.seed, self.episode, self.episode.new_full(self.episode.shape, self._calls), count or 1)
        drawn = low + (high - low) * drawn
        return drawn[:, 0] if count is None else drawn
