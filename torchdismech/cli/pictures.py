"""Commands that show runs: plot, movie, export, view."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdismech.cli.ending import refusing, say_written
from torchdismech.cli.options import Apart, Colour, Contact, Every, Overwrite, Radius, Robots, Run
from torchdismech.system import interrupts

if TYPE_CHECKING:
    from torchdismech.view.scenery import Scenery

__all__ = ["export", "movie", "plot", "view"]


@refusing
def plot(
    run: Run,
    node: Annotated[int, typer.Option(help="The node whose path is drawn; -1 is the last.")] = -1,
    robot: Annotated[int, typer.Option(help="The robot of the batch.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The picture; by default run.png beside the file.")] = None,
    snapshots: Annotated[
        int | None,
        typer.Option(min=1, help="How many shapes are drawn, the last among them; by default 9, with shells 4."),
    ] = None,
    energies: Annotated[bool, typer.Option("--energies", help="Draw the energies over time instead.")] = False,
    contact: Annotated[
        bool, typer.Option("--contact", help="Draw contacts and their forces over time instead.")
    ] = False,
    strains: Annotated[bool, typer.Option("--strains", help="Draw the strains over time instead.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Draw shapes of a robot at several times, and how a node moves."""
    from torchdismech.errors import InputError
    from torchdismech.io.outputs import is_picture, refuse_input, refuse_overwriting
    from torchdismech.trajectory import Trajectory
    from torchdismech.view import save_curves, save_picture

    curves = energies or contact or strains
    if curves and (node != -1 or snapshots is not None):
        raise InputError(
            "--energies, --contact and --strains draw curves over time: --node and --snapshots do not apply"
        )
    path = out or run.with_suffix(".png")
    refuse_input(path, {"the run": run})
    refuse_overwriting(path, overwrite, "picture", is_picture, "")
    trajectory = Trajectory.load(run)
    with interrupts.raising():
        if curves:
            save_curves(trajectory, path, robot, energies, contact, strains)
        else:
            save_picture(trajectory, path, robot, node, snapshots)
    say_written(path)


@refusing
def movie(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="The movie, .mp4 or .gif; by default run.mp4 beside the file.")
    ] = None,
    robots: Robots = "all",
    every: Every = 1,
    colour: Colour = "robot",
    apart: Apart = False,
    radius: Radius = None,
    contact: Contact = False,
    fps: Annotated[int, typer.Option(help="Frames per second.")] = 30,
    size: Annotated[str, typer.Option(help="Width and height in pixels.")] = "960x720",
    azimuth: Annotated[float | None, typer.Option(help="From where it is seen, about z from x [degrees].")] = None,
    elevation: Annotated[
        float | None, typer.Option(help="From where it is seen, up from the ground [degrees].")
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Make a movie of a run; no display is needed."""
    from torchdismech.io.outputs import refuse_input, refuse_overwriting
    from torchdismech.view.movie import is_movie, save_movie, size_of_pictures

    path = out or run.with_suffix(".mp4")
    refuse_input(path, {"the run": run})
    refuse_overwriting(path, overwrite, "movie", is_movie, "")
    scenery = _scenery(run, robots, every, colour, apart, radius, contact)
    with interrupts.raising():
        save_movie(scenery, path, fps, size_of_pictures(size), azimuth, elevation, progress)
    say_written(path, f": {len(scenery)} frames, {len(scenery) / fps:.2f} s")


@refusing
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="The file: .glb, .usda, .usdc, .csv, or .pvd with a folder of .vtu files.")],
    robots: Robots = "all",
    every: Every = 1,
    colour: Colour = "robot",
    apart: Apart = False,
    radius: Radius = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Write a run for Blender (.glb, .usda), ParaView (.pvd) or as a table (.csv)."""
    from torchdismech.io.outputs import refuse_input, refuse_overwriting
    from torchdismech.view.export import is_export, save_export

    refuse_input(out, {"the run": run})
    refuse_overwriting(out, overwrite, "file of this kind", is_export, "")
    scenery = _scenery(run, robots, every, colour, apart, radius)
    with interrupts.raising():
        save_export(scenery, out, progress)
    frames, robots_shown = len(scenery), len(scenery.robots)
    say_written(out, f": {frames} frame{'s' * (frames != 1)} of {robots_shown} robot{'s' * (robots_shown != 1)}")


@refusing
def view(
    run: Run,
    robots: Robots = "all",
    every: Every = 1,
    colour: Colour = "robot",
    apart: Apart = False,
    radius: Radius = None,
    contact: Contact = False,
    fps: Annotated[int, typer.Option(min=1, help="Frames per second while it plays.")] = 30,
    host: Annotated[str, typer.Option(help="Address of this machine that serves the page.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port; where it is taken, the next free one.")] = 8080,
) -> None:
    """Show a run in the browser, until Ctrl-C."""
    from torchdismech.trajectory import Trajectory
    from torchdismech.view.page import Page, Wanted

    wanted = Wanted(robots, colour, apart, radius, contact)
    page = Page(Trajectory.load(run), wanted, every, host, port, fps)
    _say_remarks(page.scenery)
    interrupts.say_at_the_end(f"{run} is as it was")
    print(f"{run} is shown at {page.address}; Ctrl-C ends it", flush=True)
    page.run()


def _scenery(
    run: Path, robots: str, every: int, colour: str, apart: bool, radius: float | None, contact: bool = False
) -> Scenery:
    """Return the scenery of a trajectory file, as the options choose it; print its remarks on standard error."""
    from torchdismech.trajectory import Trajectory
    from torchdismech.view.page import Wanted

    scenery = Wanted(robots, colour, apart, radius, contact).scenery(Trajectory.load(run), every)
    _say_remarks(scenery)
    return scenery


def _say_remarks(scenery: Scenery) -> None:
    for remark in scenery.remarks:
        print(f"note: {remark}", file=sys.stderr)
