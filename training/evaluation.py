"""Errors of a run on recordings that training never saw."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from torchdismech import InputError
from torchdismech.processes import device_of_process
from training import checkpoint, pictures
from training.board import Board
from training.config import load
from training.data import Recordings, read
from training.files import write
from training.fitting import recordings_of
from training.loop import predict_all
from training.metrics import HORIZONS, Errors, baselines
from training.system import System, build

__all__ = ["evaluate", "trained_system"]


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
    fitted, held_out = recordings.split(config.data.held_out, config.seed)
    system = build(config, fitted, device_of_process(config.device))
    tensors, facts = checkpoint.load(folder, weights)
    system.take(tensors, folder)
    if facts.get("recordings") != {**fitted.digests(), **held_out.digests()}:
        print(
            f"warning: {config.data.path} holds other recordings than {folder} was fitted to: rest lengths may differ"
        )
    repaired, _ = recordings_of(config, config.data.eval)
    _refuse_another_robot(fitted, repaired)
    return system, repaired, read(config.data.path, config.data.eval, **config.data.options)


def _refuse_another_robot(fitted: Recordings, recordings: Recordings) -> None:
    """Refuse recordings that a system made for others cannot be compared with."""
    if recordings.nodes != fitted.nodes:
        raise InputError(f"{recordings.names[0]}: {recordings.nodes} nodes; training had {fitted.nodes}")
    if abs(recordings.dt - fitted.dt) > 1e-3 * fitted.dt:  # clocks are rounded
        raise InputError(f"{recordings.names[0]}: {recordings.dt} s between frames; training had {fitted.dt} s")


def evaluate(folder: Path, settings: list[str] | None = None, stage: str | None = None) -> dict[str, Errors]:
    """Return the errors of a run's best weights (or of those after a stage) and of the baselines on the eval split.

    Predictions start from the repaired recordings; errors are against what was measured, spikes and all, so that they
    compare with those of others. Writes them into the run's folder, under the name of the split and of the stage:
    .json, .csv and .png (error over horizon), and the event file.
    """
    config = load(folder / "config.json", settings or [])
    stages = [s.name for s in config.stages]
    if stage is not None and stage not in stages:
        raise InputError(f"{folder}: no stage {stage!r:.80}; it has {', '.join(stages)}")
    weights = "best" if stage is None else f"after-{stage}"
    system, repaired, recordings = trained_system(folder, settings, weights)
    split = str(config.data.eval) if stage is None else f"{config.data.eval}-{weights}"
    predicted, good = predict_all(system, repaired)
    errors = {"model": Errors.of(predicted, recordings, good), **baselines(recordings, system.gripped)}
    facts = {
        name: {"error": e.mean, **{f"error_at_{h:g}s": e.at(h) for h in HORIZONS}, "failed": int((~e.good).sum())}
        for name, e in errors.items()
    }
    write(folder / f"{split}.json", json.dumps(facts, indent=1))
    write(folder / f"{split}.csv", _table(errors, recordings.dt))
    picture = io.BytesIO()
    pictures.horizon_curves(errors).savefig(picture, format="png", dpi=150)
    write(folder / f"{split}.png", picture.getvalue())
    board = Board(folder)
    try:
        board.finish(config, split, recordings, predicted, errors, checkpoint.batches(folder, weights))
    finally:
        board.close()
    return errors


def _table(errors: dict[str, Errors], dt: float) -> str:
    """Return the errors over time as comma separated values."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["time", *errors])
    for k, row in enumerate(zip(*(e.curve.tolist() for e in errors.values()), strict=True)):
        table.writerow([f"{(k + 1) * dt:.6g}", *(f"{value:.6g}" for value in row)])
    return text.getvalue()
