"""Positions that the tests of readers write into files."""

import pickle
from pathlib import Path

import numpy as np

from tests.training.swinging import swinging_chain

FAULTLESS = swinging_chain()


# ---- pickles


def nested(positions: np.ndarray) -> list:
    """Return (T, N, 3) as a list of T frames (3, N) of plain floats."""
    return positions.transpose(0, 2, 1).tolist()


def pickled(path: Path, content, protocol: int = pickle.DEFAULT_PROTOCOL) -> Path:
    """Write a pickle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))
    return path
