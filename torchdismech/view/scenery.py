"""Scenery: the robots and frames of a run that are shown, with their colours and obstacles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from torchdismech.errors import InputError, refuse_one_alone, truth, whole_number
from torchdismech.model.appearance import Appearance, Thing
from torchdismech.robot.body import Sections
from torchdismech.trajectory import Trajectory
from torchdismech.trajectory.frames import refuse_no_run
from torchdismech.view.arrows import VERTICES, Arrows, ContactForces
from torchdismech.view.colours import Scale, node_values
from torchdismech.view.directors import material_directors
from torchdismech.view.surfaces import ObstacleSurface, RobotSurface, circles, guessed_radius

__all__ = ["Placed", "Scenery", "Shown", "chosen_robots", "with_bar"]

GAP = 0.2  # between robots side by side, of the largest robot's size
VERTICES_AT_ONCE = 1 << 20  # vertices that are made at a time

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """One frame, as it is shown.

    Attributes
    ----------
    row, time : its row in the trajectory and its time [s].
    vertices, normals, colours : (R, V, 3) of the robots: [m], unit vectors, uint8.
    arrows : (2, V, 3) vertices and normals of the arrows of contact forces; None where they are not shown.
    """

    row: int
    time: float
    vertices: np.ndarray
    normals: np.ndarray
    colours: np.ndarray
    arrows: np.ndarray | None = None

    def as_one(self, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return vertices, normals, colours (R V, 3) and triangles (R F, 3) of all robots, whose own are `faces`."""
        count, size = self.vertices.shape[:2]
        vertices, normals, colours = (x.reshape(-1, 3) for x in (self.vertices, self.normals, self.colours))
        return vertices, normals, colours, (faces + size * np.arange(count)[:, None, None]).reshape(-1, 3)


@dataclass(frozen=True)
class Placed:
    """The surface of an obstacle, and the offset (3,) [m] by which it is moved together with its robot."""

    surface: ObstacleSurface
    offset: np.ndarray


class Scenery:
    """Robots of a run with their obstacles, ready to be shown frame by frame.

    Parameters
    ----------
    trajectory : the run.
    robots : which robots of the batch; None: all.
    every : take every `every`-th frame, and the last one.
    colour : "robot" for one colour each, or one of `colours.QUANTITIES`.
    apart : put robots side by side; else they are overlaid, with the obstacles of the first of them.
    radius : radius of all rods [m]; by default the run's sections, or a quarter of an edge if it has none.
    contact : show contact forces as arrows (see `view.arrows`).
    region : (2, 3) corners of a box [m] that is shown, too, wherever the robots are; floors reach as far.

    Attributes
    ----------
    frames : (T,) rows of the trajectory.
    surface : surface of the robots.
    obstacles : surfaces of the obstacles, with their offsets.
    arrows : arrows of contact forces; None where they are not shown.
    scale : the colour scale of the quantity; None where each robot has its own colour.
    half : (R, E, 2) half of the sizes of the rods' sections along both directors [m].
    offsets : (R, 3) by which the robots are moved to stand side by side [m].
    remarks : sentences on what is not known or cannot be shown.
    low, high : (3,) corners of a box around all that is shown of the robots in all frames [m].

    Raises
    ------
    InputError
        No robots, or one that there is not; an argument out of range; a quantity or forces that the run does not have.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        robots: Sequence[int] | None = None,
        every: int = 1,
        colour: str = "robot",
        apart: bool = False,
        radius: float | None = None,
        contact: bool = False,
        region: np.ndarray | None = None,
    ):
        refuse_no_run("Scenery: trajectory", trajectory)
        apart, contact = truth(apart, "Scenery: apart"), truth(contact, "Scenery: contact")
        robots = range(trajectory.batch) if robots is None else robots
        _refuse_robots(robots, trajectory.batch)
        self.trajectory, self.robots = trajectory, np.array(robots, dtype=np.int64)
        self.frames = _every(len(trajectory.time), every)
        self._failed_by = np.logical_or.accumulate(trajectory.status.numpy() != 0)
        appearance = trajectory.appearance()
        self.remarks = [f"not shown: {name}: {kind} is a shape of its own" for name, kind in appearance.unknown.items()]
        sections = self._sections(appearance, radius)
        self.surface = RobotSurface(trajectory, sections, self.robots)
        self.half = self.surface.half
        self._directors = material_directors(trajectory, self.frames, self.robots)
        self.scale = self._scale(colour)
        low, high = self._reach(max(float(x.max(initial=0.0)) for x in (sections.height, sections.width)))
        if region is not None:
            low, high = np.minimum(low, region[0]), np.maximum(high, region[1])
        self.offsets = _side_by_side(len(robots), (high - low).max(0)) if apart else np.zeros((len(robots), 3))
        self.low, self.high = (low + self.offsets).min(0), (high + self.offsets).max(0)
        self.obstacles = self._placed(appearance.things, low, high, apart)
        self.arrows = self._arrows(float((high - low).max())) if contact else None

    def _sections(self, appearance: Appearance, radius: float | None) -> Sections:
        """Return the sections of the rods; a remark is added where their radius is guessed."""
        edges = len(self.trajectory.rod_edges)
        if radius is None and appearance.sections is not None:
            rows, count = np.atleast_2d(appearance.sections.height).shape
            if count != edges or rows not in (1, self.trajectory.batch):
                robots = f"{self.trajectory.batch} robots of {edges} rod edges"
                raise InputError(f"the run has {robots}, and sections of {rows} of {count}: give --radius")
            return appearance.sections
        if radius is None and edges:
            radius = guessed_radius(self.trajectory)
            guess = f"a radius of {radius:.3g} m, a quarter of an edge: the run does not say theirs"
            self.remarks.append(f"rods are drawn with {guess}")
        return circles(edges, 1.0 if radius is None else radius)

    def _arrows(self, size: float) -> Arrows:
        """Return the arrows of contact forces; the box `low`, `high` is widened to have room for them."""
        arrows = Arrows(ContactForces(self.trajectory), self.frames, self.robots, size)
        down, up = arrows.reach()
        self.low, self.high = self.low + down, self.high + up
        return arrows

    @property
    def times(self) -> np.ndarray:
        """Times (T,) of the frames [s]."""
        return self.trajectory.time.numpy()[self.frames]

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[Shown]:
        """Yield the frames in their order; surfaces are computed for many frames at a time."""
        arrows = 0 if self.arrows is None else VERTICES * self.arrows.count
        size = max(1, VERTICES_AT_ONCE // max(1, len(self.robots) * len(self.surface.node) + arrows))
        for first in range(0, len(self.frames), size):
            yield from self._block(slice(first, first + size))

    def failed(self, row: int) -> list[int]:
        """Return the robots shown that have failed by a row of the trajectory, and stand still since."""
        return [int(robot) for robot in self.robots if self._failed_by[row, robot]]

    def shown(self, index: int) -> Shown:
        """Return one frame, the one at an index of `frames`."""
        return self._block(slice(index, index + 1))[0]

    def _block(self, index: slice) -> list[Shown]:
        rows, directors = self.frames[index], self._directors[index]
        vertices, normals = self.surface.vertices(rows, directors)
        vertices = vertices + self.offsets[:, None].astype(np.float32)
        if self.scale is None:
            colours = np.broadcast_to(self.surface.coloured_by_robot(), vertices.shape)
        else:
            colours = self.surface.coloured(self.values(self.scale.name, index), self.scale)
        arrows = [None] * len(rows)
        if self.arrows is not None:
            arrows = list(np.stack(self.arrows.vertices(index, self.offsets), axis=1))
        arrays = zip(rows, self.times[index], vertices, normals, colours, arrows, strict=True)
        return [Shown(int(row), float(time), v, n, c, a) for row, time, v, n, c, a in arrays]

    def values(self, name: str, index: slice) -> np.ndarray:
        """Return a quantity at the nodes, (T, R, N), in some of the frames (see `colours.node_values`)."""
        return node_values(name, self.trajectory, self.frames[index], self.robots, self._directors[index])

    def _scale(self, colour: str) -> Scale | None:
        return None if colour == "robot" else Scale.of(colour, self.values(colour, slice(None)))

    def _reach(self, thickness: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the corners, each (R, 3) [m], of a box around each robot in all frames."""
        x = self.trajectory.positions.numpy()
        frames = [x[row, self.robots] for row in self.frames]
        low = np.min([frame.min(1) for frame in frames], axis=0) - 0.5 * thickness
        return low, np.max([frame.max(1) for frame in frames], axis=0) + 0.5 * thickness

    def _placed(self, obstacles: Sequence[Thing], low: np.ndarray, high: np.ndarray, apart: bool) -> list[Placed]:
        batch = self.trajectory.batch
        if not apart:
            first = int(self.robots[0])
            return [Placed(ObstacleSurface(o, first, batch, self.low, self.high), np.zeros(3)) for o in obstacles]
        return [
            Placed(ObstacleSurface(o, int(robot), batch, low[k], high[k]), self.offsets[k])
            for o in obstacles
            for k, robot in enumerate(self.robots)
        ]


