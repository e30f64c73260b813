"""Single recordings put together as `Recordings`, and checks of the numbers and clocks that files hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchdismech.errors import InputError
from training.data.recordings import Recordings

__all__ = ["Single", "number_array", "recordings_of", "stacked", "time_step"]


@dataclass(frozen=True)
class Single:
    """One recording as its file gives it.

    Attributes
    ----------
    positions : (T, N, 3) float64 [m]; dt : time between frames [s]; begin : time of the first frame [s].
    inputs : (T, C) float64 of the `columns` that were asked for; None without.
    """

    name: str
    positions: np.ndarray
    dt: float
    inputs: np.ndarray | None = None
    columns: tuple[str, ...] = ()
    begin: float = 0.0


def recordings_of(
    positions: np.ndarray,
    dt: float,
    names: Sequence[str],
    inputs: np.ndarray | None = None,
    columns: tuple[str, ...] = (),
    begins: Sequence[float] | None = None,
    edges: np.ndarray | None = None,
) -> Recordings:
    """Return recordings of positions (K, T, N, 3) and inputs (K, T, C), whose nodes are valid where they are finite."""
    tensor = torch.from_numpy(np.ascontiguousarray(positions, dtype=np.float64))
    more: dict[str, Any] = {}
    if columns:
        more = {"inputs": torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float64)), "columns": columns}
    if begins is not None:
        more["begins"] = torch.tensor(begins, dtype=torch.float64, device="cpu")
    if edges is not None:
        more["edges"] = torch.from_numpy(edges.astype(np.int64))
    return Recordings(tensor, float(dt), tuple(names), tensor.isfinite().all(-1), **more)


def stacked(singles: Sequence[Single], truncate: bool = False, pad: bool = False) -> Recordings:
    """Return single recordings as one `Recordings`.

    Parameters
    ----------
    truncate : cut all to the shortest.
    pad : continue the shorter ones to the length of the longest: no marker is seen there, and the last inputs stay.

    Raises
    ------
    InputError
        They differ in nodes, time step or, without one of these, in length.
    """
    first = singles[0]
    for single in singles[1:]:
        if single.positions.shape[1] != first.positions.shape[1]:
            raise InputError(
                f"{single.name}: {single.positions.shape[1]} nodes, but {first.name} has {first.positions.shape[1]}; "
                "expected recordings of the same robot: keep others in another folder"
            )
        # time columns are rounded, so equal clocks may differ in the last digits
        if abs(single.dt - first.dt) > 1e-3 * first.dt:
            raise InputError(
                f"{single.name}: {single.dt} s between frames, but {first.name} has {first.dt} s; expected the same: "
                "sample them alike"
            )
    lengths = [len(single.positions) for single in singles]
    if truncate and pad:
        raise InputError("truncate, pad: expected one of them: the shortest length for all, or the longest")
    if len({*lengths}) > 1 and not (truncate or pad):
        shortest, longest = (singles[lengths.index(choice(lengths))] for choice in (min, max))
        raise InputError(
            f"{longest.name}: {max(lengths)} frames, but {shortest.name} has {min(lengths)}; expected equally long "
            "recordings: pass truncate=True to cut all to the shortest, or, for a robot from a scene, pad=True to take "
            "the shorter ones as not seen from their ends on (in a config: data.options)"
        )
    frames = max(lengths) if pad else min(lengths)
    positions = np.stack([_of_length(single.positions, frames, np.nan) for single in singles])
    inputs = (
        np.stack([_of_length(s.inputs, frames) for s in singles if s.inputs is not None]) if first.columns else None
    )
    begins = [single.begin for single in singles]
    return recordings_of(positions, first.dt, [single.name for single in singles], inputs, first.columns, begins)


def _of_length(values: np.ndarray, frames: int, rest: float | None = None) -> np.ndarray:
    """Return so many frames of values (T, ...), continued by `rest`, or else by the last frame."""
    more = np.repeat(values[-1:], max(frames - len(values), 0), axis=0)
    return np.concatenate([values[:frames], more if rest is None else np.full_like(more, rest)])


def number_array(values: Any, what: str) -> np.ndarray:
    """Return an array of a file as float64; refuse one that does not hold real numbers."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise InputError(f"{what}: expected real numbers, got dtype {array.dtype}: save a float array")
    return array.astype(np.float64)


def time_step(time: np.ndarray, source: str) -> float:
    """Return the time between frames [s] of a clock (T,) [s] that ticks evenly.

    Raises
    ------
    InputError
        The clock stands still, runs back, jumps over frames or ticks unevenly.
    """
    with np.errstate(over="ignore"):  # times of 1e308 are refused below
        steps = np.diff(time)
    if len(steps) == 0:
        raise InputError(f"{source}: {len(time)} frames; expected at least 3: leave this recording out")
    for frame in np.flatnonzero(~(steps > 0))[:1]:
        raise InputError(
            f"{source}: time goes from {time[frame]} s in frame {frame} to {time[frame + 1]} s; expected it to grow: "
            "sort the rows, leave out double ones"
        )
    usual = float(np.median(steps))
    for frame in np.flatnonzero(steps > 1.5 * usual)[:1]:
        raise InputError(
            f"{source}: frames are missing: time jumps from {time[frame]} s in frame {frame} to {time[frame + 1]} s, "
            f"steps are {usual:g} s otherwise; write rows with empty cells for them, or cut the recording there"
        )
    mean = float(steps.mean())
    # a quarter of a step leaves room for times rounded to milliseconds, and shows every uneven clock
    late = np.abs(time - time[0] - mean * np.arange(len(time)))
    if late.max() > 0.25 * mean:
        frame = int(late.argmax())
        raise InputError(
            f"{source}: uneven clock: frame {frame} is {late[frame]:.3g} s off even steps of {mean:.4g} s; expected "
            "even steps: resample the recording (docs/training.md shows how)"
        )
    return mean
