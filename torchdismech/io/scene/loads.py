"""External forces of a scene: gravity, the fluid around the robot, and loads on its nodes, edges and triangles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchdismech import forces
from torchdismech.io.scene.randomize import Numbers
from torchdismech.io.scene.refusals import Key, SceneError
from torchdismech.io.schema import scene as schema

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["external_forces"]


def external_forces(scene: Scene) -> list[forces.Force]:
    """Return the forces of [environment], [[point_force]], [[line_load]] and [[moment]], in this order."""
    environment, numbers = scene.document.environment, scene.numbers
    _refuse_no_rods(scene)
    all_forces: list[forces.Force] = []
    if environment.gravity is not None:
        gravity = numbers.vector(("environment", "gravity"), environment.gravity)
        all_forces.append(forces.Gravity(gravity))
        if environment.fluid_density is not None:
            density = numbers.scalar(("environment", "fluid_density"), environment.fluid_density)
            all_forces.append(forces.Buoyancy(gravity, density))
    if environment.viscosity is not None:
        all_forces.append(forces.Viscous(numbers.scalar(("environment", "viscosity"), environment.viscosity)))
    if environment.mass_damping is not None:
        all_forces.append(forces.MassDamping(numbers.scalar(("environment", "mass_damping"), environment.mass_damping)))
    if environment.resistive is not None:
        all_forces.append(_resistive(numbers, environment.resistive))
    all_forces += _on_triangles(scene)
    for k, load in enumerate(scene.document.point_force):
        force = _of_robots(numbers.vector(("point_force", k, "force"), load.force))
        all_forces.append(forces.PointForce(load.nodes, force, load.start, load.stop))
    for k, line in enumerate(scene.document.line_load):
        load_of_line = _of_robots(numbers.vector(("line_load", k, "load"), line.load))
        all_forces.append(forces.LineLoad(load_of_line, line.edges, line.sides, line.start, line.stop))
    for k, turning in enumerate(scene.document.moment):
        moment = _of_robots(numbers.vector(("moment", k, "moment"), turning.moment))
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
    environment, numbers = scene.document.environment, scene.numbers
    drag, thrust = environment.drag, environment.thrust
    keys = [name for name in ("drag", "pressure", "thrust") if getattr(environment, name) is not None]
    if keys and not len(scene.geometry.triangles):
        raise SceneError(scene.path, ("environment", keys[0]), "acts on triangles, and the robot has none")
    all_forces: list[forces.Force] = []
    if drag is not None:
        density, coefficient = (
            numbers.scalar(("environment", "drag", name), getattr(drag, name)) for name in ("density", "coefficient")
        )
        all_forces.append(forces.Drag(density, coefficient))
    if environment.pressure is not None:
        all_forces.append(forces.Pressure(numbers.scalar(("environment", "pressure"), environment.pressure)))
    if thrust is not None:
        coefficient, refill = (
            numbers.scalar(("environment", "thrust", name), getattr(thrust, name)) for name in ("coefficient", "refill")
        )
        axis = "body" if thrust.axis is None else torch.tensor(thrust.axis, dtype=torch.float64, device="cpu")
        all_forces.append(forces.Thrust(coefficient, thrust.smoothing, axis, refill))
    return all_forces


def _resistive(numbers: Numbers, table: schema.Resistive) -> forces.Force:
    key = ("environment", "resistive")
    tangential = numbers.scalar((*key, "tangential"), table.tangential)
    normal = numbers.scalar((*key, "normal"), table.normal)
    if table.law == "linear":
        return forces.Resistive(tangential, normal)
    assert table.density is not None
    density = numbers.scalar((*key, "density"), table.density)
    return forces.QuadraticResistive(tangential, normal, density, length=table.length)
