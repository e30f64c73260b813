"""Boxes about the nodes of a robot, within which it is known which of its parts may touch each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.rows import totals

__all__ = ["NodeBoxes"]


@dataclass(frozen=True)
class NodeBoxes:
    """A box for each node. Parts do not touch by moving together, so the boxes move with the mean position of all.

    Attributes
    ----------
    low, high : (B, N, 3) corners of the boxes [m].
    mean : (B, 1, 3) mean position of the nodes to which the boxes belong [m].
    """

    low: Tensor
    high: Tensor
    mean: Tensor

    @classmethod
    def of_motion(cls, start: Tensor, end: Tensor, margin: Tensor) -> NodeBoxes:
        """Return boxes with a margin (B,) or (B, N) [m] around the way of the nodes from `start` to `end` (B, N, 3)."""
        beyond, mean = margin.view(len(margin), -1, 1), start.mean(1, keepdim=True)
        end = end - (end.mean(1, keepdim=True) - mean)
        return cls(torch.minimum(start, end) - beyond, torch.maximum(start, end) + beyond, mean)

    def rows(self, index: Tensor) -> NodeBoxes:
        """Return the boxes of the robots that `index` selects."""
        return NodeBoxes(self.low[index], self.high[index], self.mean[index])

    def hold(self, q: Tensor) -> Tensor:
        """Return the robots (.., B) bool whose nodes are all inside at q (.., B, n); a NaN is not inside."""
        count = self.low.shape[1]
        positions = q[..., : 3 * count].unflatten(-1, (count, 3))
        mean = (totals(positions.transpose(-1, -2).flatten(0, -2)) / count).view_as(positions[..., :1, :])
        positions = positions - (mean - self.mean)
        return ((positions >= self.low) & (positions <= self.high)).flatten(-2).all(-1)
