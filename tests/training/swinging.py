"""A chain that swings, made up: its edges keep their lengths, and so its faults are known."""

import numpy as np

from training.data import Recordings
from training.data.stacking import recordings_of

DT = 0.01
# not alike from both ends, so that one can tell which comes first
EDGES = np.array([0.03, 0.10, 0.11, 0.09, 0.12])


def swinging_chain(count: int = 3, frames: int = 60, edges: np.ndarray = EDGES) -> np.ndarray:
    """Return positions (count, frames, nodes, 3) [m] of a chain that hangs from node 0 and swings below 3 m/s."""
    time = DT * np.arange(frames)[None, :, None]
    recording = np.arange(count)[:, None, None]
    along = np.arange(len(edges))[None, None]
    swing = 0.9 * np.sin(4.0 * time + 0.7 * along + 1.3 * recording)
    turn = 0.5 * np.sin(3.0 * time + recording)
    direction = np.stack([np.sin(swing) * np.cos(turn), np.sin(swing) * np.sin(turn), -np.cos(swing)], axis=-1)
    links = edges[:, None] * direction
    return np.concatenate([np.zeros_like(links[:, :, :1]), links.cumsum(2)], axis=2)


def recordings(count: int = 3, frames: int = 60) -> Recordings:
    """Return recordings of the chain without faults."""
    return recordings_of(swinging_chain(count, frames), DT, [f"{k}.pkl" for k in range(count)])


def recordings_from(positions: np.ndarray) -> Recordings:
    """Return recordings of the given positions."""
    return recordings_of(positions, DT, [f"{k}.pkl" for k in range(len(positions))])
