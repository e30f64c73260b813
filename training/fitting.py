"""Fits of a robot to recordings: all stages, what TensorBoard shows, and what a run leaves in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchdismech import InputError
from torchdismech.system.processes import ALONE, Processes, device_of_process
from training import data
from training.config import Config
from training.files import made_folder, only_writer, write
from training.optimization import checkpoint
from training.optimization.certainty import certainty_of
from training.optimization.loop import Trainer
from training.reports.agreement import (
    beside_references,
    warning_of_distant_markers,
    warning_of_residuals_above_noise,
    warning_of_times_in_another_unit,
    warning_of_unchanged_weights,
    warnings_of_poor_fit,
)
from training.reports.board import Board
from training.reports.metrics import Errors, baselines
from training.reports.predictions import OpenLoop
from training.robots.doubts import (
    warning_of_coarse_units,
    warning_of_undetermined_constants,
    warning_of_unsettled_starts,
)
from training.robots.systems import build
from training.system import System

__all__ = ["fit", "measured", "recordings_of"]

AT_THE_END = "held_out_final"  # what TensorBoard calls the errors that a run ends with


def recordings_of(config: Config, split: str | None) -> tuple[data.Recordings, list[str]]:
    """Return the checked and repaired recordings of a split, and what was repaired."""
    recordings = _as_they_are(config, split)
    with _rules_named_as_in_config():
        return data.prepared(recordings, config.data.rules, config.of_chain)


def measured(config: Config, split: str | None) -> data.Recordings:
    """Return what predictions of a split are compared with: in metres and in order, but with all gaps and spikes."""
    recordings = _as_they_are(config, split)
    with _rules_named_as_in_config():
        return data.in_order(recordings, config.data.rules, config.of_chain)[0]


@contextmanager
def _rules_named_as_in_config() -> Iterator[None]:
    """Name rules that recordings break by their keys in the config: nobody who has one has made `Rules`."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace("Rules.", "data.rules.")) from error


def _as_they_are(config: Config, split: str | None) -> data.Recordings:
    """Return the recordings of a split as they are, cut into pieces where the config says so."""
    inputs = {"inputs": tuple(config.data.inputs)} if config.data.inputs else {}
    recordings = data.read(config.data.path, split, **inputs, **config.data.options)
    return recordings if config.data.pieces is None else recordings.pieces(config.data.pieces)


def fit(
    config: Config,
    folder: Path,
    resume: bool = False,
    processes: Processes = ALONE,
    until: int | None = None,
    force: bool = False,
    allow_code: bool = False,
) -> Errors:
    """Train all stages and return the errors on the held-out recordings; all else is in the folder.

    Parameters
    ----------
    folder : of the run: config.json, checkpoints, event files, metrics.json.
    resume : go on from the folder's checkpoint, as if there had been no interruption, but for rounding; refused with
        another config or other recordings.
    until : stop after so many batches in total, as an interruption would.
    force : go on with these as well: see `Trainer.resume`.
    allow_code : run the Python files that the config, or its scene, names.
    """
    if processes.writes and not resume:
        _refuse_taken(folder)
    torch.manual_seed(config.seed)
    recordings, messages = recordings_of(config, config.data.train)
    fitted, held_out = recordings.split(config.data.held_out, config.seed)
    system = build(config, fitted, device_of_process(config.device), allow_code)
    system.refuse(held_out)
    messages += _warnings(config, system, recordings, fitted)
    if processes.writes:
        print(*messages, sep="\n", end="\n" * bool(messages))  # before the rest, which may be refused, or take long
    trainer = Trainer(config, system, fitted, held_out, folder, processes)
    with _taken(folder, resume, processes):
        if resume and (differs := trainer.resume(force)):
            messages.append(f"warning: the run before was another one: {'; '.join(differs)}")
            if processes.writes:
                print(messages[-1])
        finished = trainer.progress.reported
        if processes.writes and finished:
            print(f"{folder}: this run is finished; what came of its {trainer.progress.total} batches is there")
        elif processes.writes:
            write(folder / "config.json", config.model_dump_json(indent=1))
            trainer.board = Board(folder, trainer.next_step if resume else None)
        try:
            references = baselines(held_out, system)
            errors = trainer.looks.errors()[0] if finished else _trained(trainer, messages, references, until)
        finally:
            if trainer.board is not None:
                trainer.board.close()
    if processes.writes:
        kind = "held-out" if config.data.held_out else "training"
        print(f"error on {len(held_out)} {kind} recordings: {beside_references(errors, references)}; run in {folder}")
    return errors


