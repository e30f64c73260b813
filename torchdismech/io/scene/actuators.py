"""The tendons and chambers of a checked scene, and the files that drive them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdismech.actuation import AtNodes, Chambers, Fixed, OnEdges, Tendons
from torchdismech.actuation.routed import Route, RoutedForce
from torchdismech.actuation.tendons import SLIP_VELOCITY
from torchdismech.io.scene.files import table_over_time
from torchdismech.io.scene.refusals import Key, SceneError, naming
from torchdismech.io.schema import actuators as schema
from torchdismech.io.tables import TimeTable
from torchdismech.model import Model
from torchdismech.values import tensor_of

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["actuators", "driven_over_time"]

UNITS = {"tension": "N", "pull": "m", "pressure": "Pa"}
OF_TENDONS = ("tension", "pull", "stiffness", "pretension", "friction", "slip_velocity")
DEFAULTS = {"pretension": 0.0, "slip_velocity": SLIP_VELOCITY}


@dataclass(frozen=True)
class _Group:
    """The [[tendon]] or [[chamber]] tables that become one force of the model.

    Attributes
    ----------
    kind : "tendon" or "chamber".
    driven_by : the constant of the force by which they are driven: "tension", "pull" or "pressure".
    tables : (number in the scene, table) of each.
    """

    kind: str
    driven_by: str
    tables: list[tuple[int, Any]]


def actuators(scene: Scene) -> list[RoutedForce]:
    """Return the forces of the tendons and chambers, one for each group of `_groups`."""
    return [_force(scene, group) for group in _groups(scene)]


def driven_over_time(scene: Scene, model: Model) -> dict[str, list[TimeTable]]:
    """Return a table over time of each tendon or chamber of a force, by the names of the constants that drive them.

    Forces that no file drives are left out.
    """
    names = {place: name for name, place in model.places.items()}
    forces = [force for force in model.forces if isinstance(force, RoutedForce)]
    driven: dict[str, list[TimeTable]] = {}
    for group, force in zip(_groups(scene), forces, strict=False):  # after these are those that Python has added
        if any(schema.drive_file(table) is not None for _, table in group.tables):
            columns = [_over_time(scene, group, k, table) for k, table in group.tables]
            _refuse_pulls(scene, group, force, columns)
            driven[names[force, group.driven_by]] = columns
    return driven


def _groups(scene: Scene) -> list[_Group]:
    """Return the groups of tables: tendons by what drives them and whether they have friction, then all chambers."""
    groups: dict[tuple[str, bool], _Group] = {}
    for k, table in enumerate(scene.values.tendon):
        key = (table.driven_by, table.friction is not None)
        groups.setdefault(key, _Group("tendon", table.driven_by, [])).tables.append((k, table))
    chambers = list(enumerate(scene.values.chamber))
    return [*groups.values(), *([_Group("chamber", "pressure", chambers)] if chambers else [])]


def _force(scene: Scene, group: _Group) -> RoutedForce:
    if group.kind == "chamber":
        routes = [[AtNodes(table.nodes, table.offset, table.frame)] for _, table in group.tables]
        return Chambers(routes, _stacked(group, "area"), _stacked(group, "pressure"))
    names = [name for name in OF_TENDONS if any(getattr(table, name) is not None for _, table in group.tables)]
    numbers = {name: _stacked(group, name) for name in {*names, group.driven_by}}
    with naming(scene.path, (group.kind, group.tables[0][0])):
        return Tendons([_route(table) for _, table in group.tables], **numbers)


def _route(table: schema.Tendon) -> list[Route]:
    """Return the parts of a tendon's route: the motor, if there is one, then points at nodes or on edges."""
    offset = table.offsets or table.offset or (0.0, 0.0, 0.0)
    route: list[Route] = [] if table.motor is None else [Fixed(table.motor)]
    if table.nodes is not None:
        return [*route, AtNodes(table.nodes, offset, table.frame)]
    assert table.edges is not None
    return [*route, OnEdges(table.edges, offset, table.at, table.frame)]


def _stacked(group: _Group, name: str) -> Tensor:
    """Return the number `name` of all tables of a group, (T,), or (B, T) where it is drawn for any of them."""
    tensors = [tensor_of(_number(table, name), torch.float64) for _, table in group.tables]
    robots = max(len(x) if x.dim() else 1 for x in tensors)
    columns = torch.cat([x.reshape(-1, 1).expand(robots, 1) for x in tensors], dim=1)
    return columns[0] if all(x.dim() == 0 for x in tensors) else columns


def _number(table: Any, name: str) -> float | Tensor:
    """Return the number `name` of a table, or (B, 1) where it is drawn; its default (mostly 0) where it is not given.

    The number that a file drives is one that is not given.
    """
    given = getattr(table, name)
    return DEFAULTS.get(name, 0.0) if given is None else given


def _over_time(scene: Scene, group: _Group, k: int, table: Any) -> TimeTable:
    """Return what drives one tendon or chamber of a group over time; negative tensions are refused."""
    name, file = group.driven_by, schema.drive_file(table)
    if file is None:
        return TimeTable.constant(_number(table, name))
    key: Key = (group.kind, k, f"{name}_file")
    rows = table_over_time(scene, key, file, {1: f"{name} [{UNITS[name]}]"})
    if name == "tension" and bool(torch.any(rows.values < 0)):
        raise SceneError(scene.path, key, f"{file}: expected tensions of 0 or more")
    return rows


def _refuse_pulls(scene: Scene, group: _Group, force: RoutedForce, columns: Sequence[TimeTable]) -> None:
    """Refuse files that pull in more than the whole length of their tendons."""
    if not isinstance(force, Tendons) or group.driven_by != "pull":
        return
    for tendon, ((k, table), column) in enumerate(zip(group.tables, columns, strict=True)):
        if table.pull_file is not None:
            most = torch.zeros(len(columns), dtype=torch.float64, device="cpu")
            most[tendon] = column.values.max()
            if problem := force.problem_of_pull(most):
                raise SceneError(scene.path, (group.kind, k, "pull_file"), f"{table.pull_file}: {problem}")
