"""Normal random numbers as a function of seed, robot, step and index in a vector (a counter-based generator).

A generator with a state would give other numbers in a part of a run that is repeated, or in a shard of a batch. Here a
counter is mixed by the finaliser of SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators,
OOPSLA 2014) and made normal by Box and Muller's transform.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["SEEDS", "normal", "uniform"]

SEEDS = 2**63  # seeds are below this, as they are int64

# the constants of SplitMix64 as signed numbers, with which torch also calculates modulo 2^64
GOLDEN, FIRST, SECOND = (k - 2**64 for k in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def normal(seed: int, robot: Tensor, step: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return normally distributed numbers (B, count) of mean 0 and standard deviation 1.

    Parameters
    ----------
    robot, step : (B,) int64.
    """
    drawn = uniform(torch.full_like(robot, seed), robot, step, 2 * count)
    radius = torch.sqrt(-2 * torch.log(drawn[:, :count]))
    return (radius * torch.cos(2 * math.pi * drawn[:, count:])).to(dtype)


def uniform(seed: Tensor, robot: Tensor, step: Tensor, count: int) -> Tensor:
    """Return numbers (B, count) in float64, uniformly distributed between 0 and 1, both excluded.

    Parameters
    ----------
    seed, robot, step : (B,) int64.
    """
    place = torch.arange(count, device=step.device)
    key = _mixed(_mixed(_mixed(seed) + robot) + step)
    bits = _mixed(key[:, None] + GOLDEN * (place + 1))
    # 53 bits as a number in (0, 1), never 0, so that it has a logarithm
    return (_shifted(bits, 11).to(torch.float64) + 0.5) * 2.0**-53


def _mixed(x: Tensor) -> Tensor:
    """Return SplitMix64's hash of x: 64 bits, each of which depends on every bit of x."""
    x = x + GOLDEN
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Return x shifted to the right and filled with zeros, where torch's shift would fill in the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
