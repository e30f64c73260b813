"""Draw the robots of the gallery anew: `make gallery`, up to some minutes a robot.

`python docs/pictures.py [NAME ...]` draws those named; without a name, all. Stills and movies are written to
docs/pictures.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from torchdismech import Trajectory
from torchdismech.io.run import run_scene
from torchdismech.io.scene import load_scene
from torchdismech.view.movie import pictures
from torchdismech.view.scenery import Scenery

ROOT = Path(__file__).parents[1]
STILL = (2400, 1800), (640, 480)  # pixels: as drawn for the whole run, and of what is cut out of it
MOVIE = (960, 720), (360, 270)
FRAMES = 40  # of a movie
COLOURS = 64  # of a movie; more make a larger file
SECONDS = 4.0  # that a movie lasts
WORDS = 1 / 30  # of a picture's height, in which its time is written


@dataclass(frozen=True)
class Shot:
    """How a robot is shown.

    Attributes
    ----------
    made : returns what is shown of the run whose frames are about `FRAMES`.
    still : the frame of its still; None: it has none.
    moves : whether it has a movie.
    followed : whether what is shown of the movie goes along with the robot.
    view : azimuth and elevation of the eye [degrees], by default as movies have them.
    """

    made: Callable[[], Scenery]
    still: int | None = None
    moves: bool = True
    followed: bool = False
    view: dict[str, float] = field(default_factory=dict)


def of_scene(name: str, robots: tuple[int, ...], **options: Any) -> Scenery:
    """Return what is shown of a scene in examples/."""
    path = ROOT / "examples" / name / "scene.toml"
    steps = load_scene(path).steps
    scene = load_scene(path, {"output.every": max(1, steps // FRAMES)})
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.h5"
        run_scene(scene, scene.build("cpu", allow_code=True), saved)  # so the file knows its scene
        return Scenery(Trajectory.load(saved), robots, **options)


def of_basic(name: str, **options: Any) -> Scenery:
    """Return what is shown of a basic example, with what its robot touches."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # what the example saves
        try:
            made = runpy.run_path(str(ROOT / "examples" / "basics" / f"{name}.py"))
        finally:
            os.chdir(here)
    return Scenery(made["run"], [0], **options)


def still(shot: Shot, scenery: Scenery) -> Image.Image:
    """Return the picture of one frame."""
    assert shot.still is not None
    drawn, size = STILL
    picture = list(pictures(scenery, drawn, **shot.view))[shot.still]
    return cut_out(picture, window([picture], size), size).quantize(128)


def movie(shot: Shot, scenery: Scenery) -> list[Image.Image]:
    """Return the pictures of all frames, cut alike and with the same colours."""
    size = MOVIE[1]
    frames = list(pictures(scenery, (STILL if shot.followed else MOVIE)[0], **shot.view))
    seen = followed(frames, size) if shot.followed else [window(frames, size)] * len(frames)
    small = [cut_out(frame, part, size) for frame, part in zip(frames, seen, strict=True)]
    strip = Image.fromarray(np.concatenate([np.asarray(image) for image in small[:: max(1, len(small) // 8)]]))
    palette = strip.quantize(COLOURS)
    return [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in small]


def window(frames: list[np.ndarray], size: tuple[int, int]) -> tuple[float, float, float]:
    """Return left, top and width of the part of pictures (height, width, 3) that shows something, without the words."""
    words = round(2 * WORDS * len(frames[0]))
    seen = np.any([(frame[words:] != frame[-1, -1]).any(-1) for frame in frames], axis=0)
    (top, bottom), (left, right) = (np.flatnonzero(seen.any(axis))[[0, -1]] for axis in (1, 0))
    width = 1.15 * max(right - left, (bottom - top) * size[0] / size[1])
    return (left + right - width) / 2, words + (top + bottom - width * size[1] / size[0]) / 2, width


def followed(frames: list[np.ndarray], size: tuple[int, int]) -> list[tuple[float, float, float]]:
    """Return the windows of pictures about what each shows, as wide as the widest."""
    own = [window([frame], size) for frame in frames]
    width = max(w for *_, w in own)
    high = size[1] / size[0]
    return [(left - (width - w) / 2, top - (width - w) * high / 2, width) for left, top, w in own]


def cut_out(picture: np.ndarray, seen: tuple[float, float, float], size: tuple[int, int]) -> Image.Image:
    """Return a window of a picture, in some size; what is beyond the picture, and its words, are background."""
    left, top, width = seen
    blank, words = tuple(picture[-1, -1].tolist()), round(2 * WORDS * len(picture))
    shown = picture.copy()
    shown[:words] = blank
    scale = size[0] / width
    small = Image.fromarray(shown).resize(
        (round(picture.shape[1] * scale), round(picture.shape[0] * scale)), Image.Resampling.LANCZOS
    )
    canvas = Image.new("RGB", size, blank)
    canvas.paste(small, (round(-left * scale), round(-top * scale)))
    return canvas


SHOTS = {
    "drape": Shot(lambda: of_basic("drape", colour="stretch"), still=-1, moves=False, view={"elevation": 25.0}),
    "gripper": Shot(lambda: of_scene("gripper", (0, 3, 7), apart=True, colour="curvature"), still=-1),
    "jellyfish": Shot(lambda: of_scene("jellyfish", (4,)), still=15),
    "parachute": Shot(lambda: of_scene("parachute", (0,)), still=-1, followed=True),
    "snake": Shot(lambda: of_scene("snake", (7, 8)), view={"azimuth": -90.0, "elevation": 89.0}),
    "contortion": Shot(lambda: of_scene("contortion", (5,), colour="twist")),
    "tendon_arm": Shot(lambda: of_scene("tendon_arm", (0,), colour="curvature")),
    "manta_ray": Shot(lambda: of_scene("manta_ray", (6,))),
}


def main(names: list[str]) -> None:
    """Draw the robots that are named, or all."""
    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for name in names or SHOTS:
        shot = SHOTS[name]
        scenery = shot.made()
        if shot.still is not None:
            still(shot, scenery).save(folder / f"{name}.png", optimize=True)
            print(f"wrote {folder / name}.png", flush=True)
        if shot.moves:
            first, *others = movie(shot, scenery)
            duration = 1000 * SECONDS / (1 + len(others))
            first.save(folder / f"{name}.gif", save_all=True, append_images=others, duration=duration, loop=0)
            print(f"wrote {folder / name}.gif", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
