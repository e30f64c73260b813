"""Arguments and options that several commands share, with their help texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "AllowCode",
    "Apart",
    "Batch",
    "Colour",
    "Compile",
    "Contact",
    "Device",
    "Every",
    "ForceResume",
    "Insist",
    "MaxSubsteps",
    "Overwrite",
    "Progress",
    "Radius",
    "Resume",
    "Robots",
    "Run",
    "SceneFile",
    "Seed",
    "Set",
    "Shard",
    "Steps",
    "Throw",
    "TrajectoryFile",
    "device_of",
    "overrides",
]

SceneFile = Annotated[Path, typer.Argument(metavar="SCENE.toml", help="The scene file.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda; auto takes CUDA where there is one.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Number of robots, in place of batch.size.")]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A key of the scene with another value, as simulation.dt=5e-3; may be given several times.",
    ),
]
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
TrajectoryFile = Annotated[Path | None, typer.Option(help="The trajectory file; by default SCENE.h5 here.")]
Steps = Annotated[int | None, typer.Option(min=1, max=10**12, help="Number of steps, in place of duration / dt.")]
Resume = Annotated[
    Path | None, typer.Option(help="Continue the run of this trajectory file, by default into the same file.")
]
ForceResume = Annotated[
    bool,
    typer.Option("--force-resume", help="Continue it although the scene, a file that it names or the robot differ."),
]
Compile = Annotated[
    bool | None,
    typer.Option(
        help="Compile what steps evaluate at once, or never; by default what simulation.compile says, which is where "
        "the run is long."
    ),
]
MaxSubsteps = Annotated[
    int | None, typer.Option(min=0, help="Divide a failed step into up to so many parts, for the robot it failed for.")
]
Progress = Annotated[bool, typer.Option(help="Show a progress bar.")]
Throw = Annotated[bool, typer.Option("--throw", help="Stop at the first robot whose step fails.")]
Shard = Annotated[bool, typer.Option("--shard", help="Under torchrun: each process simulates its share of the robots.")]
Run = Annotated[Path, typer.Argument(metavar="run.h5", help="The trajectory file.")]
Robots = Annotated[str, typer.Option(help="Which robots of the batch: all, or numbers and ranges as 0,3,8-11.")]
Every = Annotated[int, typer.Option(min=1, help="Take every N-th of the file's frames, and the last one.")]
Colour = Annotated[str, typer.Option(help="robot: one colour each; or stretch, curvature, twist or speed.")]
Apart = Annotated[bool, typer.Option("--apart", help="Put the robots side by side; else they are overlaid.")]
Contact = Annotated[bool, typer.Option("--contact", help="Show the forces of contacts as arrows.")]
Radius = Annotated[
    float | None, typer.Option(help="Of all rods [m]; by default as the file says, else 1/4 of an edge.")
]


def device_of(name: str) -> str:
    """Return the torch device for --device (auto, cpu or cuda); under torchrun each process has a GPU of its own."""
    from torchdismech.system.processes import device_of_process

    return device_of_process(name, "--device")


def overrides(flags: Mapping[str, tuple[str, Any]], settings: Sequence[str]) -> dict[str, Any]:
    """Return the values of --set and of other options by the keys of the scene whose place they take.

    Parameters
    ----------
    flags : options that have one key each, as {"--batch": ("batch.size", 8)}; those that are None are not given.
    settings : the texts "KEY=VALUE" of --set.
    """
    from torchdismech.errors import InputError
    from torchdismech.io.scene.names import setting

    found: dict[str, Any] = {}
    given = [("--set", setting(text)) for text in settings]
    given += [(flag, (key, value)) for flag, (key, value) in flags.items() if value is not None]
    for flag, (key, value) in given:
        if key in found:
            raise InputError(f"{flag}: --set gives {key} already: leave one out")
        found[key] = value
    return found
