"""The command line: simulate, check, modes, plot, movie, export, view. Heavy imports wait until a command needs them.

Signals are answered by `interrupts.py` from the first moment on; `__main__.py` sees to that.
"""

from __future__ import annotations

import functools
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdismech import interrupts

if TYPE_CHECKING:
    from torchdismech.io.scene import Scene
    from torchdismech.processes import Processes
    from torchdismech.view.scenery import Scenery

__all__ = ["app"]

app = typer.Typer(
    help="Many soft robots at once: simulate a scene file, check it, draw what came out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

REFUSED = 2  # exit status: the input cannot be used
FAILED = 3  # exit status: a robot's step failed, or another process
# How long a process waits for the next frame of another: computing may take so long, a death is noticed at once.
PATIENCE = timedelta(days=1)

SceneFile = Annotated[Path, typer.Argument(metavar="SCENE.toml", help="The scene file.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda; auto takes CUDA where there is one.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Number of robots, in place of batch.size.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the random numbers, in place of batch.seed.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there already.")]
Insist = Annotated[
    bool, typer.Option("--insist", help="Accept what takes more than a month, or more memory than is free.")
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code", help="Run the files that actuation.python, controller.python and magnetic.python name."
    ),
]
Run = Annotated[Path, typer.Argument(metavar="run.h5", help="The trajectory file.")]
Robots = Annotated[str, typer.Option(help="Which robots of the batch: all, or numbers and ranges as 0,3,8-11.")]
Every = Annotated[int, typer.Option(min=1, help="Take each so many of the file's frames, and the last one.")]
Colour = Annotated[str, typer.Option(help="robot: one colour each; or stretch, curvature, twist or speed.")]
Apart = Annotated[bool, typer.Option("--apart", help="Put the robots side by side; else they are overlaid.")]
Radius = Annotated[
    float | None, typer.Option(help="Of all rods [m]; by default what the scene in the file says, else 1/4 of an edge.")
]


def _refusing(command: Callable) -> Callable:
    """Turn refused input into one sentence and exit status 2, a failed step into exit status 3."""

    @functools.wraps(command)
    def wrapped(*args, **options):
        from torchdismech.processes import ALONE

        with _explained(ALONE):
            return command(*args, **options)

    return wrapped


@contextmanager
def _explained(processes: Processes) -> Iterator[None]:
    """Say in the first process why the command ends, and end all of them with an exit status."""
    from torchdismech.errors import InputError, SimulationError
    from torchdismech.processes import ProcessError

    try:
        yield
    except InputError as error:
        said, exit_status = f"error: {error}", REFUSED
    except (SimulationError, ProcessError) as error:
        said, exit_status = f"failed: {error}", FAILED
    except KeyboardInterrupt as error:
        stopped = error if isinstance(error, interrupts.Stopped) else interrupts.Stopped()
        said, exit_status = interrupts.sentence(stopped.number), stopped.exit_status
    except Exception:
        if processes.world == 1:
            raise
        traceback.print_exc()  # here: the others know its message only
        said, exit_status = "", FAILED
    else:
        return
    if said and processes.writes:
        print(said, file=sys.stderr)
    processes.wait_to_end()
    raise typer.Exit(exit_status)


