"""Scene files read and checked (`load_scene`), and made into what `rollout` needs (`Scene.build`)."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from torchdismech.builder import RobotBuilder
from torchdismech.builder.nodes import JOIN_DISTANCE, joined_nodes
from torchdismech.control import Controller
from torchdismech.errors import InputError, path_of, refuse_other_kind, refuse_trained, shown, truth, whole_number
from torchdismech.geometry.checks import check_every_node_used, check_rods
from torchdismech.geometry.curves import straight
from torchdismech.geometry.mesh_checks import check_mesh
from torchdismech.integrate import SteppingMethod
from torchdismech.io.dismech import Geometry, read_dismech
from torchdismech.io.meshes import READ_SUFFIXES, read_mesh
from torchdismech.io.scene.assemble import build_integrator, build_model
from torchdismech.io.scene.controller import build_controller
from torchdismech.io.scene.files import fingerprints, named_files, reading
from torchdismech.io.scene.indices import check_indices, refuse_unused
from torchdismech.io.scene.initial import initial_state
from torchdismech.io.scene.limits import refuse_endless, refuse_too_large
from torchdismech.io.scene.motions import build_schedule
from torchdismech.io.scene.names import put
from torchdismech.io.scene.randomize import Sampled, draw, with_draws
from torchdismech.io.scene.refusals import Key, SceneError, naming, sentences
from torchdismech.io.scene.schedule import Schedule, load_function
from torchdismech.io.schema import scene as schema
from torchdismech.io.schema.robot import Line, Robot
from torchdismech.model import Model
from torchdismech.robot.state import State
from torchdismech.solve import linear
from torchdismech.sparse import Pattern

__all__ = ["Scene", "SceneError", "Setup", "load_scene", "read_geometry"]

DEEPEST = 20  # levels of tables and lists inside each other; no key needs half of that
OF_FITS = {"data", "stages"}  # tables by which the config of a fit is known: no scene has them
DEEP = f"tables or lists are nested more than {DEEPEST} deep; no key is"


@dataclass(frozen=True)
class Setup:
    """A scene ready to run: the arguments of `rollout` that it stands for.

    Run it by `rollout(model, state, integrator, steps, schedule, every, controller=controller, strains=strains,
    reactions=reactions)`.
    """

    model: Model
    state: State
    integrator: SteppingMethod
    schedule: Schedule
    steps: int
    every: int
    controller: Controller | None = None
    strains: bool = False
    reactions: bool = False


@dataclass(frozen=True)
class Scene:
    """A scene file that passed all checks that need no model.

    Attributes
    ----------
    path, text : the file and its text.
    tables : its tables as they were read, with the overrides in place.
    document : the same tables checked, with defaults.
    fingerprints : SHA-256 of the files that the scene names, by dotted key.
    geometry : nodes, rod edges and triangles.
    draws : the numbers (B,) that are drawn for the robots, by key, in the order of [batch.randomize].
    whole : number of robots of the whole scene, also in a `part` of it.
    robots : the numbers that the robots have in the whole scene.
    overridden : dotted keys whose values were overridden.
    """

    path: Path
    text: str
    tables: dict[str, Any]
    document: schema.Document
    fingerprints: dict[str, str]
    geometry: Geometry
    draws: dict[Key, torch.Tensor]
    whole: int
    robots: range
    overridden: frozenset[str] = frozenset()

    @cached_property
    def values(self) -> Any:
        """The tables of `document` with the numbers of all robots: (B, 1) where one is drawn, (B, 3) for a vector."""
        return with_draws(self.document, self.draws)

    @property
    def randomized(self) -> dict[str, torch.Tensor]:
        """The draws (B,) by their names in [batch.randomize]."""
        return dict(zip(self.document.batch.randomize, self.draws.values(), strict=True))

    @property
    def batch(self) -> int:
        """Number of robots."""
        return self.document.batch.size

    @property
    def steps(self) -> int:
        """Number of steps; 1 for static, whose load steps are taken within that step."""
        simulation = self.document.simulation
        if simulation.integrator == "static":
            return 1
        assert simulation.dt is not None and simulation.duration is not None
        return round(simulation.duration / simulation.dt)

    def part(self, rows: slice) -> Scene:
        """Return the scene of the robots `rows` alone.

        Each robot has the constants and the linear solver that it has in the whole scene, so it moves as it does there,
        up to rounding: the order of sums in kernels depends on the number of robots.
        """
        refuse_other_kind("Scene.part: rows", rows, slice, "a slice of the robots, such as slice(0, 4)")
        size = len(range(*rows.indices(self.batch)))
        batch = self.document.batch.model_copy(update={"size": size})
        return dataclasses.replace(
            self,
            document=self.document.model_copy(update={"batch": batch}),
            draws={key: values[rows] for key, values in self.draws.items()},
            robots=self.robots[rows],
        )

    def redrawn(self, sampled: Sampled) -> Scene:
        """Return the scene with the numbers of [batch.randomize] drawn by `sampled` (see `randomize.draw`)."""
        return dataclasses.replace(self, draws=draw(self.path, self.document, self.tables, sampled))

    @property
    def files(self) -> dict[str, Path]:
        """Paths of the files that the scene names, by dotted key."""
        return {key: self.path.parent / name for key, name in named_files(self.document).items()}

    def build(
        self,
        device: str | torch.device = "cpu",
        allow_code: bool = False,
        add: Callable[[RobotBuilder], object] | None = None,
    ) -> Setup:
        """Return the model, the initial state and all else that a run of the scene needs.

        Parameters
        ----------
        allow_code : run the files that actuation.python, controller.python and magnetic.python name; if False, a scene
            that names any is refused.
        add : called with the builder, to add to the robot what scenes cannot say, such as learned terms.

        Raises
        ------
        SceneError
            Faults that only show on the model: motion of dofs that are not clamped, a solver that does not fit, ...
        """
        allow_code = truth(allow_code, "Scene.build: allow_code")
        if not (add is None or callable(add)) or isinstance(add, nn.Module):
            given = type(add).__name__ if isinstance(add, nn.Module) else shown(add)
            such = "lambda builder: builder.add_force(...)"
            raise InputError(f"Scene.build: add: expected a function of the builder, as {such}, or None, got {given}")
        for key, named in self.document.code.items():
            if not allow_code:
                problem = f"runs code from {named}: pass --allow-code to let it, in Python allow_code=True"
                raise SceneError(self.path, key, problem)
        return self._built(device, compile=True, run_code=True, add=add)

    def build_to_look_at(self, device: str | torch.device = "cpu") -> Setup:
        """Return what `build` does, of which nothing is compiled, without what the scene's Python files would add."""
        return self._built(device, compile=False, run_code=False)

    def _built(
        self,
        device: str | torch.device,
        compile: bool,
        run_code: bool,
        add: Callable[[RobotBuilder], object] | None = None,
    ) -> Setup:
        model = build_model(self, device, compile, run_code, add)
        schedule = build_schedule(self, model)
        if run_code and "actuation.python" in self.document.code:
            function = load_function(self.path, self.document.code["actuation.python"])
            schedule = dataclasses.replace(schedule, function=function)
        state = initial_state(self, model, schedule)
        if self.batch < self.whole:
            model.solvers.name = model.solvers.of(self.whole).name
        with naming(self.path, ("simulation",)):
            integrator = build_integrator(self)
        return Setup(
            model=model,
            state=state,
            integrator=integrator,
            schedule=schedule,
            steps=self.steps,
            every=self.document.output.every,
            controller=build_controller(self, model, state, schedule, run_code),
            strains=self.document.output.strains,
            reactions=self.document.output.reactions,
        )


