"""Report a run once on recordings it has never seen: `python -m training.evaluate RUN`."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from torchdismech import InputError
from torchdismech.processes import device_of_process
from training import checkpoint, pictures
from training.board import Board
from training.config import load
from training.data import Recordings, read
from training.fit import recordings_of
from training.loop import predict_all
from training.metrics import HORIZONS, Errors, baselines
from training.system import System, build

__all__ = ["evaluate", "trained_system"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def trained_system(
    folder: Path, settings: list[str] | None = None, weights: str = "best"
) -> tuple[System, Recordings, Recordings]:
    """Return the system of a run, and its evaluation recordings: repaired (to start from), and as measured.

    `weights` : "best", or "after-NAME" for those that the stage of that name ended with.
    """
    config = load(folder / "config.json", settings or [])
    if config.data.eval is None:
        raise InputError(f"{folder}: its data has no evaluation split: name one with --set data.eval=...")
    recordings, _ = recordings_of(config, config.data.train)
    fitted, _ = recordings.split(config.data.held_out, config.seed)
    system = build(config, fitted, device_of_process(config.device))
    tensors, _ = checkpoint.load(folder, weights)
    system.take(tensors, folder)
    repaired, _ = recordings_of(config, config.data.eval)
    return system, repaired, read(config.data.path, config.data.eval, **config.data.options)


def evaluate(folder: Path, settings: list[str] | None = None, stage: str | None = None) -> dict[str, Errors]:
    """Return the errors of a run's best weights (or of those after a stage) and of the baselines on the eval split.

    Predictions start from the repaired recordings; errors are against what was measured, spikes and all, so that they
    compare with those of others. Writes them into the run's folder, under the name of the split and of the stage:
    .json, .csv and .png (error over horizon), and the event file.
    """
    weights = "best" if stage is None else f"after-{stage}"
    system, repaired, recordings = trained_system(folder, settings, weights)
    config = load(folder / "config.json", settings or [])
    split = str(config.data.eval) if stage is None else f"{config.data.eval}-{weights}"
    predicted, good = predict_all(system, repaired)
    errors = {"model": Errors.of(predicted, recordings, good), **baselines(recordings, system.gripped)}
    facts = {
        name: {"error": e.mean, **{f"error_at_{h:g}s": e.at(h) for h in HORIZONS}, "failed": int((~e.good).sum())}
        for name, e in errors.items()
    }
    (folder / f"{split}.json").write_text(json.dumps(facts, indent=1))
    with open(folder / f"{split}.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["time", *errors])
        for k, row in enumerate(zip(*(e.curve.tolist() for e in errors.values()), strict=True)):
            table.writerow([f"{(k + 1) * recordings.dt:.6g}", *(f"{value:.6g}" for value in row)])
    pictures.horizon_curves(errors).savefig(folder / f"{split}.png", dpi=150)
    board = Board(folder)
    try:
        _, saved = checkpoint.load(folder, weights)
        board.finish(config, split, recordings, predicted, errors, saved["total"])
    finally:
        board.close()
    return errors


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    settings: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="E.g. data.path=...")] = [],  # noqa: B006
    stage: Annotated[str | None, typer.Option(help="The weights that this stage ended with, e.g. constants.")] = None,
) -> None:
    """Evaluate a run and print a table."""
    try:
        errors = evaluate(folder, settings, stage)
    except InputError as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        raise typer.Exit(2) from None
    print(f"{'':10}{'mean [mm]':>12}" + "".join(f"{f'at {h:g} s':>12}" for h in HORIZONS) + f"{'failed':>8}")
    for name, error in errors.items():
        cells = "".join(f"{1e3 * value:12.2f}" for value in (error.mean, *(error.at(h) for h in HORIZONS)))
        print(f"{name:10}{cells}{int((~error.good).sum()):8}")


if __name__ == "__main__":
    app()
