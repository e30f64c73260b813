"""A folder with a scene of a beam and recordings of it."""

from pathlib import Path

import numpy as np
import pytest

from tests.training.beams import DT, SCENE
from torchdismech.io.scene import load_scene


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with a scene of a beam and three recordings of it that hold still, bend up and bend down."""
    (tmp_path / "beam.toml").write_text(SCENE)
    rest = load_scene(tmp_path / "beam.toml").build().model.nodes.numpy()
    positions = np.tile(rest, (3, 6, 1, 1))
    positions[1:, :, 3, 2] += np.array([[[0.02]], [[-0.02]]])[..., 0] * np.arange(6) / 5
    pull = np.stack([np.zeros(6), np.ones(6), -np.ones(6)])
    np.savez(tmp_path / "beam.npz", train=positions, train_pull=pull, dt=DT)
    return tmp_path
