"""A checked scene made into model, integrator and schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchdismech import forces
from torchdismech.builder import RobotBuilder
from torchdismech.elastic import LinearElastic, MooneyRivlin, NeoHookean
from torchdismech.elastic.natural import continuum_triangles
from torchdismech.errors import InputError
from torchdismech.integrate import BDF2, ImplicitEuler, ImplicitMidpoint, Newmark, Solver, Static
from torchdismech.io import schema, schema_robot
from torchdismech.io.actuators import actuators, driven_over_time
from torchdismech.io.contacts import add_contacts, contact_radius
from torchdismech.io.files import reading
from torchdismech.io.magnetic import magnetic_forces
from torchdismech.io.randomize import Numbers
from torchdismech.io.refusals import Key, SceneError
from torchdismech.io.schedule import Path3, Rotation, Schedule, Translation, Twisting
from torchdismech.io.schema_robot import Box
from torchdismech.io.tables import TimeTable, read_rows, read_time_table
from torchdismech.materials import Circle, Material, Number, Rectangle
from torchdismech.model import Model

if TYPE_CHECKING:
    from torchdismech.io.scene import Scene

__all__ = ["build_integrator", "build_model", "build_schedule", "table_of_each"]

AXES = "xyz"
SUBSTEPS_WITH_CONTACT = 16
# the keys of [dissipation] by the term whose rates of strain they are for, and the tables that this takes
DISSIPATING = {
    "stretch": (("EA",), "rod"),
    "bend_twist": (("EI1", "EI2", "GJ"), "rod"),
    "membrane": (("membrane",), "shell"),
    "hinge": (("bending",), "shell"),
}


def build_model(
    scene: Scene,
    device: str | torch.device = "cpu",
    compile: bool = True,
    run_code: bool = False,
    add: Callable[[RobotBuilder], object] | None = None,
) -> Model:
    """Return the model with the numbers of each robot in it.

    Parameters
    ----------
    compile : False: never, whatever the scene says.
    run_code : run the file that magnetic.python names; without, there is no field in its place.
    add : adds to the robot what no scene says, such as learned terms.
    """
    document = scene.document
    robot = document.robot
    builder = RobotBuilder(robot.planar, 0.0, robot.joints, robot.curvature, robot.mass)
    _refuse_coincident_nodes(scene)
    builder.add_nodes(scene.geometry.nodes)  # so that they keep the file's numbers
    table_of_edges = table_of_each(scene, "rod", scene.geometry.rod_edges)
    table_of_triangles = table_of_each(scene, "shell", scene.geometry.triangles)
    _add_rods(scene, builder, table_of_edges)
    _add_shells(scene, builder, table_of_triangles)
    _stiffen_springs(scene, builder)
    _add_dissipation(scene, builder)
    for k, clamp in enumerate(document.clamp):
        nodes = _selected(scene, ("clamp", k), clamp.nodes, clamp.box)
        with _naming(scene, ("clamp", k)):
            builder.clamp(
                nodes=nodes.tolist(),
                axes=clamp.axes,
                twist=clamp.twist,
                direction=clamp.direction,
                along=clamp.along,
                normal=clamp.normal,
            )
    for k, mass in enumerate(document.mass):
        builder.add_mass(mass.nodes, scene.numbers.scalar(("mass", k, "add"), mass.add))
    for force in [*_forces(scene), *actuators(scene)]:
        builder.add_force(force)
    for magnetic in magnetic_forces(scene, table_of_edges, table_of_triangles, run_code):
        builder.add_force(magnetic)
    add_contacts(scene, builder)
    if add is not None:
        add(builder)
    simulation = document.simulation
    with _naming(scene, ()):
        return builder.finalize(solver=simulation.solver, compile=compile and simulation.compile, device=device)


@contextmanager
def _naming(scene: Scene, key: Key) -> Iterator[None]:
    """Name scene and table in what a block refuses."""
    try:
        yield
    except SceneError:
        raise
    except InputError as error:
        raise SceneError(scene.path, key, str(error)) from error


def build_integrator(scene: Scene) -> Solver:
    """Return the integrator."""
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
    most = simulation.max_substeps
    if most is None:  # a step in which bodies pass through each other is well taken in parts
        most = SUBSTEPS_WITH_CONTACT if scene.document.contacts else 0
    common |= {"dt": simulation.dt, "max_substeps": most}
    if simulation.integrator == "newmark":
        given = {name: getattr(simulation, name) for name in ("beta", "gamma")}
        return Newmark(**common, **{name: value for name, value in given.items() if value is not None})
    if simulation.integrator == "bdf2":
        return BDF2(**{name: value for name, value in common.items() if name != "max_substeps"})
    return {"implicit_euler": ImplicitEuler, "implicit_midpoint": ImplicitMidpoint}[simulation.integrator](**common)


def build_schedule(scene: Scene, model: Model) -> Schedule:
    """Return what is prescribed over time, without running actuation.python."""
    actuation = scene.document.actuation or schema.Actuation.model_construct()
    springs, edges, triangles = len(model.springs), len(model.rod_edges), continuum_triangles(model.terms)
    node_motions, edge_motions = _motions(scene)
    _check_held(scene, model)
    turning = {node for motion in node_motions if isinstance(motion, Rotation) for node in motion.index}
    poses = not turning.isdisjoint(model.body.held.nodes.tolist())
    if poses:
        _refuse_split_clamps(scene, model)
    return Schedule(
        poses=poses,
        node_motions=node_motions,
        edge_motions=edge_motions,
        curvature=_table(
            scene,
            "natural_curvature",
            actuation.natural_curvature,
            {springs: f"kappa1 of {springs} springs", 2 * springs: f"kappa1 and kappa2 of {springs} springs"},
        ),
        twist=_table(scene, "natural_twist", actuation.natural_twist, {springs: f"twist of {springs} springs"}),
        hinge_angle=_table(
            scene,
            "natural_hinge_angle",
            actuation.natural_hinge_angle,
            {len(model.hinges): f"angle of {len(model.hinges)} hinges"},
        ),
        membrane_strain=_table(
            scene,
            "natural_membrane_strain",
            actuation.natural_membrane_strain,
            {3 * triangles: f"E11, E22, E12 of {triangles} triangles"},
        ),
        length=_lengths(scene, actuation.rest_length, edges),
        values=driven_over_time(scene, model),
    )


def _selected(scene: Scene, key: Key, nodes: Sequence[int] | None, box: Box | None) -> np.ndarray:
    """Return the nodes that a table is for."""
    if box is None:
        return np.array(nodes, dtype=np.int64)
    x = scene.geometry.nodes
    inside = np.flatnonzero(((x >= np.array(box.min)) & (x <= np.array(box.max))).all(axis=1))
    if not len(inside):
        low, high = x.min(axis=0).tolist(), x.max(axis=0).tolist()
        raise SceneError(scene.path, (*key, "box"), f"no node is inside; the robot spans {low} to {high}")
    return inside


# ---- rods and shells ---------------------------------------------------------------------------------------------


def _add_rods(scene: Scene, builder: RobotBuilder, table_of: np.ndarray) -> None:
    """Add the edges in the order of the file, table by table for runs of edges that share one."""
    nodes, edges = scene.geometry.nodes, scene.geometry.rod_edges
    directors, start = _directors(scene, table_of), 0
    for k, run in _runs(edges, table_of):
        used, inverse = np.unique(run, return_inverse=True)
        section, material, stiffness = _rod_constants(scene, k)
        natural, named = scene.document.rod[k].natural, scene.document.rod[k].directors_file is not None
        with _naming(scene, ("rod", k)):
            builder.add_rods(
                nodes[used],
                inverse.reshape(-1, 2),
                section,
                material,
                natural,
                stiffness,
                directors=directors[start : start + len(run)] if named else None,
                contact_radius=contact_radius(scene, k),
                name=scene.document.rod[k].name,
            )
        start += len(run)


def _directors(scene: Scene, table_of: np.ndarray) -> np.ndarray:
    """Return the directors (E, 3) that files give the edges, zero where none does."""
    found = np.zeros((len(table_of), 3))
    for k, rod in enumerate(scene.document.rod):
        if rod.directors_file is not None:
            edges, key = np.flatnonzero(table_of == k), ("rod", k, "directors_file")
            with reading(scene.path, key, rod.directors_file) as path:
                found[edges] = read_rows(path, len(edges), ("x", "y", "z"), "rod edge of the table").numpy()
    return found


def _add_shells(scene: Scene, builder: RobotBuilder, table_of: np.ndarray) -> None:
    """Add the triangles, likewise."""
    nodes = scene.geometry.nodes
    triangles = scene.geometry.triangles
    for k, run in _runs(triangles, table_of):
        used, inverse = np.unique(run, return_inverse=True)
        shell = scene.document.shell[k]
        thickness, material, stiffness = _shell_constants(scene, k)
        faces = inverse.reshape(-1, 3)
        kinds = (shell.bending, shell.natural, stiffness, shell.membrane, shell.name)
        with _naming(scene, ("shell", k)):
            builder.add_shell(nodes[used], faces, thickness, material, *kinds)
    if scene.document.membrane is not None:
        _replace_membrane(scene, builder, scene.document.membrane)


def _replace_membrane(scene: Scene, builder: RobotBuilder, table: schema_robot.Membrane) -> None:
    """Let all shells stretch as [membrane] says."""
    kinds = {shell.membrane for shell in scene.document.shell}
    if kinds != {"continuum"}:
        problem = 'stretches shells with membrane = "continuum"; ' + (
            "there are springs" if kinds else "there are none"
        )
        raise SceneError(scene.path, "membrane", problem)
    for k, shell in enumerate(scene.document.shell):
        if shell.stiffness.membrane is not None:
            raise SceneError(scene.path, ("shell", k, "stiffness", "membrane"), "[membrane] is there in its place")
    names = ("shear",) if table.law == "neo_hookean" else ("c1", "c2")
    numbers = [scene.numbers.scalar(("membrane", name), getattr(table, name)) for name in names]
    builder.replace_energy("membrane", NeoHookean(*numbers) if table.law == "neo_hookean" else MooneyRivlin(*numbers))


def _stiffen_springs(scene: Scene, builder: RobotBuilder) -> None:
    """Give single springs the stiffnesses of their [[spring]] tables."""
    edges = {frozenset(edge) for edge in scene.geometry.rod_edges.tolist()}
    for k, spring in enumerate(scene.document.spring):
        for before, at, after in spring.nodes:
            if before == after or not {frozenset((before, at)), frozenset((at, after))} <= edges:
                problem = (
                    f"expected nodes of two rod edges that meet at the one in the middle, got {[before, at, after]}"
                )
                raise SceneError(scene.path, ("spring", k, "nodes"), problem)
        given = spring.stiffness.model_dump(exclude_none=True)
        values = {name: scene.numbers.scalar(("spring", k, "stiffness", name), v) for name, v in given.items()}
        builder.set_spring_stiffness(spring.nodes, **values)


def _add_dissipation(scene: Scene, builder: RobotBuilder) -> None:
    """Let the strains of all rods and shells dissipate as [dissipation] says."""
    table = scene.document.dissipation
    given = {} if table is None else table.model_dump(exclude_none=True)
    if "membrane" in given and any(shell.membrane == "continuum" for shell in scene.document.shell):
        problem = 'is of shells that stretch as springs; with membrane = "continuum" take relaxation_time of [shell]'
        raise SceneError(scene.path, "dissipation.membrane", problem)
    if "bending" in given and any(shell.bending == "midedge" for shell in scene.document.shell):
        problem = 'is of hinges; with bending = "midedge" take relaxation_time of [shell]'
        raise SceneError(scene.path, "dissipation.bending", problem)
    for term, (names, kind) in DISSIPATING.items():
        present = [name for name in names if name in given]
        if not present:
            continue
        if not getattr(scene.document, kind):
            raise SceneError(scene.path, ("dissipation", present[0]), f"acts on a {kind}, and the robot has none")
        values = {name: scene.numbers.scalar(("dissipation", name), given.get(name, 0.0)) for name in names}
        numbers = {f"viscous_{name}": torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}
        builder.add_dissipation(term, LinearElastic(numbers))


def _runs(elements: np.ndarray, table_of: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (table, elements) for each run of elements that share a table."""
    starts = np.flatnonzero(np.diff(table_of, prepend=-1))
    for start, stop in zip(starts, [*starts, len(elements)][1:], strict=True):
        yield int(table_of[start]), elements[start:stop]


