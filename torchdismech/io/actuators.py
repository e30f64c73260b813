"""The tendons and chambers of a checked scene, and the files that drive them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchdismech.actuation import AtNodes, Chamber, Fixed, OnEdges, Tendon
from torchdismech.actuation.routed import Route
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.io import schema_actuators as schema
from torchdismech.io.files import reading
from torchdismech.io.refusals import Key, SceneError
from torchdismech.io.tables import TimeTable, read_time_table
from torchdismech.model import Model

if TYPE_CHECKING:
    from torchdismech.io.scene import Scene

__all__ = ["actuators", "driven_over_time"]

UNITS = {"tension": "N", "pull": "m", "pressure": "Pa"}


def actuators(scene: Scene) -> list[Force]:
    """Return the forces of the tendons and chambers, in the order of their tables."""
    document = scene.document
    tendons: list[Force] = [_tendon(scene, k, table) for k, table in enumerate(document.tendon)]
    return tendons + [_chamber(scene, k, table) for k, table in enumerate(document.chamber)]


def driven_over_time(scene: Scene, model: Model) -> dict[str, TimeTable]:
    """Return what files drive, by the names of the constants that they set in steps."""
    names = {place: name for name, place in model.places.items()}
    found: dict[str, TimeTable] = {}
    for kind, force_kind in (("tendon", Tendon), ("chamber", Chamber)):
        forces = [force for force in model.forces if type(force) is force_kind]
        for k, (table, force) in enumerate(zip(getattr(scene.document, kind), forces, strict=True)):
            if table.over_time is not None:
                name, file = table.over_time
                found[names[force, name]] = _table(scene, (kind, k, f"{name}_file"), name, file)
    return found


def _tendon(scene: Scene, k: int, table: schema.Tendon) -> Tendon:
    key: Key = ("tendon", k)
    offset = table.offsets or table.offset or (0.0, 0.0, 0.0)
    route: list[Route] = [] if table.motor is None else [Fixed(table.motor)]
    if table.nodes is not None:
        route.append(AtNodes(table.nodes, offset, table.frame))
    else:
        assert table.edges is not None
        route.append(OnEdges(table.edges, offset, table.at, table.frame))
    names = ("tension", "pull", "stiffness", "pretension", "friction", "slip_velocity")
    given = {name: value for name in names if (value := getattr(table, name)) is not None}
    numbers = {name: scene.numbers.scalar((*key, name), value) for name, value in given.items()}
    if table.over_time is not None:
        numbers[table.over_time[0]] = 0.0
    try:
        return Tendon(route, **numbers)
    except InputError as error:
        raise SceneError(scene.path, key, str(error)) from error


def _chamber(scene: Scene, k: int, table: schema.Chamber) -> Chamber:
    area, pressure = (
        scene.numbers.scalar(("chamber", k, name), value)
        for name, value in (("area", table.area), ("pressure", table.pressure or 0.0))
    )
    return Chamber(table.nodes, table.offset, area, pressure, table.frame)


def _table(scene: Scene, key: Key, name: str, file: str) -> TimeTable:
    """Return the numbers over time of a file."""
    with reading(scene.path, key, file) as path:
        table = read_time_table(path, {1: f"{name} [{UNITS[name]}]"})
    if scene.document.simulation.integrator == "static" and len(table.times) > 1:
        problem = f'{file} has {len(table.times)} rows: integrator = "static" has no time; expected one row'
        raise SceneError(scene.path, key, problem)
    if name == "tension" and bool(torch.any(table.values < 0)):
        raise SceneError(scene.path, key, f"{file}: expected tensions of 0 or more")
    return table
