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
    own, steps = processes.own(len(recordings)), recordings.frames - system.given
    good = torch.zeros(len(recordings), device=system.device)
    positions, nodes = None, None
    if own.stop > own.start:
        window = whole_windows(system, recordings, own).replace(start=None if start is None else start[own])
        prediction = predicted(system, window)
        positions, nodes, good[own] = prediction.positions, prediction.nodes, prediction.good.to(good)

    def everyones(part: Tensor | None, count: int) -> Tensor:
        whole = torch.zeros(len(recordings), steps, count, 3, dtype=recordings.positions.dtype, device=system.device)
        if part is not None:
            whole[own] = part
        return processes.summed(whole).cpu()

    # of more processes than recordings, some predict none: the one with the first recording tells how many nodes
    told = nodes.shape[2] if nodes is not None and own.start == 0 else 0
    count = int(processes.summed(torch.tensor(told, device=system.device)))
    drawn = everyones(nodes, count) if count else None
    return OpenLoop(everyones(positions, recordings.nodes), processes.summed(good).cpu() > 0, drawn)


def errors_of(
    system: System, recordings: Recordings, predicted: OpenLoop, measured: Recordings | None = None
) -> Errors:
    """Return the errors of predictions of recordings, against the `measured` ones if those are others."""
    skipped = skipped_frames(system, recordings)
    return Errors.of(predicted.positions, judged(system, measured or recordings), predicted.good, skipped)
