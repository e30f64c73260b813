"""`Board`, which writes everything that TensorBoard shows of a fit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from training.config import Config
from training.config.stages import OF_ADAM
from training.data import Recordings
from training.files import writing
from training.reports import pictures, solids
from training.reports.metrics import Errors

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from training.optimization.batches import Batch
    from training.optimization.resuming import Progress
    from training.reports.predictions import OpenLoop
    from training.system import System

__all__ = ["Board"]

MESH_FRAMES = 25  # at most, of the trajectory that is shown as a mesh
MOVIE_FRAMES, MOVIE_SECONDS = 25, 4.0  # at most, of the movie of a trajectory


def _writes(method: Callable) -> Callable:
    """Decorate a method of `Board` that writes, so that a full disk ends in an InputError of one sentence."""

    @wraps(method)
    def wrapped(board: Board, *given):
        with writing(board.folder / "events.out.tfevents"):
            return method(board, *given)

    return wrapped


def _said_once(trouble: threading.ExceptHookArgs) -> None:
    """Print no traceback for TensorBoard's thread that could not write, as the next call raises the same error."""
    if not (issubclass(trouble.exc_type, OSError) and type(trouble.thread).__module__.startswith("tensorboard.")):
        threading.__excepthook__(trouble)


class Board:
    """The event file of a run, which one process writes.

    Parameters
    ----------
    folder : the run's folder.
    since : first step that a resumed run writes; what an earlier one wrote from there on is dropped. None keeps all.
    """

    def __init__(self, folder: Path, since: int | None = None):
        from torch.utils.tensorboard import SummaryWriter

        self._hook, threading.excepthook = threading.excepthook, _said_once
        self.folder, self._since = folder, since
        self._baselines: dict[str, Errors] = {}
        self._looks = 0
        with writing(folder):
            self._writer = SummaryWriter(str(folder), purge_step=since)
        self._beside: dict[str, SummaryWriter] = {}

    def _lines(self, name: str) -> SummaryWriter:
        """Return the writer of a subfolder, which TensorBoard shows as a line of that name in the same charts."""
        from torch.utils.tensorboard import SummaryWriter

        if name not in self._beside:
            self._beside[name] = SummaryWriter(str(self.folder / name), purge_step=self._since)
        return self._beside[name]

    @_writes
    def flush(self) -> None:
        """Write pending events to disk."""
        for writer in (self._writer, *self._beside.values()):
            writer.flush()

    @_writes
    def close(self) -> None:
        """Write pending events and close the files."""
        try:
            for writer in (self._writer, *self._beside.values()):
                writer.close()
        finally:
            threading.excepthook = self._hook

    @_writes
    def begin(self, config: Config, messages: Sequence[str], baselines: dict[str, Errors]) -> None:
        """Write the config and the messages about the data; keep the baselines, which every look shows."""
        self._writer.add_text("config", f"```json\n{config.model_dump_json(indent=2)}\n```", 0)
        self._writer.add_text("data", "\n\n".join(messages) or "no repairs", 0)
        self._baselines = baselines

    @_writes
    def batch(self, progress: Progress, batch: Batch, horizon: int, speed: float) -> None:
        """Write the scalars of a batch of windows of `horizon` frames; `speed` is in robot steps per second."""
        step, add = progress.total, self._writer.add_scalar
        add("train/loss", batch.loss, step)
        add("train/horizon", horizon, step)
        add("train/stage", progress.stage, step)
        add("train/skipped_batches", progress.skipped, step)
        if batch.iterations is not None:
            add("newton/iterations", batch.iterations, step)
        add("newton/unconverged_rows", progress.unconverged, step)
        add("speed/robot_steps_per_second", speed, step)
        for group in batch.norms:
            add(f"gradient/{group}", batch.norms[group], step)
            add(f"rate/{group}", batch.rates[group], step)

    @_writes
    def constants(self, group: str, values: dict[str, Tensor], step: int) -> None:
        """Write the trained constants; of a constant with several numbers, their mean and a histogram."""
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value.mean().item(), step)
            if value.numel() > 1:
                self._writer.add_histogram(f"{group}/{name}", value.cpu(), step)

    @_writes
    def held_out(self, progress: Progress, errors: Errors, trained: Errors, learned_share: float | None) -> None:
        """Write the errors on the held-out recordings and on those trained on, with the baselines as lines."""
        step, add = progress.total, self._writer.add_scalar
        add("held_out/error", errors.mean, step)
        add("train/error", trained.mean, step)
        self._lines("trained on").add_scalar("held_out/error", trained.mean, step)
        for name, baseline in self._baselines.items():
            self._lines(f"baseline {name}").add_scalar("held_out/error", baseline.mean, step)
        for horizon in errors.horizons:
            add(f"held_out/error_at_{horizon:g}s", errors.at(horizon), step)
        add("held_out/failed", errors.failed, step)
        if learned_share is not None:
            add("learned/force_over_elastic", learned_share, step)
        curves = {"model": errors, **self._baselines}
        self._writer.add_figure("held_out/error_over_horizon", pictures.horizon_curves(curves), step)
        self._writer.flush()

    @_writes
    def pictures(
        self, split: str, config: Config, recordings: Recordings, predicted: OpenLoop, system: System, step: int
    ) -> None:
        """Write shapes, a mesh and a short movie of predictions.

        For the split "held_out" only the first of every `pictures_every` calls does so.
        """
        self._looks += 1
        if split == "held_out" and (self._looks - 1) % config.logging.pictures_every:
            return
        given, dt = recordings.frames - predicted.positions.shape[1], recordings.dt
        markers, valid = recordings.positions[:, given:], recordings.valid[:, given:]
        nodes = predicted.drawn
        edges, triangles = _joints(system, nodes.shape[2])
        times = [t for t in config.logging.shapes_at if t <= markers.shape[1] * dt + 1e-9]
        figure = pictures.shapes(nodes, edges, triangles, markers, valid, dt, times)
        self._writer.add_figure(f"{split}/shapes", figure, step)
        if not bool(nodes[0].isfinite().all()):
            return
        low, high = solids.box(nodes[0], markers[0][valid[0]])
        extent = float((high - low).max())

        def solid(frame: int) -> solids.Solid:
            return solids.drawn(nodes[0, frame], edges, triangles, markers[0, frame], valid[0, frame], extent)

        self._mesh(split, [solid(k) for k in _spread(len(nodes[0]), MESH_FRAMES)])
        shown = _spread(min(len(nodes[0]), max(round(MOVIE_SECONDS / dt), 2)), MOVIE_FRAMES)
        film = solids.movie([solid(k) for k in shown], low, high, dt * (shown[-1] - shown[0]) / max(len(shown) - 1, 1))
        self._film(f"{split}/movie", film, step)

    def _mesh(self, split: str, shapes: list[solids.Solid]) -> None:
        """Write the frames of a trajectory as meshes, each at a step of its own."""
        for k, shape in enumerate(shapes):
            vertices, colours, faces = (
                torch.as_tensor(x, device="cpu")[None] for x in (shape.vertices, shape.colours, shape.faces)
            )
            self._writer.add_mesh(f"{split}/trajectory", vertices.float(), colours.int(), faces.int(), global_step=k)

    def _film(self, tag: str, film: bytes, step: int) -> None:
        """Write a GIF as an image, which TensorBoard's page plays."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        image = Summary.Image(height=240, width=320, colorspace=3, encoded_image_string=film)
        writer = self._writer._get_file_writer()
        writer.add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)

    @_writes
    def hparams(self, config: Config, split: str, errors: Errors, step: int) -> None:
        """Write the errors on a split beside the config's numbers and words, for the page HPARAMS."""
        from torch.utils.tensorboard.summary import hparams

        metrics = _metrics(split, errors)
        name, known = f"hparams {split}", f"hparams {split}" in self._beside
        writer = self._lines(name)
        if not known:
            for summary in hparams(_flat(config), metrics):
                writer._get_file_writer().add_summary(summary)
        for tag, value in metrics.items():
            writer.add_scalar(tag, value, step)

    @_writes
    def text(self, tag: str, text: str, step: int) -> None:
        """Write a text as it is, in a font of fixed width."""
        self._writer.add_text(tag, f"```\n{text}\n```", step)

    @_writes
    def evaluated(self, split: str, errors: dict[str, Errors], step: int) -> None:
        """Write the final errors on a split and their curves over the horizon."""
        add, model = self._writer.add_scalar, errors["model"]
        for name, error in errors.items():
            add(f"{split}/{name}", error.mean, step)
        add(f"{split}/error", model.mean, step)
        for horizon in model.horizons:
            add(f"{split}/error_at_{horizon:g}s", model.at(horizon), step)
        for frame, value in enumerate(model.curve.tolist()):
            add(f"{split}/curve", value, frame + 1)
        self._writer.add_figure(f"{split}/error_over_horizon", pictures.horizon_curves(errors), step)
        self._writer.flush()


