"""Draw the robots of the gallery anew: `make gallery`, a few minutes a robot.

`python docs/pictures.py [NAME ...]` draws those named; without a name, all. Pictures are written to docs/pictures.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from torchdismech import Trajectory
from torchdismech.view.movie import pictures
from torchdismech.view.scenery import Scenery

ROOT = Path(__file__).parents[1]
DRAWN, SHOWN = (2400, 1800), (640, 480)  # pixels: as drawn for the whole run, and of what is cut out of it


def of_scene(name: str, frame: int, robots: tuple[int, ...], **options) -> Image.Image:
    """Return the picture of a frame of a scene in examples/."""
    path = ROOT / "examples" / name / "scene.toml"
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.h5"
        command = [sys.executable, "-m", "torchdismech", "simulate", path, "--out", saved]
        subprocess.run([*command, "--allow-code", "--device", "cpu"], check=True)  # so the file knows its scene
        scenery = Scenery(Trajectory.load(saved), robots, folder=path.parent, **options)
        return cut_out(list(pictures(scenery, DRAWN))[frame])


def of_basic(name: str, frame: int) -> Image.Image:
    """Return the picture of a frame of a basic example, with what its robot touches."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # what the example saves
        try:
            made = runpy.run_path(str(ROOT / "examples" / "basics" / f"{name}.py"))
        finally:
            os.chdir(here)
    scenery = Scenery(made["run"], [0], obstacles=made["model"].obstacles, colour="stretch")
    return cut_out(list(pictures(scenery, DRAWN, elevation=25.0))[frame])


def cut_out(picture: np.ndarray) -> Image.Image:
    """Return the part of a picture (height, width, 3) that shows something, without the words above."""
    words = 60
    rows, columns = ((picture[words:] != picture[-1, -1]).any(-1).any(axis) for axis in (1, 0))
    (top, bottom), (left, right) = (np.flatnonzero(seen)[[0, -1]] for seen in (rows, columns))
    width = 1.2 * max(right - left, (bottom - top) * SHOWN[0] / SHOWN[1])
    height = width * SHOWN[1] / SHOWN[0]
    x, y = (left + right) / 2, words + (top + bottom) / 2
    canvas = Image.new("RGB", SHOWN, tuple(picture[-1, -1]))
    scale = SHOWN[0] / width
    small = Image.fromarray(picture[words:]).resize(
        (round(picture.shape[1] * scale), round((len(picture) - words) * scale)), Image.Resampling.LANCZOS
    )
    canvas.paste(small, (round(-(x - width / 2) * scale), round(-(y - words - height / 2) * scale)))
    return canvas


SHOTS: dict[str, Callable[[], Image.Image]] = {
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
        SHOTS[name]().quantize(128).save(folder / f"{name}.png", optimize=True)
        print(f"wrote {folder / name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
