"""Draw the robots of the gallery anew: `make gallery`, a few minutes a robot.

`python docs/pictures.py [NAME ...]` draws those named; without a name, all. Pictures are written to docs/pictures.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from examples.running import run
from torchdismech import Trajectory
from torchdismech.view.movie import pictures
from torchdismech.view.scenery import Scenery

ROOT = Path(__file__).parents[1]
SIZE = (720, 540)


def of_scene(name: str, frame: int, robots: tuple[int, ...], **options) -> np.ndarray:
    """Return the picture of a frame of a scene in examples/."""
    path = ROOT / "examples" / name / "scene.toml"
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.h5"
        run(path, allow_code=True).save(saved)
        scenery = Scenery(Trajectory.load(saved), robots, folder=path.parent, **options)
        return list(pictures(scenery, SIZE))[frame]


def of_basic(name: str, frame: int) -> np.ndarray:
    """Return the picture of a frame of a basic example, with what its robot touches."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # what the example saves
        try:
            made = runpy.run_path(str(ROOT / "examples" / "basics" / f"{name}.py"))
        finally:
            os.chdir(here)
    scenery = Scenery(made["run"], [0], obstacles=made["model"].obstacles, colour="stretch")
    return list(pictures(scenery, SIZE, elevation=25.0))[frame]


SHOTS: dict[str, Callable[[], np.ndarray]] = {
    "drape": lambda: of_basic("drape", -1),
    "gripper": lambda: of_scene("gripper", -1, (0, 3, 7), apart=True, colour="curvature"),
    "jellyfish": lambda: of_scene("jellyfish", 15, (4,)),
    "parachute": lambda: of_scene("parachute", -1, (0,)),
}


def main(names: list[str]) -> None:
    """Draw the robots that are named, or all."""
    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for name in names or SHOTS:
        Image.fromarray(SHOTS[name]()).quantize(128).save(folder / f"{name}.png", optimize=True)
        print(f"wrote {folder / name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
