"""The modes of a scene: where it settles, as a table on the screen and in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from torchdismech.analysis.vibration import Modes, modes
from torchdismech.integrate import Static
from torchdismech.io.outputs import begins_with, write_table
from torchdismech.io.report import printed_table
from torchdismech.io.scene import Scene, Setup
from torchdismech.model import Model

__all__ = ["is_table_of_modes", "modes_table", "scene_modes", "write_modes"]

HEADER = ["robot", "mode", "frequency [Hz]", "damping ratio", "growth rate [1/s]", "largest motion"]
SHOWN = 4  # robots whose modes are printed


def scene_modes(scene: Scene, setup: Setup, count: int, settle: bool) -> Modes:
    """Return the modes of a scene at time 0, about where it starts or about its static equilibrium.

    Schedules are taken at time 0; controllers do not act.

    Parameters
    ----------
    settle : find the equilibrium first; scenes with `integrator = "static"` always do.

    Raises
    ------
    SimulationError
        There is no equilibrium to be found.
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


def modes_table(model: Model, found: Modes) -> str:
    """Return the modes of the first robots as lines of text."""
    rows = [HEADER, *(row for row in _rows(model, found, "{:.5g}") if int(row[0]) < SHOWN)]
    return printed_table(rows, len(found.eigenvalue), SHOWN)


def write_modes(model: Model, found: Modes, path: Path) -> None:
    """Write the modes of all robots as CSV: a header, then a row for each mode, all digits of the numbers."""
    write_table(path, [HEADER, *_rows(model, found, "{!r}")])


def is_table_of_modes(path: Path) -> bool:
    """Return whether a file begins as `write_modes` has it."""
    return begins_with(path, (",".join(HEADER) + "\n").encode())


def _rows(model: Model, found: Modes, form: str) -> Iterator[list[str]]:
    """Yield a row for each mode of each robot, numbers in a form."""
    numbers = (torch.stack([found.frequency, found.damping_ratio, found.growth_rate], dim=-1) + 0.0).tolist()  # no -0
    for robot, of_modes in enumerate(numbers):
        for mode, values in enumerate(of_modes):
            where = _largest_motion(model, found.shape[robot, mode])
            yield [str(robot), str(mode), *(form.format(value) for value in values), where]


def _largest_motion(model: Model, shape: torch.Tensor) -> str:
    """Return which node moves the most in a mode (n,), and along which axis most; or the angle, where only these do."""
    nodes = 3 * model.body.n_nodes
    moves = shape[:nodes].unflatten(0, (-1, 3))
    distance = torch.linalg.vector_norm(moves, dim=1)
    node = int(distance.argmax())
    # an angle that turns by so much moves what is a mean edge away from its axis as far
    turned = shape[nodes:].abs() * model.body.typical_length()
    if len(turned) and bool(turned.max() > 1e3 * distance[node]):
        return f"angle {int(turned.argmax())}"
    return f"node {node} along {'xyz'[int(moves[node].abs().argmax())]}"
