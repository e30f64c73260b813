"""Commands that run scenes: simulate, check, modes, follow."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdismech.cli.ending import FAILED, explained, refusing, say_written, table
from torchdismech.cli.options import (
    AllowCode,
    Batch,
    Compile,
    Device,
    ForceResume,
    Insist,
    MaxSubsteps,
    Overwrite,
    Progress,
    Resume,
    SceneFile,
    Seed,
    Set,
    Shard,
    Steps,
    Throw,
    TrajectoryFile,
    device_of,
    overrides,
)
from torchdismech.system import interrupts

if TYPE_CHECKING:
    from torchdismech.io.scene import Scene
    from torchdismech.system.processes import Processes

__all__ = ["check", "check_divisible", "follow", "modes", "simulate"]

# How long a process waits for the next frame of another: computing it may take that long. A process that dies is
# noticed at once.
PATIENCE = timedelta(days=1)


@refusing
def simulate(
    scene: SceneFile,
    out: TrajectoryFile = None,
    device: Device = "auto",
    batch: Batch = None,
    steps: Steps = None,
    seed: Seed = None,
    settings: Set = [],  # noqa: B006
    overwrite: Overwrite = False,
    resume: Resume = None,
    force_resume: ForceResume = False,
    compile: Compile = None,
    max_substeps: MaxSubsteps = None,
    allow_code: AllowCode = False,
    progress: Progress = True,
    throw: Throw = False,
    shard: Shard = False,
    insist: Insist = False,
) -> None:
    """Simulate a scene and write its trajectory."""
    from torchdismech.errors import FailureWarning, InputError
    from torchdismech.io.report import failures, summary
    from torchdismech.io.run import run_scene
    from torchdismech.io.scene import load_scene
    from torchdismech.system.processes import joined

    flags = {"--compile": ("simulation.compile", compile), "--max-substeps": ("simulation.max_substeps", max_substeps)}
    changed = overrides(_of_batch(batch, seed) | flags, settings)
    path = out or resume or Path(scene.stem + ".h5")
    if force_resume and resume is None:
        raise InputError("--force-resume: says how to go on with the run that --resume names, and there is none")
    _check_processes(shard)
    with joined("gloo", PATIENCE) as processes, explained(processes), interrupts.raising(processes.world > 1):
        with processes.together():
            loaded = load_scene(scene, changed, steps=steps, insist=insist)
            check_divisible(loaded, processes)
            _check_output(loaded, path, resume, overwrite)
            setup = loaded.part(processes.own(loaded.batch)).build(device_of(device), allow_code)
        started = time.perf_counter()
        with interrupts.raising(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FailureWarning)  # `failures` below reports each failed robot
            trajectory, first_step = run_scene(
                loaded, setup, path, resume, progress, throw, processes, force_resume=force_resume
            )
    if trajectory is None:  # another process writes and reports
        return
    wall = time.perf_counter() - started
    print(table(summary(trajectory, first_step, wall, path, setup.model.compilation.active)))
    failed = failures(trajectory)
    if failed:
        print(failed, file=sys.stderr)
        raise typer.Exit(FAILED)


def _of_batch(batch: int | None, seed: int | None) -> dict[str, tuple[str, int | None]]:
    """Return the options --batch and --seed as `overrides` takes them."""
    return {"--batch": ("batch.size", batch), "--seed": ("batch.seed", seed)}


def _check_processes(shard: bool) -> None:
    """Refuse --shard without torchrun, and several processes that would write one file."""
    from torchdismech.errors import InputError
    from torchdismech.system.processes import started

    count = started()
    if shard and count is None:
        raise InputError(
            "--shard: start it as torchrun --nproc-per-node 2 -m torchdismech simulate SCENE.toml --shard, "
            "with the number of processes that you want"
        )
    if not shard and count is not None and count > 1:
        raise InputError(f"{count} processes would write one file: let them share the robots with --shard")


def check_divisible(scene: Scene, processes: Processes) -> None:
    """Refuse more processes than robots, and to divide a scene whose Python code may tell robots apart."""
    from torchdismech.errors import InputError

    if processes.world > scene.batch:
        raise InputError(f"--shard: {processes.world} processes for {scene.batch} robots: start at most {scene.batch}")
    for key in scene.document.code if processes.world > 1 else ():
        raise InputError(f"--shard: the function that {key} names may tell robots apart: use one process")


def _check_output(scene: Scene, path: Path, resume: Path | None, overwrite: bool) -> None:
    """Refuse to overwrite an input, a file of another kind, and without --overwrite any other file.

    A run that is resumed may go on in its own file.
    """
    from torchdismech.errors import InputError
    from torchdismech.io.outputs import refuse_input, refuse_overwriting
    from torchdismech.trajectory.reading import is_trajectory

    own = resume is not None and (path == resume or (path.exists() and resume.exists() and path.samefile(resume)))
    if own and overwrite:
        raise InputError(
            f"--overwrite: a run that is resumed goes on in its own file, {path}, and does not use it: leave it out"
        )
    refuse_input(path, {"the scene": scene.path} | {f"the file of {key}": file for key, file in scene.files.items()})
    if path.exists():
        interrupts.say_at_the_end(f"nothing was written; {path} is as it was")
        if not own:
            refuse_overwriting(path, overwrite, "trajectory", is_trajectory, "go on with its run by --resume, ")


@refusing
def check(
    scene: SceneFile,
    springs: Annotated[
        bool, typer.Option("--springs", help="Print the nodes of every bend-twist spring and of every hinge.")
    ] = False,
    device: Device = "auto",
    batch: Batch = None,
    seed: Seed = None,
    settings: Set = [],  # noqa: B006
    insist: Insist = False,
) -> None:
    """Check a scene file without running it, and print what would run."""
    from torchdismech.contact.initial_overlap import warn_of_overlap
    from torchdismech.io.report import what_will_run
    from torchdismech.io.scene import load_scene
    from torchdismech.io.scene.idle import warn_of_idle

    loaded = load_scene(scene, overrides(_of_batch(batch, seed), settings), insist=insist)
    setup = loaded.build_to_look_at(device_of(device))
    model = setup.model
    warn_of_overlap(model.obstacles, setup.state)
    warn_of_idle(loaded)
    setup.integrator.warn_of_missed_loads(model, setup.state, setup.steps)
    print(table(what_will_run(loaded, setup)))
    if springs:
        print("\nspring: node before, centre, node after")
        for k, nodes in enumerate(model.springs.tolist()):
            print(f"{k}: {nodes[0]} {nodes[1]} {nodes[2]}")
        if len(model.hinges):
            print("\nhinge: start and end of the edge, nodes opposite to it")
        for k, nodes in enumerate(model.hinges.tolist()):
            print(f"{k}: {nodes[0]} {nodes[1]} {nodes[2]} {nodes[3]}")


def _refuse_table(out: Path | None, scene: Scene, overwrite: bool, what: str, header: Sequence[str]) -> None:
    """Refuse a CSV output file if its folder is missing, the scene reads it, or it exists and may not be replaced.

    Parameters
    ----------
    what, header : the kind of table in messages, and the header of such tables.
    """
    from torchdismech.io.outputs import is_table, refuse_input, refuse_no_place, refuse_overwriting

    if out is not None:
        refuse_no_place(out)
        refuse_input(out, {"the scene": scene.path} | {f"the file of {key}": f for key, f in scene.files.items()})
        refuse_overwriting(out, overwrite, what, lambda path: is_table(path, header), "")


@refusing
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
    settings: Set = [],  # noqa: B006
    overwrite: Overwrite = False,
    allow_code: AllowCode = False,
    insist: Insist = False,
) -> None:
    """Print frequencies and damping of small vibrations of a scene's robots, and which states are unstable."""
    from torchdismech.io.modes import HEADER, modes_table, scene_modes, write_modes
    from torchdismech.io.scene import load_scene

    loaded = load_scene(scene, overrides(_of_batch(batch, seed), settings), insist=insist)
    _refuse_table(out, loaded, overwrite, "table of modes", HEADER)
    setup = loaded.build(device_of(device), allow_code)
    found = scene_modes(loaded, setup, count, settle)
    print(modes_table(setup.model, found))
    print(f"forces that are not balanced at the state: up to {found.imbalance.max().item():.3g} N")
    if out is not None:
        write_modes(setup.model, found, out)
        say_written(out)


