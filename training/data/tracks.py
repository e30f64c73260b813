"""Tracks of single markers in time: which frames to believe, and how the others are filled."""

from __future__ import annotations

import numpy as np

__all__ = ["believable", "filled", "longest_run"]


def longest_run(missing: np.ndarray) -> tuple[int, int]:
    """Return first frame and length of the longest run of True in (T,) bool; zeros without."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]]).astype(np.int8)))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(starts):
        return 0, 0
    longest = int(lengths.argmax())
    return int(starts[longest]), int(lengths[longest])


def believable(track: np.ndarray, reach: float, max_gap: int) -> np.ndarray | None:
    """Return which frames of a marker to keep: as many as possible without it ever being too fast.

    From one kept frame to the next it moves at most `reach` a frame. So a marker that jumps away and back loses the
    frames in between, and one that jumps and stays loses only as many as a permitted speed needs for the way.

    Parameters
    ----------
    track : (T, 3) [m], NaN where the marker was not seen: never kept.
    reach : longest permitted move from one frame to the next [m].
    max_gap : longest permitted run of frames that are not kept.

    Returns
    -------
    (T,) bool, or None where no choice leaves only gaps up to `max_gap`.
    """
    frames = len(track)
    seen = np.isfinite(track).all(1)
    kept_before = np.full(frames, -1)  # most frames kept up to this one and with it; -1: it cannot be kept
    previous = np.full(frames, -1)
    for t in np.flatnonzero(seen).tolist():
        if t <= max_gap:
            kept_before[t] = 1
        earlier = np.arange(t - 1, max(t - max_gap - 2, -1), -1)  # nearest first, as argmax takes the first of equals
        far = np.linalg.norm(track[t] - track[earlier], axis=1) > reach * (t - earlier)
        score = np.where(far | ~seen[earlier], -1, kept_before[earlier])
        if len(score) and score.max() > 0 and score.max() + 1 > kept_before[t]:
            previous[t] = earlier[score.argmax()]
            kept_before[t] = score.max() + 1
    last = np.arange(frames - 1, max(frames - max_gap - 2, -1), -1)
    t = int(last[kept_before[last].argmax()])
    if kept_before[t] < 0:
        return None
    kept = np.zeros(frames, dtype=bool)
    while t >= 0:
        kept[t] = True
        t = int(previous[t])
    return kept


def filled(track: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the track (T, 3) with frames that are not kept interpolated between kept ones, and held at the ends.

    A track of which no frame is kept is zero, so that it is finite; nothing may be read from it.
    """
    if not kept.any():
        return np.zeros_like(track)
    frames = np.arange(len(track))
    return np.stack([np.interp(frames, frames[kept], axis[kept]) for axis in track.T], axis=1)
