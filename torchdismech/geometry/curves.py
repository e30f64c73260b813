"""Curves as arrays of points: straight lines, arcs, helices."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from torchdismech.errors import InputError

__all__ = ["arc", "helix", "straight"]


def straight(start: ArrayLike, end: ArrayLike, nodes: int) -> np.ndarray:
    """Return `nodes` points (nodes, 3) evenly from `start` to `end`."""
    if nodes < 2:
        raise InputError(f"straight: expected at least 2 nodes, got {nodes}")
    return np.linspace(np.asarray(start, dtype=float), np.asarray(end, dtype=float), nodes)


def arc(center: ArrayLike, start: ArrayLike, axis: ArrayLike, angle: float, nodes: int) -> np.ndarray:
    """Return points (nodes, 3) on the arc of `start` turned about `axis` through `center` by `angle` [rad]."""
    return helix(center, start, axis, angle, 0.0, nodes)


def helix(center: ArrayLike, start: ArrayLike, axis: ArrayLike, angle: float, height: float, nodes: int) -> np.ndarray:
    """Return points (nodes, 3): `start` turned about `axis` through `center` by `angle` and risen by `height`."""
    if nodes < 2:
        raise InputError(f"helix: expected at least 2 nodes, got {nodes}")
    direction = np.asarray(axis, dtype=float)
    if not np.linalg.norm(direction) > 0:
        raise InputError(f"helix: expected an axis that is not zero, got {axis!r}")
    direction = direction / np.linalg.norm(direction)
    arm = np.asarray(start, dtype=float) - np.asarray(center, dtype=float)
    along = direction * (arm @ direction)
    radial = arm - along
    turn = np.linspace(0.0, angle, nodes)[:, None]
    spun = radial * np.cos(turn) + np.cross(direction, radial) * np.sin(turn)
    return np.asarray(center, dtype=float) + along + spun + direction * np.linspace(0.0, height, nodes)[:, None]
