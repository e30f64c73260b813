"""Consistency checks of the numbers in a trajectory file, for `reading`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torchdismech.errors import Status

__all__ = ["Damaged", "check_rows", "check_sense", "check_state", "check_topology"]


class Damaged(Exception):
    """A file is not as a writer of trajectories leaves it; the message names the place."""


def check_rows(time: np.ndarray, step: np.ndarray) -> int:
    """Return the number of rows that were written, i.e. have a time; refuse gaps, and times or steps that do not grow.

    Both arrays are (T,). Times of consecutive rows may be equal.
    """
    written = np.isfinite(time)
    count = int(written.sum())
    if count == 0:
        raise Damaged("no frame is in it")
    if not written[:count].all() or not np.isnan(time[count:]).all():
        raise Damaged("time: expected numbers and then NaN, found gaps or infinities")
    if (np.diff(time[:count]) < 0).any():
        raise Damaged("time: goes backwards")
    if step[0] < 0 or (np.diff(step[:count]) <= 0).any():
        raise Damaged("step: expected numbers that grow from row to row")
    return count


def check_topology(rod_edges: np.ndarray, triangles: np.ndarray, nodes: int) -> None:
    """Refuse rod edges or triangles with indices of nodes that do not exist."""
    for name, indices in (("rod_edges", rod_edges), ("triangles", triangles)):
        if indices.size and not (indices.min() >= 0 and indices.max() < nodes):
            raise Damaged(f"topology/{name}: expected indices of {nodes} nodes, 0 to {nodes - 1}")


def check_sense(name: str, values: np.ndarray) -> None:
    """Refuse implausible numbers (not finite, or no known status) in a file without checksums."""
    if name in ("positions", "velocities", "twist") and not np.isfinite(values).all():
        raise Damaged(f"{name}: has entries that are not finite")
    if name == "newton/status" and not np.isin(values, [int(code) for code in Status]).all():
        raise Damaged(f"{name}: expected 0 to {max(Status):d}, the values of torchdismech.Status")


def check_state(
    state: Mapping[str, np.ndarray], state_step: int, datasets: Mapping[str, np.ndarray], complete: bool
) -> None:
    """Refuse a state that differs from the row of its step.

    Parameters
    ----------
    state : positions, velocities and twist of the state, by dataset name.
    datasets : those that have one entry for each row, (T, ...).
    complete : whether there must be a row for the state's step; a trajectory saved without some rows may lack it.
    """
    step = datasets["step"]
    rows = np.flatnonzero(step == state_step)
    if not len(rows):
        if complete or state_step < step[-1]:
            raise Damaged(f"state/step: is {state_step}, which no row has")
        return
    for name, values in state.items():
        if not np.array_equal(values, datasets[name][rows[0]], equal_nan=True):
            raise Damaged(f"state: its {name} are not those of the row of step {state_step}")
