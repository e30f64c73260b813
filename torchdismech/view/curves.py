"""Figures of what a run has stored beside its shapes: energies, contacts and strains over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from torchdismech.errors import InputError, truth
from torchdismech.robot.state import State
from torchdismech.trajectory import Trajectory
from torchdismech.trajectory.frames import refuse_no_run
from torchdismech.trajectory.structure import unit_of_strain
from torchdismech.view.figure import index_of, require_matplotlib, title_of, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "save_curves"]

SUMS = ("sum (without loads)", "sum")  # names of the sum of energies: of rods and shells, and of other robots
STILL = 1e-12  # strains up to this number, in any unit, count as zero
TALLEST = 6  # panels one above the other; more stand side by side
COUNTS = ("active", "sticking", "sliding")  # names in `Trajectory.contact` of numbers of contacts


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

    Energies: each, and their sum. Runs of rods and shells have no energies of loads, gravity included, so their sum is
    called "sum (without loads)"; runs of chains and arms have one of gravity. Contact: the number of contacts, the
    depth of the overlap, the size of the force of each obstacle on the robot and of the other parts on each part, and
    the load of each contact by its name. Strains: of each kind the largest, the mean and the smallest over the robot;
    kinds that are zero throughout are left out, and named in the title. A run without time is drawn over its steps.

    Raises
    ------
    InputError
        There is no such robot; the run has no contacts, no energies or no strains; matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    for name, value in {"energies": energies, "contact": contact, "strains": strains}.items():
        truth(value, f"draw_curves: {name}")
    refuse_no_run("draw_curves: trajectory", trajectory)
    if not (energies or contact or strains):
        raise InputError("draw_curves: expected at least one of energies, contact and strains to be drawn, got none")
    robot = index_of(robot, trajectory.batch, "robot")
    panels: list[tuple[str, dict[str, np.ndarray]]] = []
    if energies:
        panels.append(("energy [J]", _energies(trajectory, robot)))
    if contact:
        panels += _contacts(trajectory, robot)
    title = title_of(robot, trajectory)
    if strains:
        strain_panels, zero_kinds = _strains(trajectory, robot)
        panels += strain_panels
        title += f"; zero throughout: {', '.join(zero_kinds)}" if zero_kinds else ""
    advances = bool(trajectory.time[-1] > trajectory.time[0])
    abscissa = (trajectory.time if advances else trajectory.step).numpy()
    columns = -(-len(panels) // TALLEST)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(9 if columns == 1 else 7 * columns, 1 + 3 * rows), layout="constrained")
    places: Any = figure.subplots(rows, columns, sharex=True, squeeze=False).T.flatten()
    for empty in places[len(panels) :]:
        empty.remove()
    plots = places[: len(panels)]
    for plot, (label, curves) in zip(plots, panels, strict=True):
        for name, values in curves.items():
            dashed, color = ("--", "0.3") if name in SUMS else ("-", None)
            plot.plot(abscissa, values, dashed, lw=1.6, label=name, color=color)
        plot.set_ylabel(label)
        plot.grid(alpha=0.25)
        plot.legend(frameon=False, fontsize=9)
    figure.suptitle(title, fontsize="large")
    for plot in (*plots[rows - 1 :: rows], plots[-1]):
        plot.set_xlabel("time [s]" if advances else "step")
        plot.tick_params(labelbottom=True)
    return figure


def _energies(trajectory: Trajectory, robot: int) -> dict[str, np.ndarray]:
    curves = _of_robot(trajectory.energies, robot)
    if not curves:
        raise InputError("--energies: the run has none")
    return curves | {SUMS[not isinstance(trajectory.state, State)]: np.sum(list(curves.values()), axis=0)}


def _strains(trajectory: Trajectory, robot: int) -> tuple[list[tuple[str, dict[str, np.ndarray]]], list[str]]:
    """Return panels (label of the axis, curves by name), and the kinds of strains left out as zero throughout.

    If all kinds are zero, none is left out.
    """
    curves = _of_robot(trajectory.strains, robot)
    if not curves:
        raise InputError(
            "--strains: the run has none: ask for them before it, by strains = true in [output] of a scene, or by "
            "rollout(..., strains=True)"
        )
    nonempty = {name: values for name, values in curves.items() if values.shape[1]}
    zero_kinds = [name for name, values in nonempty.items() if np.abs(values).max() <= STILL]
    zero_kinds = [] if len(zero_kinds) == len(nonempty) else zero_kinds
    panels = [
        (
            f"{name} [{unit_of_strain(name)}]",
            {"largest": values.max(1), "mean": values.mean(1), "smallest": values.min(1)},
        )
        for name, values in nonempty.items()
        if name not in zero_kinds
    ]
    return panels, zero_kinds


def _contacts(trajectory: Trajectory, robot: int) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Return the panels of a robot's contacts: (label of the axis, curves by name)."""
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
    return [(label, panel) for label, panel in panels if panel]


def _of_robot(tensors: Mapping[str, Tensor], robot: int) -> dict[str, np.ndarray]:
    return {name: values[:, robot].numpy() for name, values in tensors.items()}
