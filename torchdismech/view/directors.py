"""Material directors of rods in all frames of a trajectory, which stores the reference directors of its last state."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from torchdismech.geometry.frames import first_director, rotated, transported, unit
from torchdismech.robot.state import State
from torchdismech.trajectory import Trajectory

__all__ = ["material_directors"]


def material_directors(trajectory: Trajectory, frames: np.ndarray, robots: np.ndarray) -> np.ndarray:
    """Return the first material directors (T, R, E, 3) of the rod edges in some frames of some robots.

    Reference directors are transported from the last state to the other frames, stored frame by stored frame. If all
    steps are stored, they are exactly those of the run; else they differ by a small angle, as the tangents' path on the
    sphere between two stored frames is not the arc that joins these. Where tangents of two frames are opposite, a fixed
    direction across the edge is taken. Chains of rigid elements and pneumatic arms, which have no directors, are shown
    without twist: the director of the first edge is carried along them, from edge to edge.
    """
    edges = trajectory.rod_edges
    count, robot_index = len(edges), torch.as_tensor(robots, device="cpu")
    start = int((trajectory.step - trajectory.state_step).abs().argmin())
    twisted = isinstance(trajectory.state, State)
    if twisted:
        state = trajectory.state.rows(robot_index)
        anchor = state.tangent[:, :count].double(), state.director[:, :count].double()
    else:
        tangent = _tangents(trajectory, start, robot_index)
        anchor = tangent, first_director(tangent)
    frame_set = set(frames.tolist())
    directors: dict[int, Tensor] = {}
    for walk in (range(start, min(frame_set, default=start) - 1, -1), range(start, max(frame_set, default=start) + 1)):
        for row, tangent, director in _carried(trajectory, walk, robot_index, *anchor):
            if row in frame_set:
                if twisted:
                    angle = trajectory.twist[row, robot_index, :count].double()
                    directors[row] = rotated(director, tangent, angle)
                else:
                    directors[row] = _along_chain(director[:, 0], tangent)
    return torch.stack([directors[row] for row in frames.tolist()]).numpy()


def _carried(
    trajectory: Trajectory, walk: Iterable[int], robots: Tensor, tangent: Tensor, director: Tensor
) -> Iterable[tuple[int, Tensor, Tensor]]:
    """Yield (row, tangents, reference directors) for the rows of a walk, with directors transported from row to row.

    Parameters
    ----------
    walk : rows of the trajectory in their order, forwards or backwards.
    robots : (R,).
    tangent, director : (R, E, 3) where the walk begins.
    """
    for row in walk:
        new_tangent = _tangents(trajectory, row, robots)
        director, tangent = _transported(director, tangent, new_tangent), new_tangent
        yield row, tangent, director


def _along_chain(first: Tensor, tangents: Tensor) -> Tensor:
    """Return directors (R, E, 3) of edges in a row, carried without twist from that of the first edge (R, 3)."""
    directors = [first]
    for before, after in pairwise(tangents.unbind(1)):
        directors.append(_transported(directors[-1], before, after))
    return torch.stack(directors, 1)


def _transported(director: Tensor, tangent: Tensor, new_tangent: Tensor) -> Tensor:
    """Return directors (..., 3) at new tangents; where these are opposite to the old ones, fixed ones."""
    carried = transported(director, tangent, new_tangent)
    # so that rounding does not add up
    carried = unit(carried - new_tangent * (carried * new_tangent).sum(-1, keepdim=True))
    return torch.where(carried.isfinite().all(-1, keepdim=True), carried, first_director(new_tangent))


def _tangents(trajectory: Trajectory, row: int, robots: Tensor) -> Tensor:
    """Return the unit tangents (R, E, 3) of the rod edges of some robots in a frame."""
    x = trajectory.positions[row, robots].double()
    edges = torch.as_tensor(trajectory.rod_edges, device="cpu")
    return unit(x[:, edges[:, 1]] - x[:, edges[:, 0]])
