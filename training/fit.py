"""Fit a robot to recordings: `python -m training.fit CONFIG.toml [--set key=value ...]`, looked at in TensorBoard."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import torch
import typer

from torchdismech import InputError
from torchdismech.processes import ALONE, Processes, device_of_process, joined
from training import checkpoint, data
from training.board import Board
from training.config import Config, load
from training.loop import Trainer, predict_all
from training.metrics import Errors, baselines
from training.system import build, undetermined

__all__ = ["fit", "recordings_of"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def recordings_of(config: Config, split: str | None) -> tuple[data.Recordings, list[str]]:
    """Return the checked and repaired recordings of a split, and what was repaired."""
    recordings = data.read(config.data.path, split, **config.data.options)
    return data.prepared(recordings, data.Rules(**config.data.rules))


def fit(config: Config, folder: Path, resume: bool = False, processes: Processes = ALONE, until=None) -> Errors:
    """Train all stages and return the errors on the held-out recordings; all else is in the folder.

    Parameters
    ----------
    folder : of the run: config.json, checkpoints, event files, metrics.json.
    resume : go on from the folder's checkpoint, as if there had been no interruption.
    until : stop after so many batches in total, as an interruption would.
    """
    torch.manual_seed(config.seed)
    recordings, messages = recordings_of(config, config.data.train)
    fitted, held_out = recordings.split(config.data.held_out, config.seed)
    system = build(config, fitted, device_of_process(config.device))
    warning = undetermined(config)
    say = print if processes.writes else (lambda *_: None)
    for message in [*messages, *([f"warning: {warning}"] if warning else [])]:
        say(message)
    if not resume and checkpoint.exists(folder, "last"):
        raise InputError(f"{folder}: holds a run already: go on with --resume, or choose another --out")
    trainer = Trainer(config, system, fitted, held_out, folder, processes)
    if resume:
        trainer.resume()
    if processes.writes:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(config.model_dump_json(indent=1))
        trainer.board = Board(folder, trainer.progress.total)
    references = baselines(held_out, system.gripped)
    if trainer.board is not None:
        total = sum(stage.iterations for stage in config.stages)
        trainer.board.begin(config, [*messages, *([warning] if warning else [])], references, total)
    try:
        trainer.run(until, progress=processes.writes)
        predicted, good = predict_all(system, held_out, processes)
        errors = Errors.of(predicted, held_out, good)
        if trainer.board is not None:
            everything = {"model": errors, **references}
            trainer.board.finish(config, "held_out_final", held_out, predicted, everything, trainer.progress.total)
            facts = {"held_out": errors.mean, "batches": trainer.progress.total, "seconds": trainer.progress.seconds}
            (folder / "metrics.json").write_text(json.dumps(facts, indent=1))
    finally:
        if trainer.board is not None:
            trainer.board.close()
    say(f"error on {len(held_out)} held-out recordings: {1e3 * errors.mean:.2f} mm; run in {folder}")
    return errors


@app.command()
def main(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What to fit to what; see docs/training.md.")],
    settings: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a field.")] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME-DATE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, by its own config.")] = False,
) -> None:
    """Fit a robot to recordings."""
    try:
        if resume and out is None:
            raise InputError("--resume: say which run with --out FOLDER")
        loaded = load(out / "config.json" if resume and out else config, settings)
        with joined("gloo" if device_of_process(loaded.device) == "cpu" else "nccl") as processes:
            folder = out or Path("runs") / f"{loaded.name}-{datetime.now():%Y%m%d-%H%M%S}"
            if out is None and processes.world > 1:
                raise InputError("--out: several processes need one folder: name it")
            fit(loaded, folder, resume, processes)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
