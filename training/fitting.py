"""A whole fit of a robot to recordings: all stages, reports to TensorBoard, and the files of the run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchdismech import InputError
from torchdismech.errors import path_of
from torchdismech.system.processes import ALONE, Processes, device_of_process
from training.config import Config
from training.files import made_folder, only_writer, write
from training.optimization import checkpoint
from training.optimization.certainty import Certainty, certainty_of
from training.optimization.loop import Trainer
from training.optimization.validation import Validated
from training.reports.board import Board
from training.reports.metrics import Errors, baselines, beside_references, judged
from training.reports.warnings_after import warnings_after
from training.reports.warnings_before import warnings_before
from training.robots.systems import build
from training.splits import prepared_recordings

__all__ = ["fit"]

AT_THE_END = "held_out_final"  # prefix of TensorBoard's tags for the errors at the end of a run, with the best weights


def fit(
    config: Config,
    folder: Path | str,
    resume: bool = False,
    processes: Processes = ALONE,
    until: int | None = None,
    force: bool = False,
    allow_code: bool = False,
) -> Errors:
    """Train all stages and return the errors on the held-out recordings; all other results are files in the folder.

    Parameters
    ----------
    folder : the run's folder, for config.json, checkpoints, event files and metrics.json.
    resume : go on from the folder's checkpoint, to the results of a run without interruption, but for rounding;
        refused with another config or other recordings.
    processes : the processes that share the work; one of them writes and prints.
    until : stop after so many batches in total, as an interruption would.
    force : resume with another config or other recordings, too: see `Trainer.resume`.
    allow_code : run the Python files that the config, or its scene, names.
    """
    folder = path_of(folder, "fit", "folder")
    if processes.writes and not resume:
        _refuse_taken(folder)
    torch.manual_seed(config.seed)
    recordings, messages = prepared_recordings(config, config.data.train)
    trained_on, held_out = recordings.split(config.data.held_out, config.seed)
    system = build(config, trained_on, device_of_process(config.device), allow_code)
    system.refuse(held_out)
    for part in (trained_on, held_out):
        system.refuse_unseen(part)
    messages += warnings_before(config, system, recordings, trained_on)
    if processes.writes:
        # printed at once, as what follows may take long or be refused
        print(*messages, sep="\n", end="\n" * bool(messages))
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
    """Train the stages that are left and return the errors on the held-out recordings.

    The writing process also fills TensorBoard and writes metrics.json and, once all stages are done, error bars.
    """
    config, board = trainer.config, trainer.board
    if board is not None:
        board.begin(config, messages, references)
    trainer.run(until, progress=board is not None)
    done = trainer.progress.stage == len(config.stages)
    if board is not None:
        what = ", and at what they tell of the constants" if done else ""
        print(f"looking at whole recordings once more{what}", flush=True)
    validated = trainer.validation.run()
    # before anything is written: it takes long, and a run that is interrupted here is not finished
    certainty = certainty_of(trainer) if done else None
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
    """Print and write the results of a finished fit, with error bars where there are some; return its warnings."""
    config, progress, total = trainer.config, trainer.progress, trainer.progress.total
    warnings = warnings_after(config, progress, validated, references, judged(trainer.system, trainer.held_out))
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
    """Write metrics.json: errors, number of batches, time and warnings of a run, for programs to read."""
    progress = trainer.progress
    facts: dict[str, Any] = {"held_out": errors.mean, "batches": progress.total, "best_batch": progress.best_at}
    facts |= {"seconds": progress.seconds}
    facts |= {name: reference.mean for name, reference in references.items()}
    facts |= {"loss_scale": trainer.config.loss.scale, "warnings": warnings}
    write(trainer.folder / "metrics.json", json.dumps(facts, indent=1))


@contextmanager
def _writing_alone(folder: Path, resume: bool, processes: Processes) -> Iterator[None]:
    """Hold the lock on the run's folder in the process that writes; refuse a new run where there is one already."""
    if not processes.writes:
        yield
        return
    if not resume:
        made_folder(folder)
    elif not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected that of a run to resume")
    with only_writer(folder):
        if not resume:  # another process may have begun a run here since the first check
            _refuse_taken(folder)
        yield


def _refuse_taken(folder: Path) -> None:
    """Refuse to begin a run in a folder that holds one, or where the path is a file."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; expected the name of a folder: choose another --out")
    if checkpoint.exists(folder, "last"):
        raise InputError(f"{folder}: holds a run already: go on with --resume, or choose another --out")
    if (folder / "config.json").exists():
        raise InputError(f"{folder}: holds a config.json, which a run would replace: choose another --out")
