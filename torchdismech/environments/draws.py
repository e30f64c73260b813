"""Random numbers of an episode, as a function of the robot's seed and of the number of its episode.

So what a robot draws does not depend on the other robots, on when these begin anew, or on how many there are.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from torchdismech.control.noise import uniform
from torchdismech.errors import InputError, finite_number, whole_number

__all__ = ["Draws"]

FIRST_NAMED = 2**60  # calls of draws with a name are counted from here on, where no other draws get


class Draws:
    """Random numbers for one episode of each robot; each call draws new ones.

    Bounds, means and deviations have to be finite, bounds in their order and deviations not negative; counts are whole
    numbers from 1 up. Others are refused by name.

    Parameters
    ----------
    seed, episode : (B,) int64.
    first : the number from which calls are counted.
    dtype : of the numbers, which are drawn in float64 and rounded to it.
    """

    def __init__(self, seed: Tensor, episode: Tensor, first: int = 0, dtype: torch.dtype = torch.float64):
        self.seed, self.episode, self.dtype = seed, episode, dtype
        self._calls = first

    def named(self, name: str) -> Draws:
        """Return `Draws` for the same episodes that depend on a name, and on no other draws."""
        digest = hashlib.sha256(name.encode()).digest()
        return Draws(self.seed, self.episode, FIRST_NAMED + int.from_bytes(digest[:7], "big"), self.dtype)

    def uniform(self, low: float, high: float, count: int | None = None) -> Tensor:
        """Return numbers (B,), or (B, count), uniformly distributed between two bounds."""
        low, high = _bounds("uniform", low, high)
        return self._between("uniform", low, high, count).to(self.dtype)

    def loguniform(self, low: float, high: float, count: int | None = None) -> Tensor:
        """Return numbers (B,), or (B, count), with logarithms uniformly distributed between those of bounds above 0."""
        low, high = _bounds("loguniform", low, high)
        if low <= 0:
            raise InputError(f"Draws.loguniform: low: expected more than 0, got {low:g}")
        return self._between("loguniform", math.log(low), math.log(high), count).exp().to(self.dtype)

    def normal(self, mean: float, deviation: float, count: int | None = None) -> Tensor:
        """Return normally distributed numbers (B,), or (B, count)."""
        mean, deviation = finite_number(mean, "Draws.normal: mean"), finite_number(deviation, "Draws.normal: deviation")
        if deviation < 0:
            raise InputError(f"Draws.normal: deviation: expected 0 or more, got {deviation:g}")
        # by Box and Muller's transform, as `control.noise.normal`
        first, second = (self._between("normal", 0.0, 1.0, count) for _ in range(2))
        numbers = mean + deviation * torch.sqrt(-2 * first.log()) * torch.cos(2 * math.pi * second)
        return numbers.to(self.dtype)

    def _between(self, what: str, low: float, high: float, count: int | None) -> Tensor:
        """Return the uniform numbers of the next call, in float64."""
        self._calls += 1
        number = 1 if count is None else whole_number(count, f"Draws.{what}: count")
        numbers = uniform(self.seed, self.episode, self.episode.new_full(self.episode.shape, self._calls), number)
        numbers = low + (high - low) * numbers
        return numbers[:, 0] if count is None else numbers


def _bounds(what: str, low: float, high: float) -> tuple[float, float]:
    low, high = finite_number(low, f"Draws.{what}: low"), finite_number(high, f"Draws.{what}: high")
    if low > high:
        raise InputError(f"Draws.{what}: expected low below high, got {low:g} and {high:g}")
    return low, high
