"""Movies of trajectories as .mp4 or .gif, rendered by `raster` without a display."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from torchdismech.errors import InputError, finite_number, listed, path_of, real_number, refuse_other_kind, truth
from torchdismech.io.outputs import refuse_no_place, replacing
from torchdismech.view.arrows import COLOUR
from torchdismech.view.raster import Camera, Triangles, draw
from torchdismech.view.scenery import Scenery, Shown, with_bar

__all__ = ["is_movie", "pictures", "refuse_no_pictures", "save_movie", "size_of_pictures"]

INSTALL = "pip install 'torchdismech[movie]'"
FASTEST_GIF = 50  # most frames per second that programs show of a .gif
BAR = 160  # width of the colour bar [pixels]
EDGE = 12  # distance from the picture's sides to what is written on it [pixels]
SMALLEST = 6  # least size of letters [pixels]
DARK = (40, 40, 40)


def save_movie(
    scenery: Scenery,
    path: str | Path,
    fps: float = 30,
    size: tuple[int, int] = (960, 720),
    azimuth: float | None = None,
    elevation: float | None = None,
    progress: bool = False,
) -> None:
    """Write a movie of a run; if it is stopped half-way, no file is left.

    Parameters
    ----------
    scenery : what it shows, `Scenery(trajectory)` of a run.
    path : its ending, .mp4 or .gif, says the format.
    fps : frames per second.
    size : width and height [pixels], even.
    azimuth, elevation : the direction from which it is seen [degrees]: about z from x, and up from the x-y plane. By
        default from the front and the right, or straight at the x-z plane for robots that stay near it.
    progress : show a progress bar.

    Raises
    ------
    InputError
        No scenery, another ending, a size or a rate that the format does not have, no such folder, a missing package, a
        file that cannot be written.
    """
    refuse_other_kind(
        "save_movie: scenery", scenery, Scenery, "what is shown of a run, view.scenery.Scenery(trajectory)"
    )
    path = path_of(path, "save_movie")
    write = _writer(path, fps, size)
    for name, angle in (("azimuth", azimuth), ("elevation", elevation)):
        if angle is not None:
            finite_number(angle, f"--{name}", "degrees")
    frames: Iterable[np.ndarray] = pictures(scenery, size, azimuth, elevation)
    if truth(progress, "save_movie: progress"):
        frames = with_bar(frames, len(scenery), path.name)
    with replacing(path) as part:
        write(part, frames, fps, size)


def size_of_pictures(text: str) -> tuple[int, int]:
    """Return width and height [pixels] of a text such as "960x720"."""
    match = re.fullmatch(r"\s*(\d{1,5})\s*x\s*(\d{1,5})\s*", text)
    if match is None:
        raise InputError(f"--size: expected width and height in pixels such as 960x720, got {text!r}")
    return int(match[1]), int(match[2])


def pictures(
    scenery: Scenery, size: tuple[int, int], azimuth: float | None = None, elevation: float | None = None
) -> Iterator[np.ndarray]:
    """Yield the pictures (height, width, 3) uint8 of the frames, with time and colours written on them."""
    flat = np.ptp([scenery.low, scenery.high], axis=0)[1] < 0.05 * (scenery.high - scenery.low).max()
    azimuth = (-90.0 if flat else -60.0) if azimuth is None else azimuth
    elevation = (0.0 if flat and not scenery.obstacles else 18.0) if elevation is None else elevation
    camera = Camera.finding(scenery.low, scenery.high, azimuth, elevation, *size)
    for shown in scenery:
        yield _labelled(draw(camera, _triangles(scenery, shown)), scenery, shown.time, scenery.failed(shown.row))


def _triangles(scenery: Scenery, shown: Shown) -> Triangles:
    """Return all triangles of a frame: robots, obstacles and arrows."""
    both_sides = np.tile(scenery.surface.shell, len(shown.vertices))
    parts = [Triangles(*shown.as_one(scenery.surface.faces), both_sides)]
    for placed in scenery.obstacles:
        obstacle = placed.surface
        vertices = obstacle.vertices + placed.offset + obstacle.displacements(np.array([shown.time]))[0]
        parts.append(
            Triangles(
                vertices, obstacle.normals, obstacle.colours, obstacle.faces, np.zeros(len(obstacle.faces), dtype=bool)
            )
        )
    if scenery.arrows is not None and shown.arrows is not None:
        faces, (vertices, normals) = scenery.arrows.faces, shown.arrows
        colours = np.broadcast_to(np.array(COLOUR, dtype=np.uint8), vertices.shape)
        parts.append(Triangles(vertices, normals, colours, faces, np.zeros(len(faces), dtype=bool)))
    return Triangles.joined(parts)


def _labelled(picture: np.ndarray, scenery: Scenery, time: float, failed: Sequence[int]) -> np.ndarray:
    """Return the picture with time [s], robots that have failed, arrows' legend and colour scale written on it."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(picture)
    pen, room = ImageDraw.Draw(image), image.width - 2 * EDGE
    lines = [(f"{time:.3f} s", DARK)] + ([] if scenery.arrows is None else [(scenery.arrows.said, COLOUR)])
    if failed:
        lines.append((f"failed: robot {listed(failed)}", DARK))
    scale = scenery.scale
    longest = max([text for text, _ in lines] + ([] if scale is None else [scale.ends]), key=len)
    size, font = _font_for(pen, longest, max(12, image.height // 36), room)
    one_line = "" if scale is None else lines[0][0] + scale.ends
    beside = scale is not None and pen.textlength(one_line, font=font) + BAR + 2 * EDGE <= room
    if scale is not None and not beside:  # in a narrow picture the scale is below the other lines, at the left
        lines.append((scale.ends, DARK))
    for line, (text, fill) in enumerate(lines):
        pen.text((EDGE, 10 + line * (size + 4)), text, fill=fill, font=font)
    if scale is not None:
        bar = min(BAR, room)
        strip = scale.colours(np.linspace(scale.low, scale.high, bar))[None].repeat(10, axis=0)
        left, top = (image.width - bar - EDGE, 14) if beside else (EDGE, 14 + len(lines) * (size + 4))
        image.paste(Image.fromarray(strip), (left, top))
        if beside:
            pen.text((left - 10, 10), scale.ends, fill=DARK, font=font, anchor="ra")
    return np.asarray(image)


def _font_for(pen: Any, text: str, size: int, room: int) -> tuple[int, Any]:
    """Return the largest font, and its size, in which a text is at most `room` pixels wide.

    It is no larger than `size`; letters of `SMALLEST` pixels are taken even if the text is then too wide.
    """
    from PIL import ImageFont

    font = ImageFont.load_default(size=size)
    while size > SMALLEST and pen.textlength(text, font=font) > room:
        size -= 1
        font = ImageFont.load_default(size=size)
    return size, font


def refuse_no_pictures(name: str, size: object) -> None:
    """Refuse a size, by its name, that `pictures` cannot have; and all sizes where Pillow is missing."""
    sides = list(size) if isinstance(size, Sequence | np.ndarray) else []
    whole = len(sides) == 2 and all(isinstance(side, int | np.integer) for side in sides)
    if not whole or any(side % 2 or not 16 <= side <= 8192 for side in sides):
        raise InputError(f"{name}: expected even numbers of pixels from 16 to 8192, as in (960, 720), got {size!r}")
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise InputError(f"pictures need {error.name}: {INSTALL}") from error


def _writer(path: Path, fps: float, size: tuple[int, int]) -> Any:
    """Return the function that writes files of the path's format; refuse sizes and rates that it does not have."""
    writers = {".mp4": _write_mp4, ".gif": _write_gif}
    ending = path.suffix.lower()
    if ending not in writers:
        raise InputError(f"--out {path}: expected a name that ends in .mp4 or .gif")
    refuse_no_place(path)
    refuse_no_pictures("--size", size)
    expected = f"1 to {FASTEST_GIF}" if ending == ".gif" else "a number from 1 up"
    rate = real_number(fps, "--fps", expected)
    if not 1 <= rate < math.inf or (ending == ".gif" and rate > FASTEST_GIF):
        raise InputError(f"--fps: expected {expected}, got {fps}")
    try:
        if ending == ".mp4":
            import imageio_ffmpeg

            imageio_ffmpeg.get_ffmpeg_exe()
    except ImportError as error:
        raise InputError(f"movies need {error.name}: {INSTALL}") from error
    except RuntimeError as error:
        raise InputError(
            "movies as .mp4 need the program ffmpeg, which imageio-ffmpeg does not bring for this machine: install "
            "ffmpeg and name it in the variable IMAGEIO_FFMPEG_EXE, or write a .gif"
        ) from error
    return writers[ending]


def _write_mp4(path: Path, frames: Iterable[np.ndarray], fps: float, size: tuple[int, int]) -> None:
    import imageio_ffmpeg

    stream = imageio_ffmpeg.write_frames(
        str(path), size, fps=fps, quality=7, macro_block_size=2, ffmpeg_log_level="error"
    )
    stream.send(None)
    try:
        for frame in frames:
            stream.send(np.ascontiguousarray(frame))
    finally:
        stream.close()


def _write_gif(path: Path, frames: Iterable[np.ndarray], fps: float, size: tuple[int, int]) -> None:
    from PIL import Image

    # Colours are chosen to be far apart, not to cover most pixels: else thin rods would lose theirs.
    few = Image.Quantize.MAXCOVERAGE
    images = [Image.fromarray(frame).quantize(method=few) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=_durations(len(images), fps), loop=0)


def _durations(count: int, fps: float) -> list[int]:
    """Return how long each frame of a .gif is shown [ms].

    A .gif counts hundredths of a second: frames may differ by one of these, so that all together take count / fps.
    """
    begins = [10 * round(100 * k / fps) for k in range(count + 1)]
    return [end - begin for begin, end in pairwise(begins)]


def is_movie(path: Path) -> bool:
    """Return whether a file begins with the bytes of the movie format that its name's ending says."""
    with path.open("rb") as file:
        beginning = file.read(8)
    if path.suffix.lower() == ".gif":
        return beginning[:4] == b"GIF8"
    return path.suffix.lower() == ".mp4" and beginning[4:] == b"ftyp"