@refusing
def follow(
    scene: SceneFile,
    last: Annotated[float, typer.Option(help="Load factor at which paths end: this part of the scene's loads.")] = 1.0,
    steps: Annotated[int, typer.Option(min=1, help="How many points after the first, at most.")] = 100,
    length: Annotated[
        float, typer.Option(help="How long steps are at most, in parts of the whole load and of the robot's extent.")
    ] = 0.05,
    time: Annotated[
        float | None,
        typer.Option(help="When motions, strains and loads are taken [s]; by default at the scene's end, static: 0."),
    ] = None,
    node: Annotated[
        int | None, typer.Option(help="The node whose positions are written; by default that moves the most.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A CSV file with the points of all robots; by default none.")] = None,
    device: Device = "auto",
    batch: Batch = None,
    seed: Seed = None,
    settings: Set = [],  # noqa: B006
    overwrite: Overwrite = False,
    allow_code: AllowCode = False,
    insist: Insist = False,
) -> None:
    """Follow the equilibria of a scene's robots under growing loads, past the largest that they bear."""
    from torchdismech.errors import FailureWarning
    from torchdismech.io.following import POINTS, paths_table, refuse_node, scene_paths, write_points
    from torchdismech.io.scene import load_scene

    loaded = load_scene(scene, overrides(_of_batch(batch, seed), settings), insist=insist)
    _refuse_table(out, loaded, overwrite, "table of points", POINTS)
    setup = loaded.build(device_of(device), allow_code)
    refuse_node(setup.model, node, out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailureWarning)  # the last lines below report each failed robot
        found = scene_paths(loaded, setup, last, steps, length, time)
    print(paths_table(found))
    if out is not None:
        write_points(found, node, out)
        say_written(out)
    if failures := found.failures():
        print(*failures, sep="\n", file=sys.stderr)
        raise typer.Exit(FAILED)