def load_scene(
    path: str | Path, overrides: Mapping[str, Any] | None = None, steps: int | None = None, insist: bool = False
) -> Scene:
    """Read a scene file and check it.

    Parameters
    ----------
    overrides : values by dotted key that take the place of the file's, such as {"batch.size": 8}; numbers and arrays
        of NumPy and torch are lists and numbers. One of several tables of a name is named by its number, counted from
        0, as in {"mass.1.add": 0.2}; the number of a table that stands alone may be left out.
    steps : number of steps in place of simulation.duration.
    insist : accept a run that would take more than a month, or more memory than is free.

    Raises
    ------
    SceneError
        Named with file and key: what is missing, unknown, of a wrong type or impossible.
    InputError
        A fault in a file that the scene names, by line.
    """
    path, insist = path_of(path, "load_scene"), truth(insist, "load_scene: insist")
    overrides = {} if overrides is None else overrides
    refuse_other_kind("load_scene: overrides", overrides, Mapping, 'values by dotted key, such as {"batch.size": 8}')
    text, tables = _parsed(path)
    for key, value in overrides.items():
        refuse_other_kind("load_scene: overrides", key, str, 'dotted keys, such as "batch.size"')
        refuse_trained(value, f"load_scene: overrides: {key}")
        with naming(path, key):
            put(tables, key, value)
    if steps is not None:
        _set_steps(path, tables.get("simulation"), whole_number(steps, "load_scene: steps"))
    try:
        document = schema.Document.model_validate(tables)
    except ValidationError as error:
        faults = sentences(error, tables, schema.Document)
        raise _joined(path, faults) from None
    _check_solver(path, document.simulation.solver)
    prints = fingerprints(path, document)
    geometry = read_geometry(path, document.robot)
    check_indices(path, document, geometry)
    refuse_unused(path, document, geometry)
    if not insist:
        refuse_too_large(path, document, geometry)
    draws = draw(path, document, tables)
    _refuse_hidden(path, overrides, draws, steps)
    size = document.batch.size
    scene = Scene(
        path=path,
        text=text,
        tables=tables,
        document=document,
        fingerprints=prints,
        geometry=geometry,
        draws=draws,
        whole=size,
        robots=range(size),
        overridden=frozenset(overrides),
    )
    if not insist:
        refuse_endless(path, document, geometry, scene.steps)
    return scene


