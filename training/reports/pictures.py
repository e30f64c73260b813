"""Figures of a fit, for TensorBoard and for files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from training.reports.metrics import Errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["blank", "horizon_curves", "shapes"]

ROWS = 3  # most recordings that are drawn
FLAT = 0.15  # height over width, below which shapes are seen from above


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of a size [inch], which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def horizon_curves(errors: dict[str, Errors]) -> Figure:
    """Return a figure of the mean absolute error over the time since the start."""
    figure = blank(6, 4)
    axes = figure.subplots()
    for name, error in errors.items():
        axes.plot(error.time, 1e3 * error.curve.numpy(), label=f"{name} ({1e3 * error.mean:.2f} mm)")
    axes.set(xlabel="time since the start [s]", ylabel="mean absolute error [mm]")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def shapes(
    drawn: Tensor,
    edges: Tensor,
    triangles: Tensor,
    markers: Tensor,
    valid: Tensor,
    dt: float,
    times: Sequence[float],
) -> Figure:
    """Return a figure of simulated robots and measured markers of some recordings at fixed times.

    The view is from the side, along the horizontal axis in which the markers extend least, or from above if they lie
    flat.

    Parameters
    ----------
    drawn : (K, T, N, 3) simulated nodes [m]; frame k is (k + 1) dt after the start.
    edges, triangles : (E, 2), (F, 3) nodes of the edges and triangles that are drawn.
    markers, valid : (K, T, M, 3) measured markers [m], and (K, T, M) which of them were seen.
    times : [s]; one column each.
    """
    times = list(times) or [dt * markers.shape[1]]
    chosen = torch.linspace(0, len(markers) - 1, min(ROWS, len(markers)), device="cpu").long().tolist()
    figure = blank(2.6 * len(times), 2.6 * len(chosen))
    grid = figure.subplots(len(chosen), len(times), squeeze=False)
    lines, axis = _lines(edges, triangles), _widest(markers[valid])
    for row, k in enumerate(chosen):
        for column, time in enumerate(times):
            frame = min(max(round(time / dt), 1), markers.shape[1]) - 1
            axes, seen = grid[row, column], markers[k, frame][valid[k, frame]][:, axis].numpy()
            _draw_lines(axes, drawn[k, frame][:, axis].numpy(), lines)
            axes.plot(seen[:, 0], seen[:, 1], "o", color="0.35", markersize=3, label="measured")
            axes.set_aspect("equal", adjustable="datalim")
            axes.set_title(f"recording {k}, {time:g} s", fontsize=8)
            axes.tick_params(labelsize=6)
    grid[0, 0].legend(fontsize=7)
    figure.supxlabel(f"{'xyz'[axis[0]]} [m]")
    figure.supylabel(f"{'xyz'[axis[1]]} [m]")
    return figure


def _lines(edges: Tensor, triangles: Tensor) -> np.ndarray:
    """Return the nodes (L, 2) of all edges and sides of triangles, each once."""
    sides = torch.cat([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    return torch.cat([edges, sides]).sort(dim=1).values.unique(dim=0).numpy()


def _widest(points: Tensor) -> list[int]:
    """Return the two axes to draw points (P, 3) along: z and the wider of x and y; x and y if the points lie flat."""
    reach = points.amax(0) - points.amin(0) if len(points) else points.new_tensor([1.0, 0.0, 1.0])
    flat = bool(reach[2] < FLAT * reach.max())
    return [0, 1] if flat else [int(reach[:2].argmax()), 2]


def _draw_lines(axes: Axes, places: np.ndarray, lines: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(places[lines]), colors="C0", linewidths=1, label="simulated"))
    axes.autoscale_view()
