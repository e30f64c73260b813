"""Figures of what a run kept beside its shapes: energies, contacts, strains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.trajectory import Trajectory
from torchdismech.view.figure import index_of, require_matplotlib, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "save_curves"]

SUMS = ("sum (without loads)", "sum")  # the latter where gravity is among the energies
COUNTS = ("active", "sticking", "sliding")  # of contact: numbers of contacts


def save_curves(
    trajectory: Trajectory,
    path: str | Path,
    robot: int = 0,
    energies: bool = True,
    contact: bool = False,
    strains: bool = False,
) -> None:
    """Draw curves to a file, whose ending (.png, .pdf, .svg) says the format; arguments as `draw_curves`."""
    write_figure(path, lambda: draw_curves(trajectory, robot, energies, contact, strains))


def draw_curves(
    trajectory: Trajectory, robot: int = 0, energies: bool = True, contact: bool = False, strains: bool = False
) -> Figure:
    """Return a figure of a robot's energies, its contacts and its strains over time.

    Energies: each, and their sum. Loads on rods and shells, gravity among them, have no energies in a run, and the sum
    is called so; of chains and arms gravity has one. Contact: how many there are, how deep surfaces overlap, the size
    of the force of each obstacle on the robot and of the other parts on each part, and the load of each contact by its
    name. Strains: of each kind the largest, the mean and the smallest over the robot. A run without time is drawn over
    its steps.

    Raises
    ------
    InputError
        There is no such robot; the run has no contacts, no energies or no strains; matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    robot = index_of(robot, trajectory.batch, "robot")
    panels: list[tuple[str, dict[str, np.ndarray]]] = []
    if energies:
        panels.append(("energy [J]", _energies(trajectory, robot)))
    if contact:
        panels += _contacts(trajectory, robot)
    if strains:
        panels += _strains(trajectory, robot)
    advances = bool(trajectory.time[-1] > trajectory.time[0])
    abscissa = (trajectory.time if advances else trajectory.step).numpy()
    figure = Figure(figsize=(9, 1 + 3 * len(panels)), layout="constrained")
    plots: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for plot, (label, curves) in zip(plots, panels, strict=True):
        for name, values in curves.items():
            dashed, color = ("--", "0.3") if name in SUMS else ("-", None)
            plot.plot(abscissa, values, dashed, lw=1.6, label=name, color=color)
        plot.set_ylabel(label)
        plot.grid(alpha=0.25)
        plot.legend(frameon=False, fontsize=9)
    plots[0].set_title(f"robot {robot} of {trajectory.batch}")
    plots[-1].set_xlabel("time [s]" if advances else "step")
    return figure


def _energies(trajectory: Trajectory, robot: int) -> dict[str, np.ndarray]:
    curves = _of_robot(trajectory.energies, robot)
    if not curves:
        raise InputError("--energies: the run has none")
    return curves | {SUMS["gravity" in curves]: np.sum(list(curves.values()), axis=0)}


def _strains(trajectory: Trajectory, robot: int) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Return curves by the labels of their axes."""
    curves = _of_robot(trajectory.strains, robot)
    if not curves:
        raise InputError("--strains: the run has none: ask for them by strains = true in [output] of the scene")
    return [
        (name, {"largest": values.max(1), "mean": values.mean(1), "smallest": values.min(1)})
        for name, values in curves.items()
        if values.shape[1]
    ]


def _contacts(trajectory: Trajectory, robot: int) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Return curves by the labels of their axes."""
    curves = _of_robot(trajectory.contact, robot)
    if not curves:
        raise InputError("--contact: nothing can touch in this run: it has neither obstacles nor self-contact")
    forces, loads = (
        {name.removeprefix(kind): values for name, values in curves.items() if name.startswith(kind)}
        for kind in ("force/", "load/")
    )
    panels = [
        ("contacts", {name: curves[name] for name in COUNTS if name in curves}),
        ("overlap [m]", {"penetration": curves["penetration"]}),
        ("force [N]", {name: np.linalg.norm(values, axis=-1) for name, values in forces.items()}),
        ("load [N]", loads),
    ]
    return [(label, found) for label, found in panels if found]


def _of_robot(tensors: Mapping[str, Tensor], robot: int) -> dict[str, np.ndarray]:
    return {name: values[:, robot].numpy() for name, values in tensors.items()}
