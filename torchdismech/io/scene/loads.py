"""External forces of a scene: gravity, the fluid around the robot, and loads on its nodes, edges and triangles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdismech import forces
from torchdismech.io.scene.refusals import Key, SceneError
from torchdismech.io.schema import scene as schema

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["external_forces"]


def external_forces(scene: Scene) -> list[forces.Force]:
    """Return the forces of [environment], [[point_force]], [[line_load]] and [[moment]], in this order."""
    environment = scene.values.environment
    _refuse_no_rods(scene)
    all_forces: list[forces.Force] = []
    if environment.gravity is not None:
        all_forces.append(forces.Gravity(environment.gravity))
        if environment.fluid_density is not None:
            all_forces.append(forces.Buoyancy(environment.gravity, environment.fluid_density))
    if environment.viscosity is not None:
        all_forces.append(forces.Viscous(environment.viscosity))
    if environment.mass_damping is not None:
        all_forces.append(forces.MassDamping(environment.mass_damping))
    if environment.resistive is not None:
        all_forces.append(_resistive(environment.resistive))
    all_forces += _on_triangles(scene)
    for load in scene.values.point_force:
        all_forces.append(forces.PointForce(load.nodes, _of_robots(load.force), load.start, load.stop))
    for line in scene.values.line_load:
        all_forces.append(forces.LineLoad(_of_robots(line.load), line.edges, line.sides, line.start, line.stop))
    for turning in scene.values.moment:
        where = (turning.nodes, turning.edges, turning.frame, turning.start, turning.stop)
        all_forces.append(forces.PointMoment(_of_robots(turning.moment), *where))
    return all_forces


def _of_robots(load: list[float] | Tensor) -> list[float] | Tensor:
    """Return a load (3,) as it is, and loads of the robots (B, 3) as (B, 1, 3), so that B is not taken for nodes."""
    return load.unsqueeze(1) if isinstance(load, Tensor) else load


def _refuse_no_rods(scene: Scene) -> None:
    """Refuse loads on rods where there are none."""
    moments: list[Key] = [("moment", k) for k in range(len(scene.document.moment))]
    resistive: list[Key] = [("environment", "resistive")] * (scene.document.environment.resistive is not None)
    for key in [*resistive, *moments]:
        if not len(scene.geometry.rod_edges):
            raise SceneError(scene.path, key, "acts on rods, and the robot has none")


def _on_triangles(scene: Scene) -> list[forces.Force]:
    environment = scene.values.environment
    keys = [name for name in ("drag", "pressure", "thrust") if getattr(environment, name) is not None]
    if keys and not len(scene.geometry.triangles):
        raise SceneError(scene.path, ("environment", keys[0]), "acts on triangles, and the robot has none")
    all_forces: list[forces.Force] = []
    if environment.drag is not None:
        all_forces.append(forces.Drag(environment.drag.density, environment.drag.coefficient))
    if environment.pressure is not None:
        all_forces.append(forces.Pressure(environment.pressure))
    if (thrust := environment.thrust) is not None:
        axis = "body" if thrust.axis is None else torch.tensor(thrust.axis, dtype=torch.float64, device="cpu")
        all_forces.append(forces.Thrust(thrust.coefficient, thrust.smoothing, axis, thrust.refill))
    return all_forces


def _resistive(table: schema.Resistive) -> forces.Force:
    if table.law == "linear":
        return forces.Resistive(table.tangential, table.normal)
    assert table.density is not None
    return forces.QuadraticResistive(table.tangential, table.normal, table.density, length=table.length)
