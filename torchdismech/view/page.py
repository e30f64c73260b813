"""A page in the browser that shows a run (`Page`), or one that is still going on (`Live`), by the package viser."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdismech.errors import InputError
from torchdismech.model.appearance import Appearance
from torchdismech.trajectory import Frame, Recorder, Trajectory
from torchdismech.view.arrows import COLOUR
from torchdismech.view.colours import QUANTITIES
from torchdismech.view.gltf import still_glb
from torchdismech.view.raster import Camera
from torchdismech.view.scenery import Placed, Scenery, Shown, chosen_robots

if TYPE_CHECKING:
    from viser import ViserServer

__all__ = ["Live", "Page", "Wanted"]

TICK = 1 / 30  # s, between two calls of `Page.tick`
AZIMUTH, ELEVATION = -60.0, 18.0  # degrees: the direction from which robots are seen first
FIELD = 0.9  # rad, the angle of the page's camera from top to bottom


@dataclass(frozen=True)
class Wanted:
    """The choices of what a page shows.

    Attributes
    ----------
    robots : text that `chosen_robots` reads, such as "all" or "0,3,8-11".
    colour, apart, radius, contact : as of `Scenery`.
    """

    robots: str = "all"
    colour: str = "robot"
    apart: bool = False
    radius: float | None = None
    contact: bool = False

    def scenery(self, trajectory: Trajectory, every: int = 1) -> Scenery:
        """Return the scenery of a run with these choices, of every `every`-th frame."""
        chosen = chosen_robots(self.robots, trajectory.batch)
        return Scenery(trajectory, chosen, every, self.colour, self.apart, self.radius, self.contact)


class Page:
    """A page that shows a run; it changes in `tick` alone, which reads what the user has set.

    Parameters
    ----------
    trajectory : the run.
    wanted : what the page shows first.
    every : show every `every`-th frame of the run, and the last one.
    host, port : where the page is served; if the port is taken, at the next one that is free.
    fps : frames per second while it plays.

    Raises
    ------
    InputError
        viser is not installed; the run cannot be shown as `wanted`; no page can be served there.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        wanted: Wanted | None = None,
        every: int = 1,
        host: str = "127.0.0.1",
        port: int = 8080,
        fps: int = 30,
    ):
        self._trajectory, self._every, self._fps = trajectory, every, fps
        self._wanted = Wanted() if wanted is None else wanted
        self.scenery = self._wanted.scenery(trajectory, every)
        self._server = _server(host, port)
        self._stage = _Stage(self._server, self.scenery)
        gui = self._server.gui
        last = len(self.scenery) - 1
        self.frame: Any = gui.add_slider("frame", 0, max(last, 1), 1, 0, disabled=last == 0)
        self.play: Any = gui.add_checkbox("play", False, disabled=last == 0)
        self._time = gui.add_markdown("")
        self._robots = gui.add_text("robots", self._wanted.robots, hint="all, or numbers and ranges as 0,3,8-11")
        self._colour = gui.add_dropdown("colour", ["robot", *QUANTITIES], initial_value=self._wanted.colour)
        self._apart = gui.add_checkbox("side by side", self._wanted.apart)
        self._contact = gui.add_checkbox("contact forces", self._wanted.contact, disabled=not trajectory.contact)
        self._legend = gui.add_markdown(_legend(self.scenery))
        self._shown = -1
        self._due = 0.0  # when the next frame is due, while it plays
        self.tick()

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{self._server.get_host()}:{self._server.get_port()}"

    def run(self) -> None:
        """Serve the page until the program is interrupted."""
        try:
            while True:
                self.tick()
                time.sleep(TICK)
        finally:
            self.close()

    def tick(self) -> None:
        """Follow the user's choices, and show the frame that is chosen, or the next one while the page plays."""
        self._follow_choices()
        now = time.monotonic()
        if self.play.value and now >= self._due:
            self.frame.value = (int(self.frame.value) + 1) % len(self.scenery)
            self._due = max(self._due, now - TICK) + 1 / self._fps
        index = min(int(self.frame.value), len(self.scenery) - 1)
        if index != self._shown:
            shown = self.scenery.shown(index)
            self._stage.show(shown)
            self._time.content = f"time {shown.time:.4g} s"
            self._shown = index

    def close(self) -> None:
        """Stop serving the page."""
        self._server.stop()

    def _follow_choices(self) -> None:
        """Make a new scenery if the user has changed a choice; where it cannot be shown, say why in the legend."""
        wanted = replace(
            self._wanted,
            robots=self._robots.value,
            colour=self._colour.value,
            apart=self._apart.value,
            contact=self._contact.value,
        )
        if wanted == self._wanted:
            return
        self._wanted = wanted
        try:
            scenery = wanted.scenery(self._trajectory, self._every)
        except InputError as error:
            self._legend.content = f"**{error}**"
            return
        self.scenery, self._shown = scenery, -1
        self._stage.set(scenery)
        self._legend.content = _legend(scenery)


