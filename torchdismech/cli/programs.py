"""The commands demo, train and evaluate; the last two start programs of the package `training`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from torchdismech.cli.ending import refusing
from torchdismech.cli.options import Device
from torchdismech.cli.runs import simulate

__all__ = ["OTHERS_OPTIONS", "demo", "evaluate", "train"]

# Options of these commands are those of the program that they start, which also answers --help.
OTHERS_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@refusing
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the scene, the run and the picture.")] = Path("demo"),
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps, in place of the scene's.")] = None,
    device: Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run and the picture, but never a scene that was changed.")
    ] = False,
) -> None:
    """Simulate 64 rods of random stiffness: a scene to change, a run, a picture."""
    from torchdismech.io.demo import copied_scene, refuse_changed
    from torchdismech.io.outputs import refuse_overwriting
    from torchdismech.trajectory.reading import is_trajectory

    run = out / "demo.h5"
    refuse_changed(out)
    refuse_overwriting(run, overwrite, "trajectory", is_trajectory, "")  # no hint at --resume: demo has no such option
    scene = copied_scene(out)
    simulate(scene, out=run, device=device, steps=steps, overwrite=overwrite)
    if importlib.util.find_spec("matplotlib") is None:
        print("no picture: that needs matplotlib, pip install 'torchdismech[view]'")
    else:
        from torchdismech.cli.pictures import plot

        plot(run, overwrite=overwrite)
    print(
        f"next: change {scene} and torchdismech simulate {scene} --out {run} --overwrite, or torchdismech movie {run}"
    )


def train(context: typer.Context) -> None:
    """Fit a robot to recordings: torchdismech train --help."""
    _start("training.fit", context)


def evaluate(context: typer.Context) -> None:
    """Report a fit on recordings that it never saw: torchdismech evaluate --help."""
    _start("training.evaluate", context)


@refusing
def _start(program: str, context: typer.Context) -> None:
    """Run a module of `training` as a program, imported by its name: the library itself never imports that package."""
    from torchdismech.errors import InputError

    if importlib.util.find_spec(program.partition(".")[0]) is None:
        raise InputError(
            f"{context.info_name}: the package training is not installed: install torchdismech from its wheel"
        )
    try:
        importlib.import_module(program).app(args=context.args, prog_name=context.command_path)
    except ModuleNotFoundError as missing:
        raise InputError(
            f"{context.info_name}: needs the package {missing.name}: pip install 'torchdismech[train]'"
        ) from missing