@app.command()
@_refusing
def simulate(
    scene: SceneFile,
    out: Annotated[Path | None, typer.Option(help="The trajectory file; by default SCENE.h5 here.")] = None,
    device: Device = "auto",
    batch: Batch = None,
    steps: Annotated[
        int | None, typer.Option(min=1, max=10**12, help="Number of steps, in place of duration / dt.")
    ] = None,
    seed: Seed = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the run of this trajectory file, by default into the same file.")
    ] = None,
    force_resume: Annotated[
        bool,
        typer.Option(
            "--force-resume", help="Continue it although the scene, a file that it names or the robot differ."
        ),
    ] = False,
    compile: Annotated[
        bool | None,
        typer.Option(
            help="Compile what steps evaluate at once, or never; by default what simulation.compile says, which is "
            "where the run is long."
        ),
    ] = None,
    max_substeps: Annotated[
        int | None,
        typer.Option(min=0, help="Divide a failed step into up to so many parts, for the robot it failed for."),
    ] = None,
    allow_code: AllowCode = False,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
    throw: Annotated[bool, typer.Option("--throw", help="Stop at the first robot whose step fails.")] = False,
    shard: Annotated[
        bool, typer.Option("--shard", help="Under torchrun: each process simulates its share of the robots.")
    ] = False,
    insist: Insist = False,
) -> None:
    """Simulate a scene and write its trajectory."""
    from torchdismech.errors import InputError
    from torchdismech.io.report import failures, summary
    from torchdismech.io.run import run_scene
    from torchdismech.io.scene import load_scene
    from torchdismech.processes import joined

    flags = {
        "batch.size": batch,
        "batch.seed": seed,
        "simulation.compile": compile,
        "simulation.max_substeps": max_substeps,
    }
    overrides = {key: value for key, value in flags.items() if value is not None}
    path = out or resume or Path(scene.stem + ".h5")
    if force_resume and resume is None:
        raise InputError("--force-resume: says how to go on with the run that --resume names, and there is none")
    _check_processes(shard)
    with joined("gloo", PATIENCE) as processes, _explained(processes), interrupts.raising(processes.world > 1):
        with processes.together():
            loaded = load_scene(scene, overrides, steps=steps, insist=insist)
            _check_divisible(loaded, processes)
            _check_output(loaded, path, resume, overwrite)
            setup = loaded.part(processes.own(loaded.batch)).build(_device(device), allow_code)
        started = time.perf_counter()
        with interrupts.raising():
            trajectory, first_step = run_scene(
                loaded, setup, path, resume, progress, throw, processes, force_resume=force_resume
            )
    if trajectory is None:  # another process writes and reports
        return
    wall = time.perf_counter() - started
    print(_table(summary(trajectory, first_step, wall, path, setup.model.compilation.active)))
    failed = failures(trajectory)
    if failed:
        print(failed, file=sys.stderr)
        raise typer.Exit(FAILED)


def _check_processes(shard: bool) -> None:
    """Refuse --shard without torchrun, and several processes that would write one file."""
    from torchdismech.errors import InputError
    from torchdismech.processes import started

    count = started()
    if shard and count is None:
        raise InputError(
            "--shard: start it as torchrun --nproc-per-node 2 -m torchdismech simulate SCENE.toml --shard, "
            "with the number of processes that you want"
        )
    if not shard and count is not None and count > 1:
        raise InputError(f"{count} processes would write one file: let them share the robots with --shard")


def _check_divisible(scene: Scene, processes: Processes) -> None:
    """Refuse more processes than robots, and what cannot be divided."""
    from torchdismech.errors import InputError

    if processes.world > scene.batch:
        raise InputError(f"--shard: {processes.world} processes for {scene.batch} robots: start at most {scene.batch}")
    for key in scene.document.code if processes.world > 1 else ():
        raise InputError(f"--shard: the function that {key} names may tell robots apart: use one process")


def _check_output(scene: Scene, path: Path, resume: Path | None, overwrite: bool) -> None:
    """Refuse to write over an input or another run; a run that is resumed is written into its own file."""
    from torchdismech.io.outputs import is_trajectory, refuse_input, refuse_overwriting

    refuse_input(path, {"the scene": scene.path} | {f"the file of {key}": file for key, file in scene.files.items()})
    if path.exists():
        interrupts.say_at_the_end(f"nothing was written; {path} is as it was")
        if resume is None or not resume.exists() or not path.samefile(resume):
            refuse_overwriting(path, overwrite, "trajectory", is_trajectory, "go on with its run by --resume, ")