class Live:
    """A page that shows a run while it goes on: `rollout(..., writer=Live())`; it keeps the frames, too.

    The page stays after the run until `stop`, at its last frame.

    Parameters
    ----------
    wanted : what the page shows.
    host, port : as of `Page`.

    Attributes
    ----------
    address : the URL of the page.
    """

    def __init__(self, wanted: Wanted | None = None, host: str = "127.0.0.1", port: int = 8080):
        self._wanted = Wanted() if wanted is None else wanted
        self._server, self._recorder = _server(host, port), Recorder()
        self._time = self._server.gui.add_markdown("")
        self._stage: _Stage | None = None
        self._first: Frame | None = None
        self.address = f"http://{self._server.get_host()}:{self._server.get_port()}"

    def start(self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray, appearance: Appearance) -> None:
        """Begin with `rows` frames to come, their topology, and the appearance of robots and obstacles."""
        self._about, self._first = (rod_edges, triangles, appearance), None
        self._recorder.start(rows, *self._about)

    def append(self, frame: Frame) -> None:
        """Show a frame and keep it."""
        frame = frame.cpu()
        self._recorder.append(frame)
        recent = Recorder()
        recent.start(2, *self._about)
        if self._first is not None:  # which stretch is measured against
            recent.append(self._first)
        recent.append(frame)
        scenery = self._wanted.scenery(recent.trajectory())
        if self._stage is None:
            self._stage = _Stage(self._server, scenery)
        elif self._first is None:  # of another run
            self._stage.set(scenery)
        else:
            self._stage.follow(scenery)
        self._first = frame if self._first is None else self._first
        self._stage.show(scenery.shown(len(scenery) - 1))
        self._time.content = f"time {float(scenery.times[-1]):.4g} s, step {frame.step}"

    def close(self) -> None:
        """Do nothing: the page stays."""

    def stop(self) -> None:
        """Stop serving the page."""
        self._server.stop()

    def trajectory(self) -> Trajectory:
        """Return the trajectory of all frames shown so far."""
        return self._recorder.trajectory()


class _Stage:
    """The meshes in the page: one of all robots, one of all arrows, and one for each obstacle."""

    def __init__(self, server: ViserServer, scenery: Scenery):
        self._server = server
        server.scene.set_up_direction("+z")
        server.scene.world_axes.visible = False
        self._robots: Any = None
        self._arrows: Any = None
        self._obstacles: list[Any] = []
        self.set(scenery)

    def set(self, scenery: Scenery) -> None:
        """Replace obstacles and arrows by those of a scenery, and put the camera where it sees the robots."""
        for mesh in (*self._obstacles, *([] if self._arrows is None else [self._arrows])):
            mesh.remove()
        self._scenery, self._arrows = scenery, None
        self._obstacles = [self._added(k, placed) for k, placed in enumerate(scenery.obstacles)]
        camera = Camera.finding(scenery.low, scenery.high, AZIMUTH, ELEVATION, 4, 3, FIELD)
        middle = 0.5 * (scenery.low + scenery.high)
        first = self._server.initial_camera
        first.position, first.look_at, first.fov = tuple(camera.eye), tuple(middle), FIELD
        first.near, first.far = (x * float(np.linalg.norm(camera.eye - middle)) for x in (1e-3, 1e3))
        for client in self._server.get_clients().values():
            client.camera.position, client.camera.look_at = first.position, first.look_at

    def follow(self, scenery: Scenery) -> None:
        """Take another scenery of the same robots and obstacles, and leave the camera where it is."""
        before, self._scenery = self._scenery, scenery
        for k, (old, new) in enumerate(zip(before.obstacles, scenery.obstacles, strict=True)):
            if not np.array_equal(old.surface.vertices, new.surface.vertices):  # a floor, below all that robots reach
                self._obstacles[k] = self._added(k, new)

    def _added(self, number: int, placed: Placed) -> Any:
        """Return the mesh of an obstacle in the page; one that has this number already is replaced."""
        surface = placed.surface
        return self._server.scene.add_mesh_simple(
            f"/obstacles/{number}",
            surface.vertices,
            surface.faces,
            color=surface.colours[0],
            opacity=0.6,
            side="double",
            position=tuple(placed.offset.tolist()),
        )

    def show(self, shown: Shown) -> None:
        """Show a frame."""
        content = still_glb(shown, self._scenery.surface.faces)
        with self._server.atomic():
            if self._robots is None:
                self._robots = self._server.scene.add_glb("/robots", content)
            else:
                self._robots.glb_data = content
            if self._scenery.arrows is not None and shown.arrows is not None:
                # replaces the arrows before, which have the same name
                faces = self._scenery.arrows.faces
                self._arrows = self._server.scene.add_mesh_simple("/contact", shown.arrows[0], faces, color=COLOUR)
            for mesh, placed in zip(self._obstacles, self._scenery.obstacles, strict=True):
                shift = placed.surface.displacements(np.array([shown.time]))[0]
                mesh.position = tuple((placed.offset + shift).tolist())


def _server(host: str, port: int) -> ViserServer:
    try:
        import viser
    except ImportError as error:
        raise InputError("the page needs viser: pip install 'torchdismech[view3d]'") from error
    if not 0 < port < 65536:
        raise InputError(f"--port: expected 1 to 65535, got {port}")
    try:  # viser itself would wait for ever for an address that it cannot have
        socket.create_server((host, port)).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:  # if only the port is in use, viser takes the next one
            why = error.strerror or error
            raise InputError(f"--host {host} --port {port}: no page can be served there: {why}") from error
    return viser.ViserServer(host=host, port=port, label="torchdismech", verbose=False)


def _legend(scenery: Scenery) -> str:
    """Return as Markdown what colours and arrows mean, and the scenery's remarks."""
    scale = scenery.scale
    lines = [f"{remark}  " for remark in scenery.remarks]
    lines += [] if scenery.arrows is None else [f"{scenery.arrows.said}  "]
    if scale is not None:
        samples = scale.colours(np.linspace(scale.low, scale.high, 24))
        bar = "".join(f'<span style="color:rgb({r},{g},{b})">█</span>' for r, g, b in samples.tolist())
        lines += [bar, "", scale.ends]
    return "\n".join(lines)
