"""Movies: pixels, files, and what is refused."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.view.runs import run_of, twisting
from torchdismech.cli import app
from torchdismech.errors import InputError
from torchdismech.view import movie, raster
from torchdismech.view.movie import pictures, save_movie, size_of_pictures
from torchdismech.view.raster import Camera, Triangles
from torchdismech.view.scenery import Scenery

pytest.importorskip("PIL")


def square(height: float, colour: tuple[int, int, int], half: float = 0.5, up: bool = True) -> Triangles:
    """Return a square in the x-y plane at a height, seen from above (or from below)."""
    corners = half * np.array([[-1.0, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]]) + [0, 0, height]
    faces = np.array([[0, 1, 2], [0, 2, 3]])
    normals = np.tile([0.0, 0, 1 if up else -1], (4, 1))
    colours = np.tile(np.array(colour, dtype=np.uint8), (4, 1))
    return Triangles(corners, normals, colours, faces if up else faces[:, ::-1], np.zeros(2, dtype=bool))


def above(width: int = 120, height: int = 80) -> Camera:
    """Return a camera that looks down on the unit square from above."""
    return Camera.finding(np.array([-0.5, -0.5, 0]), np.array([0.5, 0.5, 0]), -90.0, 90.0, width, height)


def reds(picture: np.ndarray) -> np.ndarray:
    """Return which pixels are redder than blue."""
    return picture[..., 0].astype(int) > picture[..., 2].astype(int) + 40


def test_square_covers_the_pixels_that_it_should():
    """Fill the picture's height but for the margin, without gaps between its two triangles."""
    picture = raster.draw(above(), square(0.0, (200, 0, 0)))
    side = 80 / raster.MARGIN
    covered = reds(picture)
    assert covered.sum() == pytest.approx(side**2, rel=0.04)  # half a pixel along each side of 74
    rows, columns = np.nonzero(covered)
    assert covered[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
    assert abs(rows.mean() - 39.5) < 0.51 and abs(columns.mean() - 59.5) < 0.51


def test_failed_robots_are_named():
    """Write under the time which robots have failed."""
    scenery = Scenery(twisting()[0])
    white = np.full((240, 320, 3), 255, dtype=np.uint8)
    none, one = (movie._labelled(white, scenery, 0.5, failed) for failed in ([], [1]))
    assert (none != one).any(axis=(1, 2)).nonzero()[0].min() >= 20  # below the first line


@pytest.mark.parametrize("first", [0, 1])
def test_the_nearer_one_is_seen(first):
    """Show what is nearer, in whatever order things are drawn; not what turns its back, unless it has two sides."""
    red, blue = square(0.3, (200, 0, 0), half=0.3), square(0.0, (0, 0, 200))
    parts = [red, blue] if first == 0 else [blue, red]
    picture = raster.draw(above(), Triangles.joined(parts))
    assert reds(picture)[40, 60] and picture[40, 30, 2] > 100
    back = square(0.3, (200, 0, 0), half=0.3, up=False)
    assert not reds(raster.draw(above(), Triangles.joined([back, blue])))[40, 60]
    both = Triangles(back.vertices, back.normals, back.colours, back.faces, np.ones(2, dtype=bool))
    assert reds(raster.draw(above(), Triangles.joined([blue, both])))[40, 60]


def test_two_that_cut_each_other_meet_where_they_do():
    """Find the border between a level and a sloped square where their heights are equal, perspective included."""
    level, sloped = square(0.0, (0, 0, 200)), square(0.0, (200, 0, 0))
    sloped.vertices[:, 2] = 0.4 * sloped.vertices[:, 0] - 0.04  # equal at x = 0.1
    camera = above(240, 160)
    covered = reds(raster.draw(camera, Triangles.joined([level, sloped])))
    border = np.nonzero(covered[80])[0].min()
    expected = camera.seen(np.array([[0.1, 0.0, 0.0]]), 1)[0][0, 0]
    assert abs(border - expected) < 1.0


def test_ball_looks_as_large_as_it_is():
    """Cover the disc that the tangents from the eye to a ball cut out."""
    import trimesh

    ball = trimesh.creation.icosphere(subdivisions=4, radius=0.5)
    colours = np.tile(np.array([200, 0, 0], dtype=np.uint8), (len(ball.vertices), 1))
    one_side = np.zeros(len(ball.faces), dtype=bool)
    camera = Camera.finding(np.full(3, -0.5), np.full(3, 0.5), 30.0, 20.0, 200, 200)
    picture = raster.draw(camera, Triangles(ball.vertices, ball.vertices / 0.5, colours, ball.faces, one_side))
    away = np.linalg.norm(camera.eye)
    disc = 0.5 / np.sqrt(away**2 - 0.25) * 100 / np.tan(raster.ANGLE / 2)
    assert reds(picture).sum() == pytest.approx(np.pi * disc**2, rel=0.02)  # of the border's pixels half


@pytest.mark.parametrize("size", [(120, 90), (320, 240), (960, 720)])
def test_what_is_written_is_apart_and_whole(size):
    """Write time, arrows and colours in places of their own, within the picture, however narrow it is."""
    run, _ = twisting()
    plain, coloured = Scenery(run, [0]), Scenery(run, [0], colour="curvature")
    white = np.full((size[1], size[0], 3), 255, dtype=np.uint8)
    time, both = (movie._labelled(white, scenery, 0.5, []) for scenery in (plain, coloured))
    written = np.abs(both.astype(int) - 255).max(-1) > 20
    assert not written[:, :10].any() and not written[:, -10:].any()
    rows, columns = np.nonzero(np.abs(time.astype(int) - 255).max(-1) > 20)
    if size[0] > 120:  # there letters are smaller
        corner = np.s_[: rows.max() + 1, : columns.max() + 2]
        assert np.array_equal(both[corner], time[corner])
    assert written.sum() > 1.5 * len(rows)


def test_camera_finds_the_robot():
    """Keep the robot within the picture in all frames, and fill much of it."""
    run, _ = twisting()
    scenery = Scenery(run, [0, 1])
    reached = []
    for picture in pictures(scenery, (160, 120)):
        background = picture[:, :1].astype(int)
        robot = np.abs(picture.astype(int) - background).max(-1)[26:] > 25  # below what is written there
        assert robot.any() and not robot[:, [0, -1]].any() and not robot[-1].any()
        reached.append(np.ptp(np.nonzero(robot)[1]))
    assert max(reached) > 80


def test_a_region_is_seen_wherever_the_robot_is():
    """Widen what is shown to a box: it holds robot and box, and the robot is drawn smaller."""
    run, _ = twisting()
    plain, box = Scenery(run, [0]), np.array([[-1.0, -1.0, 0.0], [0.0, 1.0, 0.0]])
    wide = Scenery(run, [0], region=box)
    assert np.array_equal(wide.low, np.minimum(plain.low, box[0]))
    assert np.array_equal(wide.high, np.maximum(plain.high, box[1]))
    sizes = []
    for scenery in (plain, wide):
        picture = next(pictures(scenery, (160, 120)))
        sizes.append((np.abs(picture.astype(int) - picture[:, :1]).max(-1)[26:] > 25).sum())
    assert 0 < sizes[1] < sizes[0] / 4


@pytest.mark.parametrize("ending", ["gif", "mp4"])
def test_movie_has_all_frames(tmp_path, ending):
    """Write each frame in the size and at the rate that were asked for, and nothing beside the movie."""
    run, _ = twisting()
    path = tmp_path / f"run.{ending}"
    if ending == "mp4":
        ffmpeg = pytest.importorskip("imageio_ffmpeg")
    save_movie(Scenery(run, [0], every=2), path, fps=10, size=(64, 48))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    if ending == "mp4":
        reader = ffmpeg.read_frames(str(path))
        found = next(reader)
        assert found["size"] == (64, 48) and found["fps"] == 10 and len(list(reader)) == 5
    else:
        from PIL import Image

        with Image.open(path) as image:
            assert image.size == (64, 48) and image.n_frames == 5 and image.info["duration"] == 100


@pytest.mark.parametrize("fps", [12.5, 26, 30, 45, 50])
def test_gifs_play_as_fast_as_asked_for(tmp_path, fps):
    """Show frame k of a .gif, which counts in hundredths of a second, at k / fps to the nearest of them."""
    from PIL import Image

    path, run = tmp_path / "run.gif", twisting()[0]
    save_movie(Scenery(run, [0]), path, fps, size=np.array([64, 48]))  # type: ignore[arg-type]
    begins = [0]
    with Image.open(path) as image:
        for k in range(image.n_frames):
            image.seek(k)
            begins.append(begins[-1] + image.info["duration"])
    assert len(begins) == len(run.positions) + 1
    assert np.abs(np.array(begins) - 1000 * np.arange(len(begins)) / fps).max() <= 5  # ms


def test_movies_that_cannot_be_are_refused(tmp_path, monkeypatch):
    """Name endings, folders, sizes and rates that do not work, and what is to be installed; leave nothing behind."""
    run, _ = twisting()
    scenery = Scenery(run, [0])
    refused = {
        "ends in .mp4 or .gif": {"path": tmp_path / "run.avi"},
        "there is no folder": {"path": tmp_path / "none" / "run.gif"},
        "--size: expected even numbers": {"path": tmp_path / "run.gif", "size": (63, 48)},
        "--fps: expected 1 to 50": {"path": tmp_path / "run.gif", "fps": 60},
        "--fps: expected 1 to 50, got '30'": {"path": tmp_path / "run.gif", "fps": "30"},
        "--size: expected even numbers .* got '960x720'": {"path": tmp_path / "run.gif", "size": "960x720"},
        "--azimuth: expected degrees, got '30'": {"path": tmp_path / "run.gif", "azimuth": "30"},
        "--fps: expected a number from 1 up, got 0": {"path": tmp_path / "run.mp4", "fps": 0},
    }
    for words, options in refused.items():
        with pytest.raises(InputError, match=words):
            save_movie(scenery, **options)
    with pytest.raises(InputError, match="--size: expected width and height in pixels such as 960x720, got '12'"):
        size_of_pictures("12")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(InputError, match=r"need imageio_ffmpeg: pip install 'torchdismech\[movie\]'"):
        save_movie(scenery, tmp_path / "run.mp4")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"need PIL: pip install 'torchdismech\[movie\]'"):
        save_movie(scenery, tmp_path / "run.gif")
    assert not list(tmp_path.iterdir())


