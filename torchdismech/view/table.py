"""Positions of a robot's nodes over time as a table (.csv), which spreadsheets and fits read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torchdismech.errors import InputError
from torchdismech.view.scenery import Scenery, Shown

__all__ = ["HEADER", "write_table"]

HEADER = "time,x0,y0,z0"  # what the file of any robot begins with


def write_table(scenery: Scenery, path: Path, frames: Iterable[Shown]) -> None:
    """Write a row for each frame: time [s], then x, y, z of each node, or point of a chain or arm [m]."""
    if len(scenery.robots) != 1:
        several = f"{len(scenery.robots)} are shown: choose one, by --robots 0 or Scenery(run, [0])"
        raise InputError(f"{path.name}: a table is of one robot, and {several}")
    positions = scenery.trajectory.positions[:, int(scenery.robots[0])].flatten(1)
    names = [f"{axis}{node}" for node in range(positions.shape[1] // 3) for axis in "xyz"]
    rows = [[shown.time, *positions[shown.row].tolist()] for shown in frames]
    lines = [",".join(map(str, row)) for row in [["time", *names], *rows]]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
