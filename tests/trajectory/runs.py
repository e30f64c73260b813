"""Runs of a scene that are written to files."""

from pathlib import Path

from torchdismech import Trajectory
from torchdismech.io.run import run_scene
from torchdismech.io.scene import load_scene


def ran(path: Path, out: Path, **overrides) -> Trajectory:
    """Return the trajectory of a scene, written to a file; overrides are named as "simulation__duration"."""
    scene = load_scene(path, {name.replace("__", "."): value for name, value in overrides.items()})
    run_scene(scene, scene.build(), out)
    return Trajectory.load(out)