def table_of_each(scene: Scene, kind: str, elements: np.ndarray) -> np.ndarray:
    """Return the index of the [[rod]] or [[shell]] table of each edge or triangle."""
    name = {"rod": "rod edge", "shell": "triangle"}[kind]
    table_of = np.full(len(elements), -1)
    for k, table in enumerate(getattr(scene.document, kind)):
        inside: np.ndarray = np.ones(len(elements), dtype=bool)
        if table.nodes is not None or table.box is not None:
            selected = np.isin(elements, _selected(scene, (kind, k), table.nodes, table.box))
            inside = np.asarray(selected.all(axis=1))
        if not inside.any():
            problem = (
                f"no {name} has all its nodes in this table's selection" if len(elements) else f"there is no {name}"
            )
            raise SceneError(scene.path, (kind, k), problem)
        both = np.flatnonzero(inside & (table_of >= 0))
        if len(both):
            other = table_of[both[0]]
            problem = f"{name} {both[0]} belongs to {kind}.{other} already: the selections must not overlap"
            raise SceneError(scene.path, (kind, k), problem)
        table_of[inside] = k
    if (table_of < 0).any():
        missing = int(np.flatnonzero(table_of < 0)[0])
        nodes = elements[missing].tolist()
        raise SceneError(scene.path, kind, f"{name} {missing} (nodes {nodes}) belongs to no [[{kind}]] table")
    return table_of