@app.command()
@_refusing
def check(
    scene: SceneFile,
    springs: Annotated[
        bool, typer.Option("--springs", help="Print the nodes of every bend-twist spring and of every hinge.")
    ] = False,
    device: Device = "auto",
    batch: Batch = None,
    seed: Seed = None,
    insist: Insist = False,
) -> None:
    """Check a scene file without running it, and print what would run."""
    from torchdismech.io.assemble import build_integrator, build_model, build_schedule
    from torchdismech.io.controller import build_controller
    from torchdismech.io.report import what_will_run
    from torchdismech.io.scene import load_scene

    overrides = {key: value for key, value in {"batch.size": batch, "batch.seed": seed}.items() if value is not None}
    loaded = load_scene(scene, overrides, insist=insist)
    model = build_model(loaded, _device(device), compile=False)  # nothing runs long here
    build_schedule(loaded, model)
    controller = build_controller(loaded, model, model.initial_state(loaded.batch), run_code=False)
    print(_table(what_will_run(loaded, model, build_integrator(loaded), controller)))
    if springs:
        print("\nspring: node before, centre, node after")
        for k, nodes in enumerate(model.springs.tolist()):
            print(f"{k}: {nodes[0]} {nodes[1]} {nodes[2]}")
        if len(model.hinges):
            print("\nhinge: start and end of the edge, nodes opposite to it")
        for k, nodes in enumerate(model.hinges.tolist()):
            print(f"{k}: {nodes[0]} {nodes[1]} {nodes[2]} {nodes[3]}")


