"""Numbers over time, given in rows: linear between these, and held before the first and after the last."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.forces.base import number

__all__ = ["between", "of_times", "rising"]


def rising(times, what: str, least: int = 1) -> Tensor:
    """Return the times (T,) of rows as a tensor; refuse any that do not rise strictly, and fewer than `least`."""
    times = number(times, what)
    if times.dim() != 1 or len(times) < least or not bool((times.diff() > 0).all()):
        raise InputError(f"{what}: expected {least} or more rising numbers (T,), got {times.tolist()}")
    return times


def of_times(rows, count: int, what: str) -> Tensor:
    """Return vectors at T = `count` times as a tensor (T, 3) or (T, B, 3); refuse other shapes."""
    rows = number(rows, what)
    if rows.dim() not in (2, 3) or len(rows) != count or rows.shape[-1] != 3:
        raise InputError(f"{what}: expected ({count}, 3) or ({count}, B, 3), got {tuple(rows.shape)}")
    return rows


def between(times: Tensor, rows: Tensor, time: Tensor) -> Tensor:
    """Return the numbers (B, k) at times (B,), of the dtype of `times`, from rows (T, k) or (T, B, k)."""
    robot = () if rows.dim() == 2 else (torch.arange(len(time), device=time.device) % rows.shape[1],)
    if len(times) == 1:
        return rows[0, *robot].expand(len(time), -1)
    after = torch.searchsorted(times, time.detach().contiguous()).clamp(1, len(times) - 1)
    before = after - 1
    share = ((time - times[before]) / (times[after] - times[before])).clamp(0, 1)[:, None].to(rows.dtype)
    return torch.lerp(rows[before, *robot], rows[after, *robot], share)
