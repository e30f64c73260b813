"""A beam whose scene and recordings stand in a folder, and systems that are built of them."""

from pathlib import Path

import torch

from tests import scenes
from training.config import Config
from training.data import gather, read
from training.robots.scenes import SceneSystem
from training.robots.systems import build
from training.splits import prepared_recordings

DT = 0.01
SCENE = (
    scenes.rod(3, radius=4e-3, youngs=4e6)
    + scenes.CLAMP
    + """
[environment]
gravity = [0.0, 0.0, -9.81]
viscosity = 0.05
[simulation]
dt = 5e-3
duration = 0.5
"""
)


def tables(folder: Path, **changes) -> dict:
    """Return the tables of a short fit of a beam to recordings in a folder."""
    return {
        "name": "beam",
        "data": {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None},
        "robot": {"scene": str(folder / "beam.toml")},
        "constants": {"bending": {"tensors": ["bend_twist.EI1", "bend_twist.EI2"]}},
        "stages": [{"name": "one", "train": ["constants"], "iterations": 2, "horizon": [3], "batch": 2}],
        "logging": {"shapes_at": [0.02]},
        **changes,
    }


def system_of(folder: Path, **changes) -> SceneSystem:
    """Return the system of a config, and check that it is one of a scene."""
    config = Config.model_validate(tables(folder, **changes))
    system = build(config, prepared_recordings(config, "train")[0])
    assert isinstance(system, SceneSystem)
    return system


def window_of(folder: Path, frames: int = 3, **options):
    """Return all recordings from their start on, some frames of them."""
    recordings = read(folder / "beam.npz", "train", **options)
    which = torch.arange(len(recordings))
    return gather(recordings, which, torch.zeros_like(which), frames)