# ---- reading and checking ----------------------------------------------------------------------------------------


def _parsed(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except OSError as error:
        raise SceneError(path, "", f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SceneError(path, "", f"not a text file (byte {error.start} is not UTF-8); expected TOML") from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SceneError(path, "", f"not TOML: {error}") from error
    except RecursionError:
        raise SceneError(path, "", DEEP) from None
    except ValueError as error:  # Python reads no integer of more than 4300 digits
        raise SceneError(
            path, "", f"an integer has too many digits; expected numbers within 64 bits ({error})"
        ) from None
    if _depth(tables) > DEEPEST:
        raise SceneError(path, "", DEEP)
    if tables.keys() >= OF_FITS:
        raise SceneError(path, "", "is the config of a fit: expected a scene; torchdismech train takes it")
    return text, tables


def _depth(tables: dict[str, Any]) -> int:
    """Return how deep tables and lists are nested; counting ends at one level more than is allowed."""
    depth = 0
    level: list[Any] = [tables]
    while level and depth <= DEEPEST:
        depth += 1
        inside = [value for table in level for value in (table.values() if isinstance(table, dict) else table)]
        level = [value for value in inside if isinstance(value, dict | list)]
    return depth


def _refuse_hidden(path: Path, overrides: Mapping[str, Any], draws: Iterable[Key], steps: int | None) -> None:
    """Refuse overrides that would do nothing: of numbers that are drawn, and of the duration where there are steps."""
    if steps is not None and "simulation.duration" in overrides:
        raise SceneError(path, "simulation.duration", "is given, and so is the number of steps: leave one out")
    for key in (".".join(map(str, key)) for key in draws):
        for name in {key, key.replace(".0.", ".", 1)} & overrides.keys():
            problem = "is given, and [batch.randomize] draws it: leave one out (batch.randomize = {} draws nothing)"
            raise SceneError(path, name, problem)


def _set_steps(path: Path, simulation: Any, steps: int) -> None:
    """Set simulation.duration to `steps` times dt; other faults of [simulation] are left to the schema."""
    if not isinstance(simulation, dict):
        return
    if simulation.get("integrator") == "static":
        problem = '"static" takes no steps in time: set load_steps, or choose another integrator'
        raise SceneError(path, "simulation.integrator", problem)
    if steps > schema.MOST_STEPS:
        raise InputError(f"load_scene: steps: expected at most {schema.MOST_STEPS:.0e}, got {shown(steps)}")
    if isinstance(simulation.get("dt"), int | float):
        simulation["duration"] = steps * simulation["dt"]


def _check_solver(path: Path, setting: linear.Setting) -> None:
    """Refuse an unknown linear solver, and options that it does not take, by making one for a 1 x 1 matrix."""
    try:
        name, options = linear.named(setting)
        if name != "auto":
            linear.make(name, Pattern(1, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), True), **options)
    except (InputError, ImportError) as error:
        raise SceneError(path, "simulation.solver", str(error).removeprefix("solver: ")) from None


def _joined(path: Path, faults: list[tuple[Key, str]]) -> SceneError:
    """Return one error with a line for each fault, for ten of them at most."""
    errors = [SceneError(path, key, problem) for key, problem in faults[:10]]
    errors[0].args = ("\n".join(map(str, errors)),)
    return errors[0]


def read_geometry(path: Path, robot: Robot) -> Geometry:
    """Return nodes, rod edges and triangles of the [robot] of a scene."""
    edges = np.array(robot.rod_edges or [], dtype=np.int64).reshape(-1, 2)
    triangles = np.array(robot.triangles or [], dtype=np.int64).reshape(-1, 3)
    nodes = np.array(robot.nodes or [], dtype=np.float64).reshape(-1, 3)
    geometry = _scaled(Geometry(nodes, edges, triangles), robot.scale)
    if robot.file is not None:
        with reading(path, "robot.file", robot.file) as file:
            mesh = file.suffix.lower() in READ_SUFFIXES
            geometry = read_mesh(file, robot.scale) if mesh else _scaled(read_dismech(file), robot.scale)
            _check_geometry(geometry, str(file))
    elif robot.nodes is not None:
        _check_geometry(geometry, f"{path}: robot.{'rod_edges' if robot.triangles is None else 'triangles'}")
    if robot.lines is not None:
        geometry = _with_lines(path, geometry, robot.lines, robot.scale)
        _check_geometry(geometry, f"{path}: robot.lines")
    return geometry


def _with_lines(path: Path, geometry: Geometry, lines: Sequence[Line], scale: float) -> Geometry:
    """Return a geometry with straight rods, one after the other, behind it; nodes in one place are one node of both."""
    nodes, edges = geometry.nodes, [geometry.rod_edges]
    for k, line in enumerate(lines):
        points = scale * straight(line.start, line.end, line.nodes)
        nodes, numbers = joined_nodes(nodes, points, JOIN_DISTANCE, f"{path}: robot.lines.{k}")
        edges.append(np.stack([numbers[:-1], numbers[1:]], axis=1))
    return dataclasses.replace(geometry, nodes=nodes, rod_edges=np.concatenate(edges))


def _scaled(geometry: Geometry, scale: float) -> Geometry:
    return dataclasses.replace(geometry, nodes=scale * geometry.nodes)


def _check_geometry(geometry: Geometry, where: str) -> None:
    check_rods(geometry.nodes, geometry.rod_edges, where=where.replace("triangles", "rod_edges"))
    if len(geometry.triangles):
        check_mesh(geometry.nodes, geometry.triangles, where=where, allow_unused=True)
    used = np.concatenate([geometry.rod_edges.reshape(-1), geometry.triangles.reshape(-1)])
    check_every_node_used(len(geometry.nodes), used, where=where)