def _warnings(config: Config, system: System, recordings: data.Recordings, fitted: data.Recordings) -> list[str]:
    """Return what is doubtful about a fit before it begins; refuse recordings that cannot be of its robot."""
    found = [
        warning_of_times_in_another_unit(config, system, recordings),
        warning_of_distant_markers(system, recordings),
        warning_of_undetermined_constants(config),
        warning_of_coarse_units(system),
        warning_of_unsettled_starts(config, fitted),
        None if config.data.held_out else "no recording is held out: errors are of what was trained on",
    ]
    return _as_warnings(found)


def _as_warnings(found: Iterable[str | None]) -> list[str]:
    """Return the lines that say what was found, if anything was."""
    return [f"warning: {warning}" for warning in found if warning]


def _trained(trainer: Trainer, messages: list[str], references: Mapping[str, Errors], until: int | None) -> Errors:
    """Train all stages and return the errors on the held-out recordings; the writing process leaves them on disk."""
    config, board = trainer.config, trainer.board
    if board is not None:
        board.begin(config, messages, references)
    trainer.run(until, progress=board is not None)
    done = trainer.progress.stage == len(config.stages)
    if board is not None:
        what = ", and at what they tell of the constants" if done else ""
        print(f"looking at whole recordings once more{what}", flush=True)
    errors, predicted, _ = trainer.looks.errors()
    certainty = certainty_of(trainer) if done else None
    if board is not None:
        total = trainer.progress.total
        board.evaluated(AT_THE_END, {"model": errors, **references}, total)
        board.hparams(config, AT_THE_END, errors, total)
        doubts = _doubts(trainer, errors, references, predicted) if done else []
        if done:
            print(*doubts, sep="\n", end="\n" * bool(doubts))
            board.text("doubts", "\n".join(doubts) or "none", total)
            board.constants("final/physics", trainer.system.values(), total)
            board.pictures(AT_THE_END, config, trainer.held_out, predicted, trainer.system, total)
        if certainty is not None:
            print(certainty.as_text())
            board.text("certainty", certainty.as_text(), total)
            write(trainer.folder / "certainty.json", json.dumps(certainty.facts(), indent=1))
        _write_metrics(trainer, errors, references, doubts)
    if done:
        trainer.progress.reported = True
        trainer.save()
    return errors


def _doubts(trainer: Trainer, errors: Errors, references: Mapping[str, Errors], predicted: OpenLoop) -> list[str]:
    """Return what is doubtful about a fit that is done: that it is none, or else that residuals are not noise."""
    progress = trainer.progress
    found: list[str | None] = [warning_of_unchanged_weights(trainer.config, progress.total, progress.best_at)]
    poor = warnings_of_poor_fit(errors, references, predicted, trainer.held_out)
    found += poor or [warning_of_residuals_above_noise(trainer.config, errors)]
    return _as_warnings(found)


def _write_metrics(trainer: Trainer, errors: Errors, references: Mapping[str, Errors], doubts: list[str]) -> None:
    """Write what came of a run, for programs to read."""
    progress = trainer.progress
    facts: dict[str, Any] = {"held_out": errors.mean, "batches": progress.total, "best_batch": progress.best_at}
    facts |= {"seconds": progress.seconds}
    facts |= {name: reference.mean for name, reference in references.items()}
    facts |= {"loss_scale": trainer.config.loss.scale, "warnings": doubts}
    write(trainer.folder / "metrics.json", json.dumps(facts, indent=1))


@contextmanager
def _taken(folder: Path, resume: bool, processes: Processes) -> Iterator[None]:
    """Take the folder of a run for the process that writes; a new run refuses one that is not free."""
    if not processes.writes:
        yield
        return
    if not resume:
        made_folder(folder)
    elif not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected that of a run to resume")
    with only_writer(folder):
        if not resume:  # another one may have been quicker
            _refuse_taken(folder)
        yield


def _refuse_taken(folder: Path) -> None:
    """Refuse to begin a run where there is one, or in what is no folder."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; expected the name of a folder: choose another --out")
    if checkpoint.exists(folder, "last"):
        raise InputError(f"{folder}: holds a run already: go on with --resume, or choose another --out")
    if (folder / "config.json").exists():
        raise InputError(f"{folder}: holds a config.json, which a run would replace: choose another --out")