def _refuse_coincident_nodes(scene: Scene) -> None:
    nodes = scene.geometry.nodes
    order = np.lexsort(nodes.T)
    same = np.flatnonzero((np.diff(nodes[order], axis=0) == 0).all(axis=1))
    if len(same):
        a, b = sorted(order[same[0] : same[0] + 2].tolist())
        problem = f"nodes {a} and {b} are at the same place: if they belong together they have to be one node"
        raise SceneError(scene.path, "robot", problem)


def _rod_constants(scene: Scene, k: int) -> tuple[Circle | Rectangle, Material, dict[str, Number]]:
    """Return section, material and given stiffnesses of a [[rod]] table."""
    rod = scene.document.rod[k]

    def number(nominal: float, *name: str) -> Number:
        return scene.numbers.scalar(("rod", k, *name), nominal)

    section: Circle | Rectangle
    if isinstance(rod.section, schema_robot.Circle):
        section = Circle(number(rod.section.radius, "section", "radius"))
    else:
        width, height = rod.section.width, rod.section.height
        section = Rectangle(number(width, "section", "width"), number(height, "section", "height"))
    # without youngs all stiffnesses are given, and none is derived from this 1.0
    youngs = 1.0 if rod.youngs is None else number(rod.youngs, "youngs")
    material = Material(
        youngs,
        number(rod.density, "density"),
        number(rod.poisson, "poisson"),
        number(rod.relaxation_time, "relaxation_time"),
    )
    given = rod.stiffness.model_dump(exclude_none=True)
    return section, material, {name: number(value, "stiffness", name) for name, value in given.items()}


