"""The options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AllowCode",
    "Apart",
    "Batch",
    "Colour",
    "Device",
    "Every",
    "Insist",
    "Overwrite",
    "Radius",
    "Robots",
    "Run",
    "SceneFile",
    "Seed",
    "device_of",
]

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


def device_of(name: str) -> str:
    """Return the device that --device names; of several processes each has its own."""
    from torchdismech.processes import device_of_process

    return device_of_process(name, "--device")
