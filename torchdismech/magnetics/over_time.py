"""Vectors given at some times and interpolated linearly: what `Table` and `MovingDipole` share."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.forces.base import number

__all__ = ["between", "of_times", "rising"]


def rising(times, what: str) -> Tensor:
    """Return the times (T,) of rows as a tensor; refuse any that do not rise strictly."""
    times = number(times, what)
    if times.dim() != 1 or not len(times) or not bool((times.diff() > 0).all()):
        raise InputError(f"{what}: expected rising numbers (T,), got {times.tolist()}")
    return times


def of_times(rows, count: int, what: str) -> Tensor:
    """Return vectors at T = `count` times as a tensor (T, 3) or (T, B, 3); refuse other shapes."""
    rows = number(rows, what)
    if rows.dim() not in (2, 3) or len(rows) != count or rows.shape[-1] != 3:
        raise InputError(f"{what}: expected ({count}, 3) or ({count}, B, 3), got {tuple(rows.shape)}")
    return rows


def between(times: Tensor, rows: Tensor, time: Tensor) -> Tensor:
    """Return vectors (B, 3) at times (B,), linear between rows (T, 3) or (T, B, 3) and held at their ends."""
    per_robot = rows if rows.dim() == 3 else rows.unsqueeze(1)
    robot = torch.arange(len(time), device=time.device) % per_robot.shape[1]
    last = len(times) - 1
    after = torch.searchsorted(times, time.detach().contiguous()).clamp(min(1, last), last)
    before = (after - 1).clamp_min(0)
    span = torch.where(after > before, times[after] - times[before], 1.0)
    share = ((time - times[before]) / span).clamp(0, 1)
    return torch.lerp(per_robot[before, robot], per_robot[after, robot], share.unsqueeze(1))
