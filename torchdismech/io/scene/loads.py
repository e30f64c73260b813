"""External forces of a scene: gravity, the fluid around the robot, and loads on its nodes, edges and triangles."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from torchdismech import forces
from torchdismech.io.scene.refusals import Key, SceneError
from torchdismech.io.schema import scene as schema
from torchdismech.robot.materials import Number

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["external_forces"]


def external_forces(scene: Scene) -> list[forces.Force]:
    """Return the forces of [environment], [[point_force]], [[line_load]] and [[moment]], in this order."""
    environment, number = scene.document.environment, partial(_number, scene)
    _refuse_no_rods(scene)
    all_forces: list[forces.Force] = []
    if environment.gravity is not None:
        gravity = scene.numbers.vector(("environment", "gravity"))
        all_forces.append(forces.Gravity(gravity))
        if environment.fluid_density is not None:
            all_forces.append(forces.Buoyancy(gravity, number("fluid_density")))
    if environment.viscosity is not None:
        all_forces.append(forces.Viscous(number("viscosity")))
    if environment.mass_damping is not None:
        all_forces.append(forces.MassDamping(number("mass_damping")))
    if environment.resistive is not None:
        all_forces.append(_resistive(scene, environment.resistive))
    all_forces += _on_triangles(scene)
    for k, load in enumerate(scene.document.point_force):
        force = _of_robots(scene.numbers.vector(("point_force", k, "force")))
        all_forces.append(forces.PointForce(load.nodes, force, load.start, load.stop))
    for k, line in enumerate(scene.document.line_load):
        load_of_line = _of_robots(scene.numbers.vector(("line_load", k, "load")))
        all_forces.append(forces.LineLoad(load_of_line, line.edges, line.sides, line.start, line.stop))
    for k, turning in enumerate(scene.document.moment):
        moment = _of_robots(scene.numbers.vector(("moment", k, "moment")))
        where = (turning.nodes, turning.edges, turning.frame, turning.start, turning.stop)
        all_forces.append(forces.PointMoment(moment, *where))
    return all_forces


def _of_robots(load: torch.Tensor) -> torch.Tensor:
    """Return a load (3,) as it is, and loads of the robots (B, 3) as (B, 1, 3), so that B is not taken for nodes."""
    return load.unsqueeze(1) if load.dim() == 2 else load


def _refuse_no_rods(scene: Scene) -> None:
    """Refuse loads on rods where there are none."""
    moments: list[Key] = [("moment", k) for k in range(len(scene.document.moment))]
    resistive: list[Key] = [("environment", "resistive")] * (scene.document.environment.resistive is not None)
    for key in [*resistive, *moments]:
        if not len(scene.geometry.rod_edges):
            raise SceneError(scene.path, key, "acts on rods, and the robot has none")


def _on_triangles(scene: Scene) -> list[forces.Force]:
    environment, number = scene.document.environment, partial(_number, scene)
    keys = [name for name in ("drag", "pressure", "thrust") if getattr(environment, name) is not None]
    if keys and not len(scene.geometry.triangles):
        raise SceneError(scene.path, ("environment", keys[0]), "acts on triangles, and the robot has none")
    all_forces: list[forces.Force] = []
    if environment.drag is not None:
        all_forces.append(forces.Drag(number("drag", "density"), number("drag", "coefficient")))
    if environment.pressure is not None:
        all_forces.append(forces.Pressure(number("pressure")))
    if (thrust := environment.thrust) is not None:
        axis = "body" if thrust.axis is None else torch.tensor(thrust.axis, dtype=torch.float64, device="cpu")
        coefficient, refill = number("thrust", "coefficient"), number("thrust", "refill")
        all_forces.append(forces.Thrust(coefficient, thrust.smoothing, axis, refill))
    return all_forces


def _resistive(scene: Scene, table: schema.Resistive) -> forces.Force:
    number = partial(_number, scene, "resistive")
    if table.law == "linear":
        return forces.Resistive(number("tangential"), number("normal"))
    return forces.QuadraticResistive(number("tangential"), number("normal"), number("density"), length=table.length)


def _number(scene: Scene, *names: str) -> Number:
    """Return a number of [environment], or (B, 1) where it is drawn."""
    return scene.numbers.scalar(("environment", *names))