def _shell_constants(scene: Scene, k: int) -> tuple[Number, Material, dict[str, Number]]:
    """Return thickness, material and given stiffnesses of a [[shell]] table."""
    shell = scene.document.shell[k]

    def number(nominal: float, *name: str) -> Number:
        return scene.numbers.scalar(("shell", k, *name), nominal)

    material = Material(
        number(shell.youngs, "youngs"),
        number(shell.density, "density"),
        number(shell.poisson, "poisson"),
        number(shell.relaxation_time, "relaxation_time"),
    )
    given = shell.stiffness.model_dump(exclude_none=True)
    stiffness = {name: number(value, "stiffness", name) for name, value in given.items()}
    return number(shell.thickness, "thickness"), material, stiffness


# ---- forces ------------------------------------------------------------------------------------------------------


def _forces(scene: Scene) -> list[forces.Force]:
    environment, numbers = scene.document.environment, scene.numbers
    found: list[forces.Force] = []
    if environment.gravity is not None:
        gravity = numbers.vector(("environment", "gravity"), environment.gravity)
        found.append(forces.Gravity(gravity))
        if environment.fluid_density is not None:
            density = numbers.scalar(("environment", "fluid_density"), environment.fluid_density)
            found.append(forces.Buoyancy(gravity, density))
    if environment.viscosity is not None:
        found.append(forces.Viscous(numbers.scalar(("environment", "viscosity"), environment.viscosity)))
    if environment.mass_damping is not None:
        found.append(forces.MassDamping(numbers.scalar(("environment", "mass_damping"), environment.mass_damping)))
    if environment.resistive is not None:
        found.append(_resistive(numbers, environment.resistive))
    found += _on_triangles(scene)
    for k, load in enumerate(scene.document.point_force):
        force = numbers.vector(("point_force", k, "force"), load.force)
        found.append(forces.PointForce(load.nodes, force, load.start, load.stop))
    for k, line in enumerate(scene.document.line_load):
        load_of_line = numbers.vector(("line_load", k, "load"), line.load)
        found.append(forces.LineLoad(load_of_line, line.edges, line.sides, line.start, line.stop))
    for k, turning in enumerate(scene.document.moment):
        moment = numbers.vector(("moment", k, "moment"), turning.moment)
        where = (turning.nodes, turning.edges, turning.frame, turning.start, turning.stop)
        found.append(forces.PointMoment(moment, *where))
    return found


