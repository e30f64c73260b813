"""Open-loop predictions of whole recordings, and their errors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.system.processes import ALONE, Processes
from training.data import Recordings
from training.reports.metrics import Errors, judged, skipped_frames
from training.system import System, predicted, whole_windows

__all__ = ["OpenLoop", "errors_of", "predict_all"]


@dataclass(frozen=True)
class OpenLoop:
    """Predictions of whole recordings, on the CPU.

    Attributes
    ----------
    positions : (K, T - given, M, 3) of the markers [m].
    good : (K,) bool, which came to their end.
    nodes : (K, T - given, N, 3) of all nodes [m]; None where the markers are the nodes.
    """

    positions: Tensor
    good: Tensor
    nodes: Tensor | None

    @property
    def drawn(self) -> Tensor:
        """The nodes to draw (K, T - given, N, 3) [m]."""
        return self.positions if self.nodes is None else self.nodes

    def rows(self, rows: slice) -> OpenLoop:
        """Return the predictions of some of the recordings."""
        return OpenLoop(self.positions[rows], self.good[rows], None if self.nodes is None else self.nodes[rows])


@torch.no_grad()
def predict_all(
    system: System, recordings: Recordings, processes: Processes = ALONE, start: Tensor | None = None
) -> OpenLoop:
    """Return open-loop predictions of all recordings; several processes share them, and all get all results.

    Parameters
    ----------
    start : (K, S) fitted starts, where the system has some.
    """
    own = processes.own(len(recordings))
    steps, good = recordings.frames - system.given, torch.zeros(len(recordings), device=system.device)
    shapes = {"positions": recordings.nodes}
    found: dict[str, Tensor] = {}
    if own.stop > own.start:
        window = whole_windows(system, recordings, own).replace(start=None if start is None else start[own])
        prediction = predicted(system, window)
        found["positions"], good[own] = prediction.positions, prediction.good.to(good)
        if prediction.nodes is not None:
            shapes["nodes"], found["nodes"] = prediction.nodes.shape[2], prediction.nodes
    everyones = {}
    for name, count in shapes.items():
        own_part = torch.zeros(len(recordings), steps, count, 3, dtype=recordings.positions.dtype, device=system.device)
        if name in found:
            own_part[own] = found[name]
        everyones[name] = processes.summed(own_part).cpu()
    return OpenLoop(everyones["positions"], processes.summed(good).cpu() > 0, everyones.get("nodes"))


def errors_of(
    system: System, recordings: Recordings, predicted: OpenLoop, measured: Recordings | None = None
) -> Errors:
    """Return the errors of predictions of recordings, against the `measured` ones if those are others."""
    skipped = skipped_frames(system, recordings)
    return Errors.of(predicted.positions, judged(system, measured or recordings), predicted.good, skipped)
