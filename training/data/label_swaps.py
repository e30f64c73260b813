"""Markers whose labels a motion capture system has taken for each other: each goes on where the other one was."""

from __future__ import annotations

import numpy as np

__all__ = ["swapped_labels"]

# Two labels count as swapped if the ways of both markers in a frame, with them exchanged, are this part of what they
# are as recorded. Markers that follow one another, as on a snake, do not take each other's places.
SHARE = 0.25


def swapped_labels(positions: np.ndarray) -> list[tuple[int, int, int]]:
    """Return frame and numbers of each two markers of which each begins there to go on where the other one was.

    Markers that are not seen in a frame or in the one before it are left out, also where labels change in a gap.

    Parameters
    ----------
    positions : (T, N, 3) of the markers [m], NaN where they were not seen.
    """
    found = []
    ways = np.linalg.norm(np.diff(positions, axis=0), axis=2)  # (T - 1, N); NaN next to a gap
    seldom = 2 * np.nanmedian(np.where(ways > 0, ways, np.nan)) if np.nanmax(ways, initial=0) > 0 else np.inf
    for frame in np.flatnonzero((ways > seldom).sum(1) >= 2):
        markers = np.flatnonzero(ways[frame] > seldom)
        before, after = positions[frame, markers], positions[frame + 1, markers]
        across = np.linalg.norm(after[:, None] - before[None], axis=2)
        own = ways[frame, markers]
        exchanged = across + across.T < SHARE * (own[:, None] + own[None])
        found += [(int(frame) + 1, int(markers[i]), int(markers[j])) for i, j in np.argwhere(exchanged) if i < j]
    return found
