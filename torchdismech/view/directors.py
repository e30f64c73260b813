"""Material directors of rods in the frames of a trajectory, which stores the last state's reference directors only."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from torchdismech.geometry.frames import first_director, rotated, transported, unit
from torchdismech.robot.state import State
from torchdismech.trajectory import Trajectory

__all__ = ["material_directors"]


def material_directors(trajectory: Trajectory, frames: np.ndarray, robots: np.ndarray) -> np.ndarray:
    """Return the first material directors (T, R, E, 3) of the rod edges in some frames of some robots.

    Reference directors are transported from the last state to the frames before it, stored frame by stored frame. With
    all steps stored they are those of the run; else they differ by the angle that tangents turn about between frames
    (their path on the sphere against the arc between stored ones), which is small. Where two tangents are opposite, and
    of chains of rigid elements, which have no directors, a fixed direction across the edge stands in.
    """
    edges = trajectory.rod_edges
    count, rows = len(edges), torch.as_tensor(robots, device="cpu")
    start = int((trajectory.step - trajectory.state_step).abs().argmin())
    twisted = isinstance(trajectory.state, State)
    if twisted:
        state = trajectory.state.rows(rows)
        anchor = state.tangent[:, :count].double(), state.director[:, :count].double()
    else:
        tangent = _tangents(trajectory, start, rows)
        anchor = tangent, first_director(tangent)
    wanted = set(frames.tolist())
    found: dict[int, Tensor] = {}
    for walk in (range(start, min(wanted, default=start) - 1, -1), range(start, max(wanted, default=start) + 1)):
        for row, tangent, director in _carried(trajectory, walk, rows, *anchor):
            if row in wanted:
                angle = trajectory.twist[row, rows, :count].double() if twisted else torch.zeros_like(tangent[..., 0])
                found[row] = rotated(director, tangent, angle)
    return torch.stack([found[row] for row in frames.tolist()]).numpy()


def _carried(
    trajectory: Trajectory, walk: Iterable[int], rows: Tensor, tangent: Tensor, director: Tensor
) -> Iterable[tuple[int, Tensor, Tensor]]:
    """Yield (row, tangents, reference directors) along the rows of a walk."""
    for row in walk:
        there = _tangents(trajectory, row, rows)
        moved = transported(director, tangent, there)
        moved = unit(moved - there * (moved * there).sum(-1, keepdim=True))  # rounding does not add up
        director = torch.where(moved.isfinite().all(-1, keepdim=True), moved, first_director(there))
        tangent = there
        yield row, tangent, director


def _tangents(trajectory: Trajectory, row: int, rows: Tensor) -> Tensor:
    """Return the unit tangents (R, E, 3) of the rod edges in a frame."""
    x = trajectory.positions[row, rows].double()
    edges = torch.as_tensor(trajectory.rod_edges, device="cpu")
    return unit(x[:, edges[:, 1]] - x[:, edges[:, 0]])