@app.command()
@_refusing
def modes(
    scene: SceneFile,
    count: Annotated[int, typer.Option(min=1, help="How many modes of each robot.")] = 6,
    settle: Annotated[
        bool, typer.Option("--settle", help='Find the static equilibrium first, as integrator = "static" does.')
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A CSV file with the modes of all robots; by default none.")] = None,
    device: Device = "auto",
    batch: Batch = None,
    seed: Seed = None,
    overwrite: Overwrite = False,
    allow_code: AllowCode = False,
    insist: Insist = False,
) -> None:
    """Print frequencies and damping of small vibrations of a scene's robots, and which states are unstable."""
    from torchdismech.io.modes import is_table_of_modes, modes_table, scene_modes, write_modes
    from torchdismech.io.outputs import refuse_input, refuse_overwriting
    from torchdismech.io.scene import load_scene

    overrides = {key: value for key, value in {"batch.size": batch, "batch.seed": seed}.items() if value is not None}
    loaded = load_scene(scene, overrides, insist=insist)
    if out is not None:
        refuse_input(out, {"the scene": loaded.path} | {f"the file of {key}": f for key, f in loaded.files.items()})
        refuse_overwriting(out, overwrite, "table of modes", is_table_of_modes, "")
    setup = loaded.build(_device(device), allow_code)
    found = scene_modes(loaded, setup, count, settle)
    print(modes_table(setup.model, found))
    print(f"forces that are not balanced at the state: up to {found.imbalance.max().item():.3g} N")
    if out is not None:
        write_modes(setup.model, found, out)
        interrupts.say_at_the_end(f"{out} is written")
        print(f"wrote {out}")


@app.command()
@_refusing
def plot(
    run: Run,
    node: Annotated[int, typer.Option(help="The node whose path is drawn; -1 is the last.")] = -1,
    robot: Annotated[int, typer.Option(help="The robot of the batch.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The picture; by default run.png beside the file.")] = None,
    snapshots: Annotated[
        int | None, typer.Option(min=1, help="How many shapes are drawn; by default 9, with shells 4.")
    ] = None,
    energies: Annotated[bool, typer.Option("--energies", help="Draw the energies over time instead.")] = False,
    contact: Annotated[
        bool, typer.Option("--contact", help="Draw contacts and their forces over time instead.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Draw shapes of a robot at several times, and how a node moves."""
    from torchdismech.errors import InputError
    from torchdismech.io.outputs import is_picture, refuse_input, refuse_overwriting
    from torchdismech.trajectory import Trajectory
    from torchdismech.view import save_curves, save_picture

    if (energies or contact) and (node != -1 or snapshots is not None):
        raise InputError("--energies and --contact draw curves over time: --node and --snapshots do not apply")
    path = out or run.with_suffix(".png")
    refuse_input(path, {"the run": run})
    refuse_overwriting(path, overwrite, "picture", is_picture, "")
    trajectory = Trajectory.load(run)
    if energies or contact:
        save_curves(trajectory, path, robot, energies, contact)
    else:
        save_picture(trajectory, path, robot, node, snapshots)
    _say_written(path)


@app.command()
@_refusing
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
    scenery = _scenery(run, robots, every, colour, apart, radius)
    with interrupts.raising():
        save_movie(scenery, path, fps, size_of_pictures(size), azimuth, elevation, progress)
    _say_written(path, f": {len(scenery)} frames, {len(scenery) / fps:.2f} s")


@app.command()
@_refusing
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="The file: .glb, .usda, .usdc, or .pvd with a folder of .vtu files.")],
    robots: Robots = "all",
    every: Every = 1,
    colour: Colour = "robot",
    apart: Apart = False,
    radius: Radius = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Write a run for Blender (.glb, .usda) or ParaView (.pvd)."""
    from torchdismech.io.outputs import refuse_input, refuse_overwriting
    from torchdismech.view.export import is_export, save_export

    refuse_input(out, {"the run": run})
    refuse_overwriting(out, overwrite, "file of this kind", is_export, "")
    scenery = _scenery(run, robots, every, colour, apart, radius)
    with interrupts.raising():
        save_export(scenery, out, progress)
    _say_written(out, f": {len(scenery)} frames of {len(scenery.robots)} robots")


@app.command()
@_refusing
def view(
    run: Run,
    robots: Robots = "all",
    every: Every = 1,
    colour: Colour = "robot",
    apart: Apart = False,
    radius: Radius = None,
    fps: Annotated[int, typer.Option(min=1, help="Frames per second while it plays.")] = 30,
    host: Annotated[str, typer.Option(help="Address of this machine that serves the page.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port; where it is taken, the next free one.")] = 8080,
) -> None:
    """Show a run in the browser, until Ctrl-C."""
    from torchdismech.trajectory import Trajectory
    from torchdismech.view.page import Page, Wanted

    wanted = Wanted(robots, colour, apart, radius, folder=run.parent)
    page = Page(Trajectory.load(run), wanted, every, host, port, fps)
    _say_remarks(page.scenery)
    interrupts.say_at_the_end(f"{run} is as it was")
    print(f"{run} is shown at {page.address}; Ctrl-C ends it", flush=True)
    page.run()


def _scenery(run: Path, robots: str, every: int, colour: str, apart: bool, radius: float | None) -> Scenery:
    """Return what is shown of a run; say what could not be known."""
    from torchdismech.trajectory import Trajectory
    from torchdismech.view.scenery import Scenery, chosen_robots

    trajectory = Trajectory.load(run)
    chosen = chosen_robots(robots, trajectory.batch)
    scenery = Scenery(trajectory, chosen, every, colour, apart, radius, folder=run.parent)
    _say_remarks(scenery)
    return scenery


def _say_remarks(scenery: Scenery) -> None:
    for remark in scenery.remarks:
        print(f"note: {remark}", file=sys.stderr)


# ---- what is printed ---------------------------------------------------------------------------------------------


def _device(name: str) -> str:
    from torchdismech.processes import device_of_process

    return device_of_process(name, "--device")


def _say_written(path: Path, what: str = "") -> None:
    interrupts.say_at_the_end(f"{path} is written")
    print(f"wrote {path}{what}")


def _table(rows: dict[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())
