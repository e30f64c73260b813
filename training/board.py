"""TensorBoard: everything that a fit is judged by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from training import pictures
from training.config import Config
from training.data import Recordings
from training.files import writing
from training.metrics import HORIZONS, Errors

if TYPE_CHECKING:
    from training.resuming import Progress

__all__ = ["Board"]

MESH_FRAMES = 25  # of the trajectory that is shown as a mesh


def _writes(method: Callable) -> Callable:
    """Tell a full disk in one sentence."""

    @wraps(method)
    def wrapped(board: Board, *given):
        with writing(board.folder / "events.out.tfevents"):
            return method(board, *given)

    return wrapped


def _said_once(trouble: threading.ExceptHookArgs) -> None:
    """Leave out the traceback of TensorBoard's thread that could not write: its next call raises the same error."""
    if not (issubclass(trouble.exc_type, OSError) and type(trouble.thread).__module__.startswith("tensorboard.")):
        threading.__excepthook__(trouble)


class Board:
    """The event file of a run; one process writes it.

    Parameters
    ----------
    folder : of the run.
    since : number of batches done: a resumed run overwrites what came after.
    """

    def __init__(self, folder: Path, since: int = 0):
        from torch.utils.tensorboard import SummaryWriter

        self._hook, threading.excepthook = threading.excepthook, _said_once
        self.folder = folder
        with writing(folder):
            self._writer = SummaryWriter(str(folder), purge_step=since or None)

    @_writes
    def flush(self) -> None:
        """Write what waits."""
        self._writer.flush()

    @_writes
    def close(self) -> None:
        """Write what is left."""
        try:
            self._writer.close()
        finally:
            threading.excepthook = self._hook

    @_writes
    def begin(self, config: Config, messages: Sequence[str], baselines: dict[str, Errors], total: int) -> None:
        """Write the config, what was found in the data, and the baselines as lines that span the run."""
        self._writer.add_text("config", f"```json\n{config.model_dump_json(indent=2)}\n```", 0)
        self._writer.add_text("data", "\n\n".join(messages) or "no repairs", 0)
        for name, errors in baselines.items():
            for step in (0, total):
                self._writer.add_scalar(f"baseline/{name}", errors.mean, step)

    @_writes
    def batch(
        self,
        progress: Progress,
        loss: float,
        horizon: int,
        iterations: float,
        norms: dict[str, float],
        rates: dict[str, float],
        speed: float,
    ) -> None:
        """Write how a batch went."""
        step, add = progress.total, self._writer.add_scalar
        add("train/loss", loss, step)
        add("train/horizon", horizon, step)
        add("train/stage", progress.stage, step)
        add("train/skipped_batches", progress.skipped, step)
        add("newton/iterations", iterations, step)
        add("newton/unconverged_rows", progress.unconverged, step)
        add("speed/robot_steps_per_second", speed, step)
        for group in norms:
            add(f"gradient/{group}", norms[group], step)
            add(f"rate/{group}", rates[group], step)

    @_writes
    def constants(self, step: int, values: dict[str, Tensor]) -> None:
        """Write the trained constants; of one per element the mean, and all of them as a histogram."""
        for name, value in values.items():
            self._writer.add_scalar(f"physics/{name}", value.mean().item(), step)
            if value.numel() > 1:
                self._writer.add_histogram(f"physics/{name}", value.cpu(), step)

    @_writes
    def held_out(self, progress: Progress, errors: Errors, learned_share: float | None) -> None:
        """Write the errors on the held-out recordings."""
        step, add = progress.total, self._writer.add_scalar
        add("held_out/error", errors.mean, step)
        for horizon in HORIZONS:
            add(f"held_out/error_at_{horizon:g}s", errors.at(horizon), step)
        add("held_out/failed", int((~errors.good).sum()), step)
        if learned_share is not None:
            add("learned/force_over_elastic", learned_share, step)
        self._writer.add_figure("held_out/error_over_horizon", pictures.horizon_curves({"model": errors}), step)
        self._writer.flush()

    @_writes
    def finish(
        self,
        config: Config,
        split: str,
        recordings: Recordings,
        predicted: Tensor,
        errors: dict[str, Errors],
        step: int,
    ) -> None:
        """Write the final errors on a split, its horizon curves, shapes, a trajectory as a mesh, and hparams."""
        add = self._writer.add_scalar
        for name, error in errors.items():
            add(f"{split}/{name}", error.mean, step)
        add(f"{split}/error", errors["model"].mean, step)
        for horizon in HORIZONS:
            add(f"{split}/error_at_{horizon:g}s", errors["model"].at(horizon), step)
        for frame, value in enumerate(errors["model"].curve.tolist()):
            add(f"{split}/curve", value, frame + 1)
        self._writer.add_figure(f"{split}/error_over_horizon", pictures.horizon_curves(errors), step)
        measured = recordings.positions[:, 2:]
        times = [t for t in config.logging.shapes_at if t <= measured.shape[1] * recordings.dt + 1e-9]
        self._writer.add_figure(f"{split}/shapes", pictures.shapes(predicted, measured, recordings.dt, times), step)
        self._mesh(split, predicted[0], measured[0])
        metrics = {f"final/{split}/error": errors["model"].mean}
        metrics |= {f"final/{split}/error_at_{h:g}s": errors["model"].at(h) for h in HORIZONS}
        self._writer.add_hparams(_flat(config), metrics, run_name=f"hparams_{split}", global_step=step)
        self._writer.flush()

    def _mesh(self, split: str, predicted: Tensor, measured: Tensor) -> None:
        """Write the first trajectory: simulated (blue) and measured (grey) tubes, frame by frame."""
        span = torch.linspace(0, len(predicted) - 1, min(MESH_FRAMES, len(predicted))).long().tolist()
        for k, frame in enumerate(span):
            vertices, faces, colors = pictures.two_tubes(predicted[frame], measured[frame])
            self._writer.add_mesh(f"{split}/trajectory", vertices[None], colors[None], faces[None], global_step=k)


def _flat(config: Config) -> dict[str, str | float | int | bool]:
    """Return the numbers and words of the config by dotted keys; what the robot is, how it is trained."""
    found: dict[str, str | float | int | bool] = {}

    def walk(value, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{key}.{name}" if key else name)
        elif isinstance(value, (list, tuple)):
            if value and isinstance(value[0], dict):
                for inner in value:
                    walk(inner, f"{key}.{inner.get('name', '')}")
            else:
                found[key] = str(list(value))
        elif value is not None:
            found[key] = value

    walk(config.model_dump(exclude={"logging"}), "")
    return found
