"""The fitted system of a run, and its errors on recordings that training never saw."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import torch
from torch import Tensor

from torchdismech import InputError
from torchdismech.errors import path_of
from torchdismech.system.processes import device_of_process
from training.config import Config, load
from training.data import Recordings
from training.files import write
from training.optimization import checkpoint
from training.reports import pictures
from training.reports.board import Board
from training.reports.metrics import Errors, baselines
from training.reports.predictions import errors_of, predict_all
from training.robots.starts import fitted_starts
from training.robots.systems import build
from training.splits import measured_recordings, prepared_recordings
from training.system import System

__all__ = ["evaluate", "fitted_system", "refuse_without_best", "trained_system"]

START_ROUNDS = 5  # times the optimiser's steps of a look, as starts begin from zero here


def fitted_system(
    folder: Path | str, settings: list[str] | None = None, weights: str = "best", allow_code: bool = False
) -> System:
    """Return the system of a run with the fitted constants and learned terms, to be used elsewhere.

    Systems of a robot have it as `model`, and its integrator as `integrator`; `values()` are the fitted constants. The
    recordings that the run was fitted to are read again, as a system measures the robot in them.

    Parameters
    ----------
    folder : the run's folder.
    settings : changes of the run's config as "key=value", such as "data.path=..." of data that moved.
    weights : "best", or "after-NAME" for those that the stage of that name ended with.
    allow_code : run the Python files that the config, or its scene, names.

    Raises
    ------
    InputError
        A folder without such weights, recordings that are not there, code that is not allowed.
    """
    folder = path_of(folder, "fitted_system", "folder")
    return _fitted(folder, load(folder / "config.json", settings or []), weights, allow_code)[0]


def trained_system(
    folder: Path | str, settings: list[str] | None = None, weights: str = "best", allow_code: bool = False
) -> tuple[System, Recordings, Recordings]:
    """Return the fitted system of a run, and its evaluation recordings twice: repaired, and as measured.

    Predictions start from the repaired ones, and are compared with the others. Units and order of nodes are repaired in
    both, as `data.rules` says; only the first have their gaps and spikes filled.
    """
    folder = path_of(folder, "trained_system", "folder")
    config = load(folder / "config.json", settings or [])
    if config.data.eval is None:
        raise InputError(
            f"{folder}: its data has no evaluation split: name one with --set data.eval=...; of tables a subfolder of "
            "--set data.path=FOLDER, where FOLDER itself holds those of the fit. A single file has no splits: put it "
            "into a folder, and other recordings into a subfolder of that. What was fitted can be used without: "
            "fitted_system of training.reports.evaluation returns it"
        )
    system, trained_on = _fitted(folder, config, weights, allow_code)
    repaired, _ = prepared_recordings(config, config.data.eval)
    _refuse_another_robot(trained_on, repaired)
    system.refuse(repaired)
    system.refuse_unseen(repaired)
    return system, repaired, measured_recordings(config, config.data.eval)


def _fitted(folder: Path, config: Config, weights: str, allow_code: bool) -> tuple[System, Recordings]:
    """Return the system of a run as it was fitted, and the recordings that it was fitted to."""
    recordings, _ = prepared_recordings(config, config.data.train)
    trained_on, held_out = recordings.split(config.data.held_out, config.seed)
    system = build(config, trained_on, device_of_process(config.device), allow_code)
    if weights == "best":
        refuse_without_best(folder, config)
    tensors, facts = checkpoint.load(folder, weights)
    system.take(tensors, folder)
    if list(facts.get("recordings", {}).values()) != list({**trained_on.digests(), **held_out.digests()}.values()):
        print(
            f"warning: {config.data.path} holds other recordings than {folder} was fitted to: rest lengths may differ"
        )
    return system, trained_on


def refuse_without_best(folder: Path, config: Config) -> None:
    """Refuse the folder of a run that has a checkpoint and no best weights, and say why it has none."""
    if checkpoint.exists(folder, "last") and not checkpoint.exists(folder, "best"):
        stages = [stage.name for stage in config.stages if checkpoint.exists(folder, f"after-{stage.name}")]
        instead = f"take those after a stage, --stage {stages[-1]}" if stages else "go on with --resume"
        raise InputError(
            f"{folder}: it has no best weights, as no look at its held-out recordings had a finite error, or the fit "
            f"ended before the first look: {instead}, or look at [robot] and [simulation] in the config"
        )


def _refuse_another_robot(trained_on: Recordings, recordings: Recordings) -> None:
    """Refuse recordings with another number of nodes or time between frames than those that were trained on."""
    if recordings.nodes != trained_on.nodes:
        raise InputError(f"{recordings.names[0]}: {recordings.nodes} nodes; training had {trained_on.nodes}")
    if abs(recordings.dt - trained_on.dt) > 1e-3 * trained_on.dt:  # times in files are rounded
        raise InputError(f"{recordings.names[0]}: {recordings.dt} s between frames; training had {trained_on.dt} s")


def evaluate(
    folder: Path | str, settings: list[str] | None = None, stage: str | None = None, allow_code: bool = False
) -> dict[str, Errors]:
    """Return the errors of a run's best weights (or of those after a stage) and of the baselines on the eval split.

    Predictions start from the repaired recordings; errors are against what was measured, spikes included, so that they
    can be compared with those of other programs. Fitted starts are fitted to the first frames of each recording.

    The errors are also written into the run's folder, in files named after the split and the stage: .json, .csv and
    .png (error over horizon), and in the event file.
    """
    folder = path_of(folder, "evaluate", "folder")
    config = load(folder / "config.json", settings or [])
    stages = [s.name for s in config.stages]
    if stage is not None and stage not in stages:
        raise InputError(f"{folder}: no stage {stage!r:.80}; it has {', '.join(stages)}")
    weights = "best" if stage is None else f"after-{stage}"
    system, repaired, recordings = trained_system(folder, settings, weights, allow_code)
    split = str(config.data.eval) if stage is None else f"{config.data.eval}-{weights}"
    predicted = predict_all(system, repaired, start=_starts(system, repaired, config))
    errors = {"model": errors_of(system, repaired, predicted, recordings), **baselines(repaired, system, recordings)}
    facts = {
        name: {"error": e.mean, **{f"error_at_{h:g}s": e.at(h) for h in e.horizons}, "failed": e.failed}
        for name, e in errors.items()
    }
    write(folder / f"{split}.json", json.dumps(facts, indent=1))
    write(folder / f"{split}.csv", _table(errors))
    picture = io.BytesIO()
    pictures.horizon_curves(errors).savefig(picture, format="png", dpi=150)
    write(folder / f"{split}.png", picture.getvalue())
    board = Board(folder)
    try:
        total = checkpoint.batches(folder, weights)
        board.evaluated(split, errors, total)
        board.hparams(config, split, errors["model"], total)
        board.pictures(split, config, recordings, predicted, system, total)
    finally:
        board.close()
    return errors


def _starts(system: System, recordings: Recordings, config: Config) -> Tensor | None:
    """Return the starts (K, S) fitted to the first frames of recordings; None where the system fits none."""
    if not system.start_size:
        return None
    nothing = torch.zeros(len(recordings), system.start_size, dtype=torch.float64, device=system.device)
    return fitted_starts(system, recordings, config.loss.scale, START_ROUNDS * system.start_rounds, nothing)


def _table(errors: dict[str, Errors]) -> str:
    """Return the errors over time as comma separated values."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["time", *errors])
    time = errors["model"].time.tolist()
    for t, *row in zip(time, *(e.curve.tolist() for e in errors.values()), strict=True):
        table.writerow([f"{t:.6g}", *(f"{value:.6g}" for value in row)])
    return text.getvalue()