def _on_triangles(scene: Scene) -> list[forces.Force]:
    environment, numbers = scene.document.environment, scene.numbers
    drag, thrust = environment.drag, environment.thrust
    given = [name for name in ("drag", "pressure", "thrust") if getattr(environment, name) is not None]
    if given and not len(scene.geometry.triangles):
        raise SceneError(scene.path, ("environment", given[0]), "acts on triangles, and the robot has none")
    found: list[forces.Force] = []
    if drag is not None:
        density, coefficient = (
            numbers.scalar(("environment", "drag", name), getattr(drag, name)) for name in ("density", "coefficient")
        )
        found.append(forces.Drag(density, coefficient))
    if environment.pressure is not None:
        found.append(forces.Pressure(numbers.scalar(("environment", "pressure"), environment.pressure)))
    if thrust is not None:
        coefficient, refill = (
            numbers.scalar(("environment", "thrust", name), getattr(thrust, name)) for name in ("coefficient", "refill")
        )
        axis = "body" if thrust.axis is None else torch.tensor(thrust.axis, dtype=torch.float64)
        found.append(forces.Thrust(coefficient, thrust.smoothing, axis, refill))
    return found


def _resistive(numbers: Numbers, table: schema.Resistive) -> forces.Force:
    key = ("environment", "resistive")
    tangential = numbers.scalar((*key, "tangential"), table.tangential)
    normal = numbers.scalar((*key, "normal"), table.normal)
    if table.law == "linear":
        return forces.Resistive(tangential, normal)
    assert table.density is not None
    density = numbers.scalar((*key, "density"), table.density)
    return forces.QuadraticResistive(tangential, normal, density, length=table.length)


# ---- over time ---------------------------------------------------------------------------------------------------


def _motions(scene: Scene) -> tuple[list[Translation | Rotation | Path3], list[Twisting]]:
    """Return the motions of nodes and of edges."""
    of_nodes: list[Translation | Rotation | Path3] = []
    of_edges: list[Twisting] = []
    owner: list[int] = []
    for k, move in enumerate(scene.document.move):
        if move.nodes is not None:
            motion = _node_motion(scene, k, move)
            for other, earlier in zip(owner, of_nodes, strict=True):
                if motion.overlaps(earlier):
                    problem = f"a node is moved by move.{other} at the same time: set start and stop apart"
                    raise SceneError(scene.path, ("move", k, "nodes"), problem)
            of_nodes.append(motion)
            owner.append(k)
        if move.edges is not None and move.twist_rate is not None:
            rate = scene.numbers.scalar(("move", k, "twist_rate"), move.twist_rate)
            of_edges.append(Twisting(move.edges, move.start, move.stop, rate))
    return of_nodes, of_edges


