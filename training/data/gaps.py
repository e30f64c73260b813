"""Gaps and spikes of markers: filled along the line between neighbours in time, and marked."""

from __future__ import annotations

import numpy as np

from torchdismech.errors import InputError, listed
from training.data.rules import Rules
from training.data.tracks import believable, filled

__all__ = ["fill_gaps"]


def fill_gaps(positions: np.ndarray, valid: np.ndarray, dt: float, rules: Rules, name: str, what: str) -> list[str]:
    """Fill gaps and spikes of a recording (T, N, 3), in place, and mark them invalid; return messages about them.

    `what` is what messages call its points: nodes of a chain, or markers.
    """
    seen = np.isfinite(positions).all(2)
    kept = seen.copy()
    if rules.despike_speed is not None:
        for k in range(positions.shape[1]):
            point, reach = f"{name}: {what} {k}", dt * rules.despike_speed
            kept[:, k] = _kept(positions[:, k], seen[:, k], reach, rules, point)
    for node in np.flatnonzero(~kept.all(0)).tolist():
        positions[:, node] = filled(positions[:, node], kept[:, node])
    valid &= kept
    never = ~kept.any(0)
    gaps, spikes, held = ~seen & ~never, seen & ~kept, ~kept & ~never & ~_between(kept)
    ends = f"; {int(held.sum())} of all repaired, at the start or the end, hold the nearest place" if held.any() else ""
    messages = []
    if never.any():
        nodes = listed(np.flatnonzero(never).tolist())
        messages.append(f"{name}: {what} {nodes} not seen in any frame: it does not count")
    if gaps.any():
        unseen = f"{_counted(gaps, what)} not seen"
        messages.append(f"{name}: {unseen}, filled along the line between neighbours in time{ends}")
    if spikes.any():
        speed = f"{_counted(spikes, what)} faster than {rules.despike_speed:g} m/s"
        messages.append(f"{name}: {speed}, put on the line between neighbours in time{ends}")
    return messages


def _kept(track: np.ndarray, seen: np.ndarray, reach: float, rules: Rules, point: str) -> np.ndarray:
    """Return the frames of a point to believe, (T,) bool: those in which it moves by at most `reach` [m] a frame."""
    frames = np.flatnonzero(seen)
    ways = np.linalg.norm(np.diff(track[frames], axis=0), axis=1)
    fast = np.flatnonzero(ways > reach * np.diff(frames))
    if not len(fast):
        return seen
    kept = believable(track, reach, rules.max_gap)
    if kept is None:
        raise InputError(
            f"{point} jumps near frame {frames[fast[0] + 1]}: leaving out up to {rules.max_gap} frames "
            f"does not make it slower than {rules.despike_speed:g} m/s; cut the recording there, or set "
            "Rules.max_gap or Rules.despike_speed"
        )
    return kept


def _between(kept: np.ndarray) -> np.ndarray:
    """Return the frames that are not kept and have kept ones before and after, (T, N) bool."""
    before = np.logical_or.accumulate(kept, axis=0)
    after = np.logical_or.accumulate(kept[::-1], axis=0)[::-1]
    return ~kept & before & after


def _counted(marked: np.ndarray, what: str) -> str:
    return f"{int(marked.sum())} positions ({what} {listed(np.flatnonzero(marked.any(0)).tolist())})"
