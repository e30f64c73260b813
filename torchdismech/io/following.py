"""Equilibrium paths of a scene under growing loads (`torchdismech follow`), as a table on the screen and in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from torchdismech.analysis.following import EquilibriumPath, follow
from torchdismech.errors import InputError, Status, positive_number
from torchdismech.io.outputs import write_table
from torchdismech.io.report import printed_table
from torchdismech.io.scene import Scene, Setup
from torchdismech.io.scene.turning import refuse_half_turns
from torchdismech.model import Model
from torchdismech.robot.state import State

__all__ = ["POINTS", "paths_table", "refuse_node", "scene_paths", "write_points"]

HEADER = ["robot", "points", "last load factor", "turns at", "no minimum from", "ends"]
POINTS = ["robot", "point", "load factor", "slope", "length", "minimum", "node", "x [m]", "y [m]", "z [m]"]
SHOWN = 4  # robots whose paths are printed
TURNS = 4  # most load factors at limit points that are printed of a path


def scene_paths(
    scene: Scene, setup: Setup, last: float, steps: int, length: float, time: float | None
) -> EquilibriumPath:
    """Return the equilibrium path of each robot of a scene, from no load to the load factor `last` (see `follow`).

    The first point is searched for from the scene's initial state. Controllers do not act.

    Parameters
    ----------
    time : the time at which the schedule and loads are taken [s]; by default the end of the scene, 0 for static ones.
    """
    simulation, state = scene.document.simulation, State.of(setup.state)
    if time is None:
        end = simulation.duration or 0.0
    else:
        end = positive_number(time, "--time", "a finite number of seconds from 0 on", or_zero=True)
    state = state.replace(time=torch.full_like(state.time, end))
    refuse_half_turns(setup.schedule, setup.model, state.time)
    control = setup.schedule(state.time, setup.model)
    absolute, relative = simulation.force_tolerance, simulation.relative_tolerance
    return follow(
        setup.model, state, control, last, steps, length, force_tolerance=absolute, relative_tolerance=relative
    )


def paths_table(path: EquilibriumPath) -> str:
    """Return a text table of the first robots' paths: where each turns, ceases to be stable and ends."""
    rows = [HEADER, *(_printed_row(path, robot) for robot in range(min(SHOWN, len(path.points))))]
    return printed_table(rows, len(path.points), SHOWN)


def refuse_node(model: Model, node: int | None, out: Path | None) -> None:
    """Refuse --node without --out, and a node that the robot does not have."""
    if node is not None and out is None:
        raise InputError("--node: says whose positions --out FILE.csv is to have; pass that, too")
    if node is not None and not 0 <= node < model.body.n_nodes:
        raise InputError(f"--node: expected a node from 0 to {model.body.n_nodes - 1}, got {node}")


def write_points(path: EquilibriumPath, node: int | None, file: Path) -> None:
    """Write the points of all robots' paths as CSV, with all digits, each with the position of one node.

    Parameters
    ----------
    node : the node; by default the one that moves the farthest from the first point, in any robot.
    """
    nodes = torch.stack([state.positions for state in path.states])  # (T, B, N, 3)
    if node is None:
        node = int(torch.linalg.vector_norm(nodes - nodes[0], dim=-1).amax((0, 1)).argmax())
    write_table(file, [POINTS, *_points(path, node, nodes[:, :, node])])


def _printed_row(path: EquilibriumPath, robot: int) -> list[str]:
    """Return the cells of a robot's row in the printed table, in the order of `HEADER`."""
    count, limits = int(path.points[robot]), [f"{value:.5g}" for value in path.limits(robot).tolist()]
    factors, unstable = path.load_factor[:count, robot], "unknown"
    if path.stable is not None and count:
        saddles = (~path.stable[:count, robot]).nonzero().flatten().tolist()
        unstable = f"{factors[saddles[0]].item():.5g}" if saddles else "-"
    status = Status(int(path.status[robot]))
    ends = "there" if bool(path.reached[robot]) else "after its steps" if not status else status.name.lower()
    turns = ", ".join(limits[:TURNS] + ["..."] * (len(limits) > TURNS)) or "-"
    last = f"{factors[-1].item():.5g}" if count else "-"
    return [str(robot), str(count), last, turns, unstable, ends]


def _points(path: EquilibriumPath, node: int, position: Tensor) -> Iterator[list[str]]:
    """Yield the cells, in the order of `POINTS`, of each point of each robot; `position` is the node's, (T, B, 3)."""
    for robot, count in enumerate(path.points.tolist()):
        for k in range(count):
            numbers = [values[k, robot].item() for values in (path.load_factor, path.slope, path.length)]
            minimum = "" if path.stable is None else str(int(path.stable[k, robot]))
            xyz = position[k, robot].tolist()
            yield [str(robot), str(k), *map(repr, numbers), minimum, str(node), *map(repr, xyz)]
