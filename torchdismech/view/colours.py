"""Colours of robots: one for each robot, or by a quantity at the nodes, such as curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchdismech.errors import InputError
from torchdismech.geometry.frames import signed_angle, transported
from torchdismech.robot.state import State
from torchdismech.trajectory import Trajectory
from torchdismech.view.tubes import meeting_ends

__all__ = ["QUANTITIES", "Scale", "distinct", "node_values", "quantities_of"]

# what robots can be coloured by, with its unit
QUANTITIES = {"stretch": "1", "curvature": "1/m", "twist": "rad/m", "speed": "m/s"}
# seven hues that people who see colours differently can tell apart (after Paul Tol's bright scheme)
HUES = np.array(
    [[68, 119, 170], [238, 102, 119], [34, 136, 51], [204, 187, 68], [102, 204, 238], [170, 51, 119], [187, 187, 187]]
)
# from low to high: dark blue, teal, green, yellow; brightness rises evenly
LOW_TO_HIGH = np.array([[63, 62, 133], [49, 104, 142], [33, 145, 140], [83, 197, 104], [253, 231, 37]])
# from negative to positive, white at zero
DIVERGING = np.array([[33, 102, 172], [146, 197, 222], [247, 247, 247], [244, 165, 130], [178, 24, 43]])
UNKNOWN = np.array([170, 170, 170])  # of nodes that do not have the quantity


@dataclass(frozen=True)
class Scale:
    """The colour scale of a quantity.

    Attributes
    ----------
    name, unit : of the quantity.
    low, high : values at the ends of the scale; values beyond have the colours of the ends.
    """

    name: str
    unit: str
    low: float
    high: float

    @classmethod
    def of(cls, name: str, values: np.ndarray) -> Scale:
        """Return the scale that spans all finite values; if some are negative, it is symmetric about zero."""
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        if low < 0:
            low, high = -max(-low, high), max(-low, high)
        return cls(name, QUANTITIES[name], low, high if high > low else low + 1.0)

    @property
    def ends(self) -> str:
        """The range of the scale in words, with the unit."""
        return f"{self.name} from {self.low:.3g} to {self.high:.3g}" + ("" if self.unit == "1" else f" {self.unit}")

    def colours(self, values: np.ndarray) -> np.ndarray:
        """Return the colours (..., 3) uint8 of values (...); grey where they are NaN."""
        table = DIVERGING if self.low < 0 else LOW_TO_HIGH
        share = np.clip((values - self.low) / (self.high - self.low), 0, 1)
        known = np.isfinite(share)
        position = np.where(known, share, 0.0)
        stops = np.linspace(0, 1, len(table))
        mixed = np.stack([np.interp(position, stops, table[:, k]) for k in range(3)], axis=-1)
        return np.where(known[..., None], mixed, UNKNOWN).round().astype(np.uint8)


def distinct(count: int) -> np.ndarray:
    """Return a colour (count, 3) uint8 for each robot; colours repeat after seven."""
    return HUES[np.arange(count) % len(HUES)].astype(np.uint8)


def quantities_of(trajectory: Trajectory) -> list[str]:
    """Return the quantities that the robots of a run have.

    Curvature is one of all whose points are in rows. Twist is one of rods, as runs of chains of rigid elements and of
    pneumatic arms do not keep how sections are turned.
    """
    in_rows, turned = len(trajectory.rod_edges) > 0, isinstance(trajectory.state, State)
    known = {"curvature": in_rows, "twist": in_rows and turned}
    return [name for name in QUANTITIES if known.get(name, True)]


def node_values(
    name: str, trajectory: Trajectory, frames: np.ndarray, robots: np.ndarray, directors: np.ndarray
) -> np.ndarray:
    """Return a quantity at the nodes (T, R, N), NaN at nodes that do not have it.

    "stretch" [1]: the length of rod edges, and the square root of the area of triangles, over that in the first frame,
    minus one; at a node the mean of the edges and triangles there. "curvature" [1/m]: of rods, at nodes where two edges
    meet, 2 tan(angle/2) over the mean length of the edges. "twist" [rad/m]: of rods, at the same nodes, the angle by
    which the material frame turns over that length. "speed" [m/s].

    Parameters
    ----------
    frames, robots : the rows (T,) of the trajectory and the robots (R,).
    directors : (T, R, E, 3) first material directors of the rod edges.

    Raises
    ------
    InputError
        An unknown quantity, or one that the run does not have (`quantities_of`).
    """
    if name not in [*QUANTITIES]:
        raise InputError(f"colour: expected 'robot' or one of {', '.join(QUANTITIES)}, got {name!r}")
    shown = np.ix_(frames, robots)
    positions = trajectory.positions.numpy()[shown].astype(np.float64)
    if name == "speed":
        return np.linalg.norm(trajectory.velocities.numpy()[shown], axis=-1)
    if name == "stretch":
        first = trajectory.positions.numpy()[:1, robots].astype(np.float64)
        return _stretch(trajectory, positions, first)
    if name not in (known := quantities_of(trajectory)):
        raise InputError(f"colour: {name} is one of rods, and the run has no such: choose one of {', '.join(known)}")
    return _bend_twist(name, trajectory.rod_edges, positions, directors)


def _stretch(trajectory: Trajectory, positions: np.ndarray, first: np.ndarray) -> np.ndarray:
    total, count = np.zeros(positions.shape[:-1]), np.zeros(positions.shape[-2])
    for elements, size in ((trajectory.rod_edges, _lengths), (trajectory.triangles, _root_areas)):
        if len(elements):
            ratio = size(positions, elements) / size(first, elements) - 1
            for corner in elements.T:
                place: Any = (..., corner)
                np.add.at(total, place, ratio)
                np.add.at(count, corner, 1)
    with np.errstate(invalid="ignore"):
        return total / count


def _lengths(positions: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.linalg.norm(positions[..., edges[:, 1], :] - positions[..., edges[:, 0], :], axis=-1)


def _root_areas(positions: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    a, b, c = (positions[..., triangles[:, k], :] for k in range(3))
    return np.sqrt(0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=-1))


def _bend_twist(name: str, edges: np.ndarray, positions: np.ndarray, directors: np.ndarray) -> np.ndarray:
    """Return curvature or twist (T, R, N) at the nodes where two edges meet, NaN at the others."""
    values = np.full(positions.shape[:-1], np.nan)
    first, second = meeting_ends(edges).T
    nodes = edges.ravel()[first]
    vectors = positions[..., edges[:, 1], :] - positions[..., edges[:, 0], :]
    length = np.linalg.norm(vectors, axis=-1)
    t = vectors / length[..., None]
    # as if the first edge ended at the node and the second began there
    e = t[..., first // 2, :] * np.where(first % 2 == 1, 1.0, -1.0)[:, None]
    f = t[..., second // 2, :] * np.where(second % 2 == 0, 1.0, -1.0)[:, None]
    mean = 0.5 * (length[..., first // 2] + length[..., second // 2])
    binormal = 2 * np.cross(e, f) / (1 + (e * f).sum(-1))[..., None]
    if name == "curvature":
        values[..., nodes] = np.linalg.norm(binormal, axis=-1) / mean
        return values
    values[..., nodes] = _turn(directors[..., first // 2, :], directors[..., second // 2, :], e, f) / mean
    return values


def _turn(d: np.ndarray, other: np.ndarray, e: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Return the angle (...) [rad] about tangents f from directors d, transported there from tangents e, to `other`."""
    axis = torch.as_tensor(f, device="cpu")
    carried = transported(torch.as_tensor(d, device="cpu"), torch.as_tensor(e, device="cpu"), axis)
    return signed_angle(carried, torch.as_tensor(other, device="cpu"), axis).numpy()