def _node_motion(scene: Scene, k: int, move: schema.Move) -> Translation | Rotation | Path3:
    assert move.nodes is not None
    key: Key = ("move", k)
    if move.velocity is not None:
        velocity = scene.numbers.vector((*key, "velocity"), move.velocity)
        return Translation(move.nodes, move.start, move.stop, velocity)
    if move.rotation is not None:
        rate = scene.numbers.scalar((*key, "rotation", "rate"), move.rotation.rate)
        axis, center = (torch.tensor(v, dtype=torch.float64) for v in (move.rotation.axis, move.rotation.center))
        return Rotation(move.nodes, move.start, move.stop, axis, center, rate)
    assert move.file is not None
    count = len(move.nodes)
    with reading(scene.path, (*key, "file"), move.file) as path:
        table = read_time_table(path, {3 * count: f"x y z of {count} nodes"})
    return Path3(move.nodes, -np.inf, np.inf, table)


def _check_held(scene: Scene, model: Model) -> None:
    """Refuse motion of dofs that no clamp holds, and motion out of a planar robot's plane."""
    free = model.free.cpu().numpy()
    n_nodes = len(scene.geometry.nodes)
    for k, move in enumerate(scene.document.move):
        axes = _moved_axes(scene, k, move)
        for axis in axes:
            loose = [i for i in move.nodes or [] if free[3 * i + axis]]
            if loose:
                problem = f"node {loose[0]} is moved in {AXES[axis]} but not clamped there: add it to a [[clamp]]"
                raise SceneError(scene.path, ("move", k, "nodes"), problem)
        loose = [j for j in move.edges or [] if free[3 * n_nodes + j]]
        if loose:
            problem = f"edge {loose[0]} is turned but its twist is not clamped: clamp both its nodes with twist = true"
            raise SceneError(scene.path, ("move", k, "edges"), problem)
        if scene.document.robot.planar and (1 in axes or move.edges):
            raise SceneError(scene.path, ("move", k), "a planar robot cannot leave the x-z plane")


def _refuse_split_clamps(scene: Scene, model: Model) -> None:
    """Refuse motion of a part of a clamp's nodes: clamps move as rigid bodies where one with a direction turns."""
    for k, move in enumerate(scene.document.move):
        for clamp in model.body.clamps:
            moved = np.isin(clamp.nodes, move.nodes or [])
            if moved.any() and not moved.all():
                problem = (
                    f"node {clamp.nodes[~moved][0]} of the same clamp stays: clamps with a direction turn as a whole"
                )
                raise SceneError(scene.path, ("move", k, "nodes"), problem)


def _moved_axes(scene: Scene, k: int, move: schema.Move) -> list[int]:
    """Return the components in which a [[move]] may move its nodes."""
    if move.velocity is not None:
        drawn = scene.numbers.vector(("move", k, "velocity"), move.velocity)
        return [axis for axis in range(3) if (drawn[..., axis] != 0).any()]
    if move.rotation is not None:
        direction = np.array(move.rotation.axis) / np.linalg.norm(move.rotation.axis)
        return [axis for axis in range(3) if abs(direction[axis]) < 1]
    if move.file is not None and scene.document.robot.planar:
        return [0, 2]
    return [0, 1, 2] if move.file is not None else []


def _table(scene: Scene, key: str, name: str | None, columns: dict[int, str]) -> TimeTable | None:
    if name is None:
        return None
    if 0 in columns:
        raise SceneError(scene.path, f"actuation.{key}", "the robot has no such elements to actuate")
    with reading(scene.path, f"actuation.{key}", name) as path:
        table = read_time_table(path, columns)
    if scene.document.simulation.integrator == "static" and len(table.times) > 1:
        problem = f'{name} has {len(table.times)} rows: integrator = "static" has no time; expected one row'
        raise SceneError(scene.path, f"actuation.{key}", problem)
    return table


def _lengths(scene: Scene, name: str | None, edges: int) -> TimeTable | None:
    table = _table(scene, "rest_length", name, {edges: f"rest length of {edges} rod edges"})
    if table is not None and not (table.values > 0).all():
        raise SceneError(scene.path, "actuation.rest_length", f"{name}: expected lengths above 0")
    return table