def with_bar(frames: Iterable[T], count: int, name: str) -> Iterable[T]:
    """Return frames that move a progress bar as they are taken."""
    from tqdm import tqdm

    return tqdm(frames, total=count, unit="frame", desc=name)


def chosen_robots(text: str, batch: int) -> list[int]:
    """Return the robots that a text names: "all", or numbers and ranges such as "0,3,8-11".

    Raises
    ------
    InputError
        It is no such text, or there is no such robot.
    """
    if text == "all":
        return list(range(batch))
    robots: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        if match is None:
            raise InputError(f"--robots: expected all, or numbers and ranges such as 0,3,8-11, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < batch:
            raise InputError(f"--robots: expected numbers 0 to {batch - 1}, rising, got {part.strip()}")
        robots += [robot for robot in range(first, last + 1) if robot not in robots]
    return robots


def _refuse_robots(robots: Sequence[int], batch: int) -> None:
    """Refuse an empty list of robots, and robots that a batch does not have."""
    refuse_one_alone("Scenery: robots", robots, "robots")
    wrong = [robot for robot in robots if not 0 <= whole_number(robot, "Scenery: robots", least=0) < batch]
    if wrong or not len(robots):
        got = wrong[0] if wrong else "none"
        raise InputError(f"Scenery: robots: expected one or more of the robots 0 to {batch - 1}, got {got}")


def _every(count: int, every: int) -> np.ndarray:
    """Return every `every`-th of `count` rows, and the last one."""
    return np.unique(np.append(np.arange(0, count, whole_number(every, "every")), count - 1))


def _side_by_side(count: int, size: np.ndarray) -> np.ndarray:
    """Return the offsets (count, 3) [m] that put robots of a size (3,) [m] in a square, in rows along x."""
    columns = int(np.ceil(np.sqrt(count)))
    step = size[:2] + GAP * size.max()
    k = np.arange(count)
    return np.stack([step[0] * (k % columns), step[1] * (k // columns), np.zeros(count)], axis=1)
