"""Figures of a fit, for TensorBoard and for files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from training.metrics import Errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["blank", "horizon_curves", "shapes", "two_tubes"]

SIDES = 8  # of a tube
COLORS = ((60, 120, 216), (150, 150, 150))  # simulated, measured


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of that size [inch], drawn without a display."""
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
        time = error.dt * np.arange(1, len(error.curve) + 1)
        axes.plot(time, 1e3 * error.curve.numpy(), label=f"{name} ({1e3 * error.mean:.2f} mm)")
    axes.set(xlabel="time since the start [s]", ylabel="mean absolute error [mm]")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def shapes(predicted: Tensor, measured: Tensor, dt: float, times: Sequence[float], rows: int = 3) -> Figure:
    """Return a figure of simulated over measured shapes of some recordings at fixed times, seen from the side.

    Parameters
    ----------
    predicted, measured : (K, T, N, 3) [m]; frame k is (k + 1) dt after the start.
    times : [s]; one column each.
    """
    times = list(times) or [dt * measured.shape[1]]
    chosen = torch.linspace(0, len(measured) - 1, min(rows, len(measured))).long().tolist()
    figure = blank(2.6 * len(times), 2.6 * len(chosen))
    grid = figure.subplots(len(chosen), len(times), squeeze=False)
    for row, k in enumerate(chosen):
        for column, time in enumerate(times):
            frame = min(max(round(time / dt), 1), measured.shape[1]) - 1
            axes = grid[row, column]
            for x, color, label in ((measured, "0.5", "measured"), (predicted, "C0", "simulated")):
                nodes = x[k, frame].numpy()
                axes.plot(nodes[:, 0], nodes[:, 2], "o-", color=color, markersize=3, label=label)
            axes.set_aspect("equal", adjustable="datalim")
            axes.set_title(f"recording {k}, {time:g} s", fontsize=8)
            axes.tick_params(labelsize=6)
    grid[0, 0].legend(fontsize=7)
    figure.supxlabel("x [m]")
    figure.supylabel("z [m]")
    return figure


def two_tubes(simulated: Tensor, measured: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return vertices (V, 3), faces (F, 3) and colours (V, 3) of tubes through two chains of nodes (N, 3)."""
    radius = 0.01 * float(torch.linalg.vector_norm(measured.diff(dim=0), dim=-1).sum())
    vertices, faces, colors = [], [], []
    for k, nodes in enumerate((simulated, measured)):
        rings, triangles = _tube(nodes.float(), radius)
        faces.append(triangles + k * len(rings))
        vertices.append(rings)
        colors.append(torch.tensor(COLORS[k]).expand(len(rings), 3))
    return torch.cat(vertices), torch.cat(faces), torch.cat(colors)


def _tube(nodes: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Return the vertices (N * SIDES, 3) and faces of a tube."""
    tangent = torch.gradient(nodes, dim=0)[0]
    tangent = tangent / torch.linalg.vector_norm(tangent, dim=-1, keepdim=True)
    # the axis least along the tangents is across them everywhere but in odd cases, where the tube looks flat
    axis = torch.eye(3)[tangent.abs().mean(0).argmin()].expand_as(tangent)
    d1 = torch.linalg.cross(tangent, axis)
    d1 = d1 / torch.linalg.vector_norm(d1, dim=-1, keepdim=True).clamp_min(1e-9)
    d2 = torch.linalg.cross(tangent, d1)
    angle = torch.arange(SIDES) * (2 * torch.pi / SIDES)
    ring = angle.cos()[:, None] * d1[:, None] + angle.sin()[:, None] * d2[:, None]
    vertices = (nodes[:, None] + radius * ring).flatten(0, 1)
    start = SIDES * torch.arange(len(nodes) - 1)[:, None]
    side, after = torch.arange(SIDES), (torch.arange(SIDES) + 1) % SIDES
    quads = (start + side, start + after, start + SIDES + after, start + SIDES + side)
    a, b, c, d = (corner.flatten() for corner in quads)
    return vertices, torch.cat([torch.stack([a, b, c], 1), torch.stack([a, c, d], 1)])