def _metrics(split: str, errors: Errors) -> dict[str, float]:
    """Return the errors of a split by their names on the page HPARAMS."""
    at = {f"final/{split}/error_at_{h:g}s": errors.at(h) for h in errors.horizons}
    return {f"final/{split}/error": errors.mean, **at}


def _joints(system: System, nodes: int) -> tuple[Tensor, Tensor]:
    """Return the edges (E, 2) and triangles (F, 3) to draw for a system; a chain of its nodes where it names none."""
    chain = torch.stack([torch.arange(nodes - 1, device="cpu"), torch.arange(1, nodes, device="cpu")], dim=1)
    none = torch.zeros(0, 3, dtype=torch.long, device="cpu")
    if system.edges is None and system.triangles is None:
        return chain, none
    return (none[:, :2] if system.edges is None else system.edges), (
        none if system.triangles is None else system.triangles
    )


def _spread(frames: int, most: int) -> list[int]:
    """Return the indices of at most so many of the frames, at even distances."""
    return torch.linspace(0, frames - 1, min(most, frames), device="cpu").long().tolist()


def _flat(config: Config) -> dict[str, str | float | int | bool]:
    """Return the numbers and words of the config by dotted keys, without [logging] and fields that a stage lacks."""
    found: dict[str, str | float | int | bool] = {}

    def walk(value, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{key}.{name}" if key else name)
        elif isinstance(value, (list, tuple)):
            if value and isinstance(value[0], dict):
                for number, inner in enumerate(value):
                    walk(inner, f"{key}.{inner.get('name', number)}")
            else:
                found[key] = str(list(value))
        elif value is not None:
            found[key] = value

    tables = config.model_dump(exclude={"logging"})
    for stage in tables["stages"]:
        if stage["method"] != "adam":
            for name in OF_ADAM:
                del stage[name]
    walk(tables, "")
    return found
