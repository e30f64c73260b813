"""The tables and keys of a scene file, what each may be, and which may differ from robot to robot.

Checked here is only what the file alone tells; `io/scene/` checks indices and sizes against the robot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from torchdismech.io.schema.actuators import Chamber, Tendon
from torchdismech.io.schema.base import (
    MAX_COUNT,
    NAMES_FUNCTION,
    Direction,
    Edges,
    FilledTable,
    FunctionName,
    Nodes,
    NonEmpty,
    NotNegative,
    Pair,
    PerRobot,
    Positive,
    Stop,
    Table,
    TimeTableName,
    Vector,
    exactly_one,
    marked,
    ordered,
)
from torchdismech.io.schema.contact import Contacts
from torchdismech.io.schema.controller import Controller
from torchdismech.io.schema.initial import Initial
from torchdismech.io.schema.loads import LineLoad, Moment, PointForce
from torchdismech.io.schema.magnetic import Magnetic
from torchdismech.io.schema.robot import (
    Clamp,
    Dissipation,
    Inelastic,
    Inertia,
    Mass,
    Membrane,
    Part,
    Robot,
    Rod,
    Shell,
    Spring,
)

__all__ = ["MOST_STEPS", "Document"]

MOST_STEPS = 10**12  # beyond it a float64 no longer counts time in steps
# Limits beyond what any run needs: with larger ones, a step that cannot be solved would be tried practically forever.
MOST_LOAD_STEPS = 100_000
MOST_ITERATIONS = 100_000
MOST_SUBSTEPS = 1_000_000


class Rotation(Table):
    """A rotation about an axis."""

    axis: Direction = Field(description="direction [x, y, z]")
    center: Vector = Field(description="a point of the axis [x, y, z] in m")
    rate: PerRobot[float] = Field(description="angular velocity [rad/s]")


class Move(Table):
    """[[move]]: prescribed motion of clamped dofs."""

    nodes: Nodes | None = Field(None, description="node indices")
    velocity: PerRobot[Vector] | None = Field(None, description="velocity [x, y, z] in m/s")
    rotation: Rotation | None = Field(None, description="{axis = [..], center = [..], rate = ..}")
    file: TimeTableName | None = Field(None, description="name of a table: time, x y z of each node")
    edges: Edges | None = Field(None, description="edge indices")
    twist_rate: PerRobot[float] | None = Field(None, description="rate of the twist angle [rad/s]")
    start: NotNegative = Field(0.0, description="time [s]")
    stop: Stop = Field(math.inf, description="time [s], or inf")

    @model_validator(mode="after")
    def _complete(self) -> Move:
        if self.nodes is None and self.edges is None:
            raise ValueError("expected nodes or edges to move")
        if self.nodes is not None:
            exactly_one(self, "velocity", "rotation", "file")
        elif self.velocity is not None or self.rotation is not None or self.file is not None:
            raise ValueError("velocity, rotation and file move nodes: expected nodes")
        if (self.edges is None) != (self.twist_rate is None):
            raise ValueError("expected edges and twist_rate together")
        if self.file is not None and ("start" in self.model_fields_set or "stop" in self.model_fields_set):
            raise ValueError("a path from a file has its own times: start and stop do not apply")
        ordered(self)
        return self


class Resistive(Table):
    """Resistive force theory on rods."""

    tangential: PerRobot[NotNegative] = Field(description="coefficient along the rod [Pa s; quadratic: 1]")
    normal: PerRobot[NotNegative] = Field(description="coefficient across the rod [Pa s; quadratic: 1]")
    law: Literal["linear", "quadratic"] = Field(
        "linear", description="dependence on the velocity; quadratic: round sections, in planar robots rectangles, too"
    )
    density: PerRobot[Positive] | None = Field(None, description="density of the fluid [kg/m^3]")
    length: Literal["rest", "current"] = Field("rest", description="which length of an edge counts")

    @model_validator(mode="after")
    def _density_with_quadratic(self) -> Resistive:
        if self.law == "quadratic" and self.density is None:
            raise ValueError('law = "quadratic" needs the density of the fluid')
        if self.law == "linear" and self.density is not None:
            raise ValueError('density belongs to law = "quadratic"; the linear law does not use it')
        if self.law == "linear" and "length" in self.model_fields_set:
            raise ValueError('length belongs to law = "quadratic"; the linear law takes lengths at rest')
        return self


class Drag(Table):
    """Drag of the fluid on triangles."""

    density: PerRobot[Positive] = Field(description="density of the fluid [kg/m^3]")
    coefficient: PerRobot[NotNegative] = Field(description="drag coefficient")


class Thrust(Table):
    """Thrust of a bell that expels fluid."""

    coefficient: PerRobot[NotNegative] = Field(description="thrust per rate of displaced volume [N s/m^3]")
    smoothing: Positive = Field(description="flow below which the thrust fades [m^3/s]")
    axis: Direction | None = Field(None, description="direction [x, y, z]; by default the bell's own axis")
    refill: PerRobot[Annotated[float, Field(ge=0, le=1)]] = Field(0.0, description="share when refilling")


class Environment(Table):
    """[environment]: what acts everywhere. Without a key, that force is absent."""

    gravity: PerRobot[Vector] | None = Field(None, description="acceleration [x, y, z] in m/s^2")
    fluid_density: PerRobot[NotNegative] | None = Field(None, description="buoyancy's fluid [kg/m^3]")
    viscosity: PerRobot[NotNegative] | None = Field(None, description="viscous force [Pa s]")
    resistive: Resistive | None = Field(None, description="{tangential = .., normal = ..}")
    mass_damping: PerRobot[NotNegative] | None = Field(None, description="damping rate [1/s]")
    drag: Drag | None = Field(None, description="{density = .., coefficient = ..}")
    pressure: PerRobot[float] | None = Field(None, description="on triangles, along normals [Pa]")
    thrust: Thrust | None = Field(None, description="{coefficient = .., smoothing = ..}")

    @model_validator(mode="after")
    def _buoyancy_needs_gravity(self) -> Environment:
        if self.fluid_density is not None and self.gravity is None:
            raise ValueError("fluid_density gives buoyancy, which needs gravity")
        return self


class Actuation(FilledTable):
    """[actuation]: natural strains over time."""

    natural_curvature: TimeTableName | None = Field(
        None, description="name of a table: time, kappa1 of each spring, .."
    )
    natural_twist: TimeTableName | None = Field(None, description="name of a table: time, twist of each spring")
    natural_hinge_angle: TimeTableName | None = Field(None, description="name of a table: time, angle of each hinge")
    natural_membrane_strain: TimeTableName | None = Field(
        None, description="name of a table: time, E11, E22, E12 of each triangle"
    )
    rest_length: TimeTableName | None = Field(None, description="name of a table: time, rest length of each rod edge")
    python: FunctionName | None = Field(None, description='"file.py:function"')


class Simulation(Table):
    """[simulation]: the integrator and how far to go."""

    integrator: Literal["implicit_euler", "implicit_midpoint", "newmark", "bdf2", "static"] = Field(
        "implicit_euler", description="time integrator"
    )
    dt: Positive | None = Field(None, description="time step [s]")
    duration: Positive | None = Field(None, description="simulated time [s]")
    load_steps: Annotated[int, Field(ge=1, le=MOST_LOAD_STEPS)] | None = Field(None, description="number of load steps")
    unstable: Literal["leave", "report", "fail"] | None = Field(
        None, description="what becomes of robots on a saddle of the potential energy"
    )
    beta: Annotated[float, Field(gt=0, le=0.5)] | None = Field(None, description="Newmark's beta")
    gamma: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="Newmark's gamma")
    force_tolerance: Positive = Field(1e-12, description="absolute tolerance of the residual [N]")
    relative_tolerance: Annotated[float, Field(ge=0, lt=1)] = Field(
        1e-8, description="tolerance relative to the step's force scale"
    )
    max_iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)] | None = Field(
        None, description="most Newton iterations of a step, by default 50; static: 200"
    )
    line_search: bool = Field(True, description="true or false")
    max_substeps: Annotated[int, Field(ge=0, le=MOST_SUBSTEPS)] | None = Field(
        None, description="most parts a failed step is divided into, by default none; 16 with contact"
    )
    chunk: Annotated[int, Field(ge=1, le=MAX_COUNT)] | Literal["auto", "all"] = Field(
        "auto", description='a number of robots from 1 up that are stepped at a time, "all" or "auto": as is fastest'
    )
    solver: str | dict[str, str | int | float] = Field(
        "auto", description='"auto", the name of a linear solver, or {name = .., and its options}'
    )
    compile: bool | Literal["auto"] = Field(
        "auto", description='true, false or "auto": compile what steps evaluate where the run is long'
    )

    @model_validator(mode="after")
    def _keys_of_the_integrator(self) -> Simulation:
        static = self.integrator == "static"
        for name, owner in (
            ("load_steps", "static"),
            ("unstable", "static"),
            ("beta", "newmark"),
            ("gamma", "newmark"),
        ):
            if getattr(self, name) is not None and self.integrator != owner:
                raise ValueError(f'{name} belongs to integrator = "{owner}"; "{self.integrator}" does not use it')
        if self.integrator == "bdf2" and "max_substeps" in self.model_fields_set:
            raise ValueError('max_substeps does not apply to integrator = "bdf2": all its steps have one length')
        for name in ("dt", "duration", "max_substeps"):
            if static and name in self.model_fields_set:
                raise ValueError(f'{name} does not apply to integrator = "static": it has load_steps')
        for name in ("dt", "duration"):
            if not static and getattr(self, name) is None:
                raise ValueError(f'{name} is missing: integrator = "{self.integrator}" needs it [s]')
        if not static:
            self._check_whole_steps()
        return self

    def _check_whole_steps(self) -> None:
        assert self.dt is not None and self.duration is not None
        count = self.duration / self.dt
        if count > MOST_STEPS:
            raise ValueError(f"duration / dt = {count:.3g} steps; expected at most {MOST_STEPS:.0e}")
        if round(count) < 1 or abs(count - round(count)) > 1e-6 * count:
            near = " or ".join(f"{steps * self.dt:.6g}" for steps in (math.floor(count), math.ceil(count)) if steps)
            raise ValueError(
                f"duration = {self.duration} is not a whole number of steps of dt = {self.dt}: take {near}"
            )


class Distribution(Table):
    """How a number is drawn for each robot."""

    uniform: Pair[float] | None = None
    loguniform: Pair[Positive] | None = None
    normal: Pair[float] | None = None
    values: NonEmpty[float] | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Distribution:
        kind, numbers = self.kind, getattr(self, self.kind)
        if kind in ("uniform", "loguniform") and numbers[0] > numbers[1]:
            raise ValueError(f"{kind}: expected [low, high] with low <= high, got {numbers}")
        if kind == "normal" and numbers[1] < 0:
            raise ValueError(f"normal: expected [mean, standard deviation] with a deviation >= 0, got {numbers}")
        return self

    @property
    def kind(self) -> str:
        """The key that is given."""
        return exactly_one(self, *type(self).model_fields)


class Batch(Table):
    """[batch]: how many robots, and what differs between them."""

    size: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(1, description="number of robots")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="seed of the random numbers")
    randomize: dict[str, Distribution] = Field(
        {},
        description="by dotted name a table of one of uniform = [low, high], loguniform = [low, high], "
        "normal = [mean, deviation], values = [one for each robot]",
    )


class Output(Table):
    """[output]: what is stored."""

    every: Annotated[int, Field(ge=1, lt=2**63)] = Field(10, description="steps from one stored frame to the next")
    strains: bool = Field(False, description="true or false: store the strains of rods and shells, too")
    reactions: bool = Field(False, description="true or false: store what clamps exert on robots, too")


class Document(Contacts):
    """A scene file."""

    robot: Robot = Field(description="table [robot]: file, or nodes with rod_edges and triangles")
    rod: list[Rod] = Field([], description="table [rod], or several [[rod]]")
    shell: list[Shell] = Field([], description="table [shell], or several [[shell]]")
    spring: list[Spring] = Field([], description="tables [[spring]]")
    membrane: Membrane | None = Field(None, description="table [membrane]")
    dissipation: Dissipation | None = Field(None, description="table [dissipation]")
    inelastic: list[Inelastic] = Field([], description="tables [[inelastic]]")
    mass: list[Mass] = Field([], description="tables [[mass]]")
    inertia: list[Inertia] = Field([], description="tables [[inertia]]")
    clamp: list[Clamp] = Field([], description="tables [[clamp]]")
    move: list[Move] = Field([], description="tables [[move]]")
    initial: Initial | None = Field(None, description="table [initial]")
    environment: Environment = Field(Environment(), description="table [environment]")
    point_force: list[PointForce] = Field([], description="tables [[point_force]]")
    line_load: list[LineLoad] = Field([], description="tables [[line_load]]")
    moment: list[Moment] = Field([], description="tables [[moment]]")
    tendon: list[Tendon] = Field([], description="tables [[tendon]]")
    chamber: list[Chamber] = Field([], description="tables [[chamber]]")
    magnetic: Magnetic | None = Field(None, description="table [magnetic]")
    actuation: Actuation | None = Field(None, description="table [actuation]")
    controller: Controller | None = Field(None, description="table [controller]")
    simulation: Simulation = Field(description="table [simulation]")
    batch: Batch = Field(Batch(), description="table [batch]")
    output: Output = Field(Output(), description="table [output]")

    @property
    def code(self) -> dict[str, str]:
        """The functions that the scene names, "file.py:function", by dotted key."""
        return {".".join(map(str, key)): name for key, name in marked(self, NAMES_FUNCTION)}

    @field_validator("rod", "shell", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _moduli_act(self) -> Document:
        turned, membrane = any(rod.directors_file is not None for rod in self.rod), self.membrane is not None
        of_rods = [rod.problem_of_moduli(self.robot.planar, turned) for rod in self.rod]
        of_shells = [shell.problem_of_moduli(membrane) for shell in self.shell]
        problems = {_label("rod", k, self.rod): problem for k, problem in enumerate(of_rods)}
        problems |= {_label("shell", k, self.shell): problem for k, problem in enumerate(of_shells)}
        for table, problem in problems.items():
            if problem is not None:
                raise ValueError(f"{table}: {problem}")
        return self

    @model_validator(mode="after")
    def _nothing_in_time_when_static(self) -> Document:
        if self.simulation.integrator != "static":
            return self
        if self.move:
            raise ValueError('[[move]] prescribes motion over time, and integrator = "static" has no time')
        if self.initial is not None and self.initial.motion is not None:
            raise ValueError(f'initial.{self.initial.motion} is motion, and integrator = "static" has no time')
        for name in ("point_force", "line_load", "moment"):
            if any({"start", "stop"} & load.model_fields_set for load in getattr(self, name)):
                raise ValueError(f'start and stop of [[{name}]] do not apply: integrator = "static" has no time')
        if self.magnetic is not None and self.magnetic.rotating is not None:
            raise ValueError('magnetic.rotating turns over time, and integrator = "static" has no time')
        if self.controller is not None:
            raise ValueError('controller: a loop is closed over time, and integrator = "static" has no time')
        self.check_contacts_in_statics()
        return self

    @model_validator(mode="after")
    def _responses_that_can_be_solved(self) -> Document:
        constraints, integrator = self.keys_with("complementarity"), self.simulation.integrator
        if constraints and integrator not in ("implicit_euler", "static"):
            raise ValueError(
                f'{constraints[0]}.response: expected "penalty" or "barrier" with integrator = "{integrator}", got '
                '"complementarity", which goes with "implicit_euler" and "static" alone'
            )
        searched = self.keys_with("barrier") + constraints
        if searched and not self.simulation.line_search:
            raise ValueError(
                f"simulation.line_search: expected true, got false: {searched[0]}.response is one that needs it"
            )
        return self

    @model_validator(mode="after")
    def _reactions_are_known(self) -> Document:
        if self.output.reactions and not self.clamp:
            raise ValueError("output.reactions: nothing is held: add [[clamp]], or remove the key")
        return self

    @model_validator(mode="after")
    def _radii_touch_something(self) -> Document:
        given = [k for k, rod in enumerate(self.rod) if rod.contact_radius is not None]
        if given and not self.contacts:
            table = _label("rod", given[0], self.rod)
            raise ValueError(
                f"{table}.contact_radius: nothing touches the robot: add [floor], [[obstacle]], [[contact]] or "
                "[self_contact], or remove the key"
            )
        return self

    @model_validator(mode="after")
    def _fields_act_on_something(self) -> Document:
        kinds: dict[str, Sequence[Part]] = {"rod": self.rod, "shell": self.shell}
        magnetised = [
            (_label(name, k, tables), table)
            for name, tables in kinds.items()
            for k, table in enumerate(tables)
            if table.magnetised
        ]
        if self.magnetic is not None and not magnetised:
            raise ValueError(
                "magnetic: nothing is magnetised: give [rod] or [shell] a magnetisation, or remove the table"
            )
        if self.magnetic is None and magnetised:
            table, given = magnetised[0]
            key = "magnetisation" if given.magnetisation_file is None else "magnetisation_file"
            raise ValueError(f"{table}.{key}: there is no magnetic field: add [magnetic], or remove the key")
        return self


def _label(name: str, number: int, tables: Sequence[Table]) -> str:
    """Return what messages call a table: its name, with its number if there are several tables of this name."""
    return f"{name}.{number}" if len(tables) > 1 else name
