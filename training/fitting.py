"""Fits of a robot to recordings: all stages, what TensorBoard shows, and what a run leaves in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchdismech import InputError
from torchdismech.system.processes import ALONE, Processes, device_of_process
from training.config import Config
from training.files import made_folder, only_writer, write
from training.optimization import checkpoint
from training.optimization.certainty import Certainty, certainty_of
from training.optimization.loop import Trainer
from training.optimization.validation import Validated
from training.reports.board import Board
from training.reports.metrics import Errors, baselines, beside_references
from training.reports.warnings_after import warnings_after
from training.reports.warnings_before import warnings_before
from training.robots.systems import build
from training.splits import prepared_recordings

__all__ = ["fit"]

AT_THE_END = "held_out_final"  # what TensorBoard calls the errors that a run ends with


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
    recordings, messages = prepared_recordings(config, config.data.train)
    trained_on, held_out = recordings.split(config.data.held_out, config.seed)
    system = build(config, trained_on, device_of_process(config.device), allow_code)
    system.refuse(held_out)
    messages += warnings_before(config, system, recordings, trained_on)
    if processes.writes:
        print(*messages, sep="\n", end="\n" * bool(messages))  # before the rest, which may be refused, or take long
    trainer = Trainer(config, system, trained_on, held_out, folder, processes)
    with _writing_alone(folder, resume, processes):
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
            errors = trainer.validation.run().errors if finished else _trained(trainer, messages, references, until)
        finally:
            if trainer.board is not None:
                trainer.board.close()
    if processes.writes:
        kind = "held-out" if config.data.held_out else "training"
        print(f"error on {len(held_out)} {kind} recordings: {beside_references(errors, references)}; run in {folder}")
    return errors


def _trained(trainer: Trainer, messages: list[str], references: Mapping[str, Errors], until: int | None) -> Errors:
    """Train all stages and return the errors on the held-out recordings; the writing process reports on the run."""
    config, board = trainer.config, trainer.board
    if board is not None:
        board.begin(config, messages, references)
    trainer.run(until, progress=board is not None)
    done = trainer.progress.stage == len(config.stages)
    if board is not None:
        what = ", and at what they tell of the constants" if done else ""
        print(f"looking at whole recordings once more{what}", flush=True)
    validated = trainer.validation.run()
    certainty = certainty_of(trainer) if done else None  # before anything is written: it takes long, and may be cut off
    if board is not None:
        board.evaluated(AT_THE_END, {"model": validated.errors, **references}, trainer.progress.total)
        board.hparams(config, AT_THE_END, validated.errors, trainer.progress.total)
        warnings = _report_on_all_stages(trainer, board, validated, certainty, references) if done else []
        _write_metrics(trainer, validated.errors, references, warnings)
    if done:
        trainer.progress.reported = True
        trainer.save()
    return validated.errors


def _report_on_all_stages(
    trainer: Trainer,
    board: Board,
    validated: Validated,
    certainty: Certainty | None,
    references: Mapping[str, Errors],
) -> list[str]:
    """Print and write what a fit that is done has found, and how certain it is; return what is doubtful about it."""
    config, progress, total = trainer.config, trainer.progress, trainer.progress.total
    warnings = warnings_after(config, progress, validated, references, trainer.held_out)
    print(*warnings, sep="\n", end="\n" * bool(warnings))
    board.text("doubts", "\n".join(warnings) or "none", total)
    board.constants("final/physics", trainer.system.values(), total)
    board.pictures(AT_THE_END, config, trainer.held_out, validated.predicted, trainer.system, total)
    if certainty is not None:
        print(certainty.as_text())
        board.text("certainty", certainty.as_text(), total)
        write(trainer.folder / "certainty.json", json.dumps(certainty.facts(), indent=1))
    return warnings


def _write_metrics(trainer: Trainer, errors: Errors, references: Mapping[str, Errors], warnings: list[str]) -> None:
    """Write what came of a run, for programs to read."""
    progress = trainer.progress
    facts: dict[str, Any] = {"held_out": errors.mean, "batches": progress.total, "best_batch": progress.best_at}
    facts |= {"seconds": progress.seconds}
    facts |= {name: reference.mean for name, reference in references.items()}
    facts |= {"loss_scale": trainer.config.loss.scale, "warnings": warnings}
    write(trainer.folder / "metrics.json", json.dumps(facts, indent=1))


@contextmanager
def _writing_alone(folder: Path, resume: bool, processes: Processes) -> Iterator[None]:
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
