"""Vibration modes of a scene's robots (`torchdismech modes`), as a table on the screen and in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from torchdismech.analysis.vibration import Modes, modes
from torchdismech.integrate import Static
from torchdismech.io.outputs import write_table
from torchdismech.io.report import printed_table
from torchdismech.io.scene import Scene, Setup
from torchdismech.model import Model

__all__ = ["HEADER", "modes_table", "scene_modes", "write_modes"]

HEADER = ["robot", "mode", "frequency [Hz]", "damping ratio", "growth rate [1/s]", "largest motion"]
SHOWN = 4  # robots whose modes are printed


def scene_modes(scene: Scene, setup: Setup, count: int, settle: bool) -> Modes:
    """Return the vibration modes of a scene's robots about their initial state, or about a static equilibrium.

    The schedule is taken at time 0; controllers do not act.

    Parameters
    ----------
    settle : first find the equilibrium from the initial state; scenes with `integrator = "static"` always do.

    Raises
    ------
    SimulationError
        No equilibrium is found.
    """
    model, state = setup.model, setup.state
    static = setup.integrator
    if not isinstance(static, Static):
        simulation = scene.document.simulation
        static = Static(
            force_tolerance=simulation.force_tolerance,
            relative_tolerance=simulation.relative_tolerance,
            line_search=simulation.line_search,
        )
    control = static.sample(setup.schedule, state, model)
    if settle or static is setup.integrator:
        state, _ = static.step(model, state, control, throw=True)
    return modes(model, state, count, control)


def modes_table(model: Model, result: Modes) -> str:
    """Return the modes of the first `SHOWN` robots as a text table."""
    rows = [HEADER, *(row for row in _rows(model, result, "{:.5g}") if int(row[0]) < SHOWN)]
    return printed_table(rows, len(result.eigenvalue), SHOWN)


def write_modes(model: Model, result: Modes, path: Path) -> None:
    """Write the modes of all robots as CSV: a header, then a row for each mode, all digits of the numbers."""
    write_table(path, [HEADER, *_rows(model, result, "{!r}")])


def _rows(model: Model, result: Modes, form: str) -> Iterator[list[str]]:
    """Yield the cells, in the order of `HEADER`, of each mode of each robot; `form` formats the numbers."""
    numbers = (
        torch.stack([result.frequency, result.damping_ratio, result.growth_rate], dim=-1) + 0.0
    ).tolist()  # no -0
    for robot, numbers_of_robot in enumerate(numbers):
        for mode, values in enumerate(numbers_of_robot):
            where = _largest_motion(model, result.shape[robot, mode])
            yield [str(robot), str(mode), *(form.format(value) for value in values), where]


def _largest_motion(model: Model, shape: torch.Tensor) -> str:
    """Return in words which node moves the most in a mode shape (n,), and its main axis; or which angle turns the most.

    An angle is named where the nodes hardly move.
    """
    nodes = 3 * model.body.n_nodes
    moves = shape[:nodes].unflatten(0, (-1, 3))
    distance = torch.linalg.vector_norm(moves, dim=1)
    node = int(distance.argmax())
    # an angle is compared by the displacement that it gives a point one typical edge length away from its axis
    turned = shape[nodes:].abs() * model.body.typical_length()
    if len(turned) and bool(turned.max() > 1e3 * distance[node]):
        return f"angle {int(turned.argmax())}"
    return f"node {node} along {'xyz'[int(moves[node].abs().argmax())]}"
