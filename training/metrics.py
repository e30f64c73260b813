"""How far predictions are from recordings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.config import Loss
from training.data import Recordings

__all__ = ["HORIZONS", "Errors", "baselines", "robust_loss"]

HORIZONS = (0.1, 1.0, 5.0)  # [s] at which errors are reported


@dataclass(frozen=True)
class Errors:
    """Mean absolute errors per coordinate [m] of open-loop predictions, over all nodes.

    Attributes
    ----------
    curve : (T,) mean over recordings for each predicted frame; the first is the third frame of a recording.
    recordings : (K,) mean over frames of each recording.
    good : (K,) whether the recording was predicted to its end; others count with what came out.
    dt : time between frames [s].
    """

    curve: Tensor
    recordings: Tensor
    good: Tensor
    dt: float

    @property
    def mean(self) -> float:
        """Mean over everything: the figure of merit."""
        return float(self.recordings.mean())

    def at(self, horizon: float) -> float:
        """Return the error [m] a time `horizon` [s] after the start, or at the end if the recordings are shorter."""
        frame = min(max(round(horizon / self.dt), 1), len(self.curve)) - 1
        return float(self.curve[frame])

    @classmethod
    def of(cls, predicted: Tensor, recordings: Recordings, good: Tensor | None = None) -> Errors:
        """Return the errors of predictions (K, T - 2, N, 3) of all frames but the first two.

        Markers that were not seen, or repaired, do not count.
        """
        valid = recordings.valid[:, 2:]
        error = (predicted - recordings.positions[:, 2:]).abs().mean(-1)
        error = torch.where(valid, error, 0.0)  # a repaired place may be anything, but not NaN
        curve = error.sum((0, 2)) / valid.sum((0, 2))
        good = torch.ones(len(recordings), dtype=torch.bool) if good is None else good
        return cls(curve, error.sum((1, 2)) / valid.sum((1, 2)), good, recordings.dt)


def robust_loss(predicted: Tensor, measured: Tensor, valid: Tensor, loss: Loss) -> Tensor:
    """Return (B,) mean pseudo-Huber distances [m] per coordinate of the valid nodes (B, T, N)."""
    distance = predicted - measured
    each = (torch.sqrt(distance.square() + loss.scale**2) - loss.scale).mean(-1)
    return torch.where(valid, each, 0.0).sum((1, 2)) / valid.sum((1, 2)).clamp_min(1)


def baselines(recordings: Recordings, gripped: list[int]) -> dict[str, Errors]:
    """Return the errors of two predictions without a model.

    "stay": free nodes stay where they were. "follow": they move with the gripped nodes, weighted by how near these are
    along the chain.
    """
    x = recordings.positions
    second = x[:, 1:2].expand(-1, recordings.frames - 2, -1, -1)
    stay = second.clone()
    stay[:, :, gripped] = x[:, 2:, gripped]
    weight = _weights(recordings, gripped)
    moved = x[:, 2:, gripped] - x[:, 1:2, gripped]
    follow = second + torch.einsum("ng,ktgc->ktnc", weight, moved)
    return {"stay": Errors.of(stay, recordings), "follow": Errors.of(follow, recordings)}


def _weights(recordings: Recordings, gripped: list[int]) -> Tensor:
    """Return (N, gripped) weights, linear in arc length between the neighbouring gripped nodes, constant beyond."""
    length = torch.linalg.vector_norm(recordings.positions.diff(dim=2), dim=-1).flatten(0, 1).nanmedian(0).values
    arc = torch.cat([length.new_zeros(1), length.cumsum(0)])
    knots = arc[gripped]
    weight = torch.zeros(len(arc), len(gripped), dtype=arc.dtype)
    for node, place in enumerate(arc):
        right = int(torch.searchsorted(knots, place).clamp(0, len(gripped) - 1))
        left = max(right - 1, 0)
        if place >= knots[-1] or place <= knots[0] or left == right:
            weight[node, 0 if place <= knots[0] else len(gripped) - 1] = 1
        else:
            share = (place - knots[left]) / (knots[right] - knots[left])
            weight[node, left], weight[node, right] = 1 - share, share
    return weight
