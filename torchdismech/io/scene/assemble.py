"""The model and the integrator of a checked scene."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchdismech.builder import RobotBuilder
from torchdismech.integrate import BDF2, ImplicitEuler, ImplicitMidpoint, Newmark, Static, SteppingMethod
from torchdismech.io.scene.actuators import actuators
from torchdismech.io.scene.bodies import (
    add_dissipation,
    add_inelastic,
    add_rods,
    add_shells,
    selected,
    stiffen_springs,
    table_of_each,
)
from torchdismech.io.scene.contacts import add_contacts
from torchdismech.io.scene.loads import external_forces
from torchdismech.io.scene.magnetic import magnetic_forces
from torchdismech.io.scene.refusals import naming
from torchdismech.model import Model

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["build_integrator", "build_model"]

SUBSTEPS_WITH_CONTACT = 16
METHODS = {"implicit_euler": ImplicitEuler, "implicit_midpoint": ImplicitMidpoint, "newmark": Newmark}


def build_model(
    scene: Scene,
    device: str | torch.device = "cpu",
    compile: bool = True,
    run_code: bool = False,
    add: Callable[[RobotBuilder], object] | None = None,
) -> Model:
    """Return the model of a scene; constants that [batch.randomize] draws have a value for each robot.

    Parameters
    ----------
    compile : False: never compile, whatever the scene says.
    run_code : run the file that magnetic.python names; if False, the field is zero in its place.
    add : called with the builder at the end, to add what scenes cannot say, such as learned terms.
    """
    document = scene.values
    robot = document.robot
    builder = RobotBuilder(
        planar=robot.planar,
        join_distance=0.0,
        joints=robot.joints,
        curvature=robot.curvature,
        mass=robot.mass,
        clamp_rule=robot.clamp_rule,
    )
    with naming(scene.path, ("robot",)):
        builder.add_nodes(scene.geometry.nodes)  # before all else, so that they keep the file's numbers
    table_of_edges = table_of_each(scene, "rod", scene.geometry.rod_edges)
    table_of_triangles = table_of_each(scene, "shell", scene.geometry.triangles)
    add_rods(scene, builder, table_of_edges)
    add_shells(scene, builder, table_of_triangles)
    stiffen_springs(scene, builder)
    add_dissipation(scene, builder)
    add_inelastic(scene, builder)
    for k, clamp in enumerate(document.clamp):
        nodes = selected(scene, ("clamp", k), clamp.nodes, clamp.box)
        with naming(scene.path, ("clamp", k)):
            builder.clamp(**dict(clamp) | {"nodes": nodes.tolist(), "box": None})  # keys are named as arguments
    for mass in document.mass:
        builder.add_mass(mass.nodes, mass.add)
    for k, inertia in enumerate(document.inertia):
        with naming(scene.path, ("inertia", k)):
            builder.add_inertia(inertia.edges, inertia.across, inertia.along)
    for force in [*external_forces(scene), *actuators(scene)]:
        builder.add_force(force)
    for magnetic in magnetic_forces(scene, table_of_edges, table_of_triangles, run_code):
        builder.add_force(magnetic)
    add_contacts(scene, builder)
    if add is not None:
        add(builder)
    simulation = document.simulation
    with naming(scene.path, ()):
        return builder.finalize(solver=simulation.solver, compile=compile and simulation.compile, device=device)


def build_integrator(scene: Scene) -> SteppingMethod:
    """Return the integrator that [simulation] asks for."""
    simulation = scene.document.simulation
    common: dict[str, Any] = {
        "force_tolerance": simulation.force_tolerance,
        "relative_tolerance": simulation.relative_tolerance,
        "line_search": simulation.line_search,
        "chunk": None if simulation.chunk == "all" else simulation.chunk,
    }
    if simulation.max_iterations is not None:
        common["max_iterations"] = simulation.max_iterations
    if simulation.integrator == "static":
        return Static(load_steps=simulation.load_steps or 1, unstable=simulation.unstable or "leave", **common)
    common["dt"] = simulation.dt
    if simulation.integrator == "bdf2":
        return BDF2(**common)
    most = simulation.max_substeps
    if most is None:  # a step in which bodies would pass through each other often succeeds in smaller parts
        most = SUBSTEPS_WITH_CONTACT if scene.document.contacts else 0
    of_newmark = {name: value for name, value in simulation if name in ("beta", "gamma") and value is not None}
    return METHODS[simulation.integrator](**common, max_substeps=most, **of_newmark)
