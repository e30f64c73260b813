"""Fit a robot to recordings: `python -m training.fit CONFIG.toml [--set key=value ...]`, looked at in TensorBoard.

The command imports the heavy modules itself, once its signal handlers are installed.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from torchdismech.system.interrupts import install, say_at_the_end
from training.ending import refusing

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="What to fit to what; with --resume by default the run's own."),
    ] = None,
    settings: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a field.")] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME-DATE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    force_resume: Annotated[
        bool, typer.Option("--force-resume", help="Go on with its weights even with another config or other data.")
    ] = False,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Run Python that the config, or its scene, names.")
    ] = False,
) -> None:
    """Fit a robot to recordings."""
    install()
    resume = resume or force_resume
    if resume:
        say_at_the_end(f"{out} stays as it was: start the same command again")
    from torchdismech import InputError
    from torchdismech.system.processes import device_of_process, joined
    from training.config import load
    from training.fitting import fit

    with refusing():
        if resume and out is None:
            raise InputError("--resume: say which run with --out FOLDER")
        if config is None and not resume:
            raise InputError("CONFIG.toml: say what to fit; see docs/training.md, or studies/sim_to_real/cable.toml")
        given = config if config is not None else Path(out or ".") / "config.json"
        loaded = load(given, settings)
        with joined("gloo" if device_of_process(loaded.device) == "cpu" else "nccl") as processes:
            folder = out or Path("runs") / f"{loaded.name}-{datetime.now():%Y%m%d-%H%M%S}"
            if out is None and processes.world > 1:
                raise InputError("--out: several processes need one folder: name it")
            fit(loaded, folder, resume, processes, force=force_resume, allow_code=allow_code)


if __name__ == "__main__":
    app()