def test_missing_ffmpeg_is_said(tmp_path, monkeypatch):
    """Say what to do where there is no program ffmpeg."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg")

    def none() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr(ffmpeg, "get_ffmpeg_exe", none)
    with pytest.raises(InputError, match="install ffmpeg and name it in the variable IMAGEIO_FFMPEG_EXE"):
        save_movie(Scenery(twisting()[0], [0]), tmp_path / "run.mp4")


def test_the_command_makes_a_movie(tmp_path):
    """Make a movie; refuse robots and files that are not there, and to write over things, in one line."""
    run = run_of(tmp_path)

    def call(*arguments, status: int = 0):
        result = CliRunner().invoke(app, ["movie", *map(str, arguments), "--no-progress", "--size", "64x48"])
        assert result.exit_code == status, (result.output, result.exception)
        return result

    said = call(run, "--out", tmp_path / "a.gif", "--robots", "0,2", "--apart", "--every", 2, "--colour", "twist")
    assert said.stdout.strip() == f"wrote {tmp_path / 'a.gif'}: 4 frames, 0.13 s" and not said.stderr
    (tmp_path / "text.h5").write_text("no trajectory")
    refused = {
        "not a trajectory file": (tmp_path / "text.h5", "--out", tmp_path / "b.gif"),
        "no such file": (tmp_path / "none.h5", "--out", tmp_path / "b.gif"),
        "--azimuth: expected degrees, got nan": (run, "--out", tmp_path / "b.gif", "--azimuth", "nan"),
        "a folder; expected a file": (tmp_path, "--out", tmp_path / "b.gif"),
        "--robots: expected numbers 0 to 2": (run, "--out", tmp_path / "b.gif", "--robots", "3"),
        "pass --overwrite": (run, "--out", tmp_path / "a.gif"),
        "is the run of this very command": (run, "--out", run),
        "no movie": (run, "--out", tmp_path / "scene.toml", "--overwrite"),
    }
    for words, arguments in refused.items():
        result = call(*arguments, status=2)
        assert words in result.stderr and result.stderr.count("\n") == 1, result.stderr
    call(run, "--out", tmp_path / "a.gif", "--overwrite")
