"""The tables and keys of a scene file, what each may be, and which may differ from robot to robot.

Only what can be judged from the file alone stands here; indices and sizes are checked against the robot in `scene.py`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from torchdismech.io.schema_base import (
    MOST,
    PER_ROBOT,
    FileName,
    Index,
    Nodes,
    NotNegative,
    Positive,
    Table,
    Vector,
    exactly_one,
    file_and_function,
    nonzero,
)
from torchdismech.io.schema_contact import Contacts
from torchdismech.io.schema_controller import Controller
from torchdismech.io.schema_magnetic import Magnetic

__all__ = ["MOST_STEPS", "Document"]

Stop = Annotated[float, Field(gt=0, allow_inf_nan=True)]

MOST_STEPS = 10**12  # beyond it a float64 no longer counts time in steps
# What no run needs, and what would be as good as endless where a step cannot be solved.
MOST_LOAD_STEPS = 100_000
MOST_ITERATIONS = 100_000
MOST_SUBSTEPS = 1_000_000


class Robot(Table):
    """[robot]: where the geometry comes from."""

    file: FileName | None = Field(default=None, description="name of a DiSMech text file or of a mesh")
    nodes: list[Vector] | None = Field(default=None, min_length=2, description="list of positions [x, y, z] in m")
    rod_edges: list[Annotated[list[Index], Field(min_length=2, max_length=2)]] | None = Field(
        default=None, min_length=1, description="list of pairs of node indices, from 0"
    )
    triangles: list[Annotated[list[Index], Field(min_length=3, max_length=3)]] | None = Field(
        default=None, min_length=1, description="list of triples of node indices, from 0"
    )
    planar: bool = Field(default=False, description="true or false: keep to the x-z plane")
    joints: Literal["stiff", "pinned"] = Field(
        default="stiff", description="whether rods resist bending where they branch or meet a shell"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Robot:
        elements = [name for name in ("rod_edges", "triangles") if getattr(self, name) is not None]
        if exactly_one(self, "file", "nodes") == "nodes" and not elements:
            raise ValueError("nodes are given without rod_edges or triangles")
        if self.file is not None and elements:
            raise ValueError(f"expected either file or nodes and {elements[0]}, got file and {elements[0]}")
        if self.planar and self.triangles is not None:
            raise ValueError("planar = true is for rods; a robot with triangles moves in space")
        return self


class Box(Table):
    """A box along the axes."""

    min: Vector = Field(description="lower corner [x, y, z] in m")
    max: Vector = Field(description="upper corner [x, y, z] in m")

    @model_validator(mode="after")
    def _ordered(self) -> Box:
        if any(low > high for low, high in zip(self.min, self.max, strict=True)):
            raise ValueError(f"expected min <= max in each direction, got min = {self.min}, max = {self.max}")
        return self


class Circle(Table):
    """A round section."""

    shape: Literal["circle"]
    radius: Annotated[Positive, PER_ROBOT] = Field(description="radius [m]")


class Rectangle(Table):
    """A rectangular section."""

    shape: Literal["rectangle"]
    width: Annotated[Positive, PER_ROBOT] = Field(description="width along d2 [m]")
    height: Annotated[Positive, PER_ROBOT] = Field(description="height along d1 [m]")


class Stiffness(Table):
    """Stiffnesses in place of what section and material give."""

    EA: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="stretching stiffness [N]")
    EI1: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="first bending stiffness [N m^2]")
    EI2: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="second bending stiffness [N m^2]")
    GJ: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="twisting stiffness [N m^2]")


class Rod(Table):
    """[rod] or [[rod]]: section and material of rod edges."""

    section: Annotated[Circle | Rectangle, Field(discriminator="shape")] = Field(
        description='{shape = "circle", radius = ..} or {shape = "rectangle", width = .., height = ..}'
    )
    stiffness: Stiffness = Field(default=Stiffness(), description="{EA = .., EI1 = .., EI2 = .., GJ = ..}, any subset")
    youngs: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="Young's modulus [Pa]")
    poisson: Annotated[float, PER_ROBOT, Field(gt=-1, le=0.5)] = Field(default=0.5, description="Poisson's ratio")
    density: Annotated[Positive, PER_ROBOT] = Field(description="density [kg/m^3]")
    natural: Literal["initial", "straight"] = Field(default="initial", description="natural shape")
    contact_radius: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="radius that touches [m]")
    magnetisation: Annotated[Vector, PER_ROBOT] | None = Field(
        default=None, description="remanence [x, y, z] of the robot as built in A/m"
    )
    magnetisation_file: FileName | None = Field(
        default=None, description="name of a CSV file: a row x, y, z for each edge of the table"
    )
    nodes: Nodes | None = Field(default=None, description="node indices: the table is for the edges between them")
    box: Box | None = Field(default=None, description="{min = [..], max = [..]}: the table is for the edges inside")

    @model_validator(mode="after")
    def _complete(self) -> Rod:
        if self.youngs is None and None in (
            self.stiffness.EA,
            self.stiffness.EI1,
            self.stiffness.EI2,
            self.stiffness.GJ,
        ):
            raise ValueError("youngs is missing: Young's modulus [Pa], or all of EA, EI1, EI2, GJ in stiffness")
        if self.magnetised:
            exactly_one(self, "magnetisation", "magnetisation_file")
        if self.nodes is not None or self.box is not None:
            exactly_one(self, "nodes", "box")
        return self

    @property
    def magnetised(self) -> bool:
        """Whether its edges are magnetised."""
        return self.magnetisation is not None or self.magnetisation_file is not None


class SpringStiffness(Table):
    """Stiffnesses of bending and twisting in place of what the edges give."""

    EI1: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="first bending stiffness [N m^2]")
    EI2: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="second bending stiffness [N m^2]")
    GJ: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="twisting stiffness [N m^2]")

    @model_validator(mode="after")
    def _not_empty(self) -> SpringStiffness:
        if not self.model_fields_set:
            raise ValueError("expected at least one of EI1, EI2, GJ")
        return self


class Spring(Table):
    """[[spring]]: stiffnesses of single bend-twist springs."""

    nodes: Annotated[list[Annotated[list[Index], Field(min_length=3, max_length=3)]], Field(min_length=1)] = Field(
        description="triples of node indices: before each spring, at it, after it"
    )
    stiffness: SpringStiffness = Field(description="{EI1 = .., EI2 = .., GJ = ..}, any subset")


class ShellStiffness(Table):
    """Stiffnesses in place of what thickness and material give."""

    membrane: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="of an edge per length [N/m]")
    bending: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="of a hinge or a plate [N m]")


class Shell(Table):
    """[shell] or [[shell]]: thickness and material of triangles."""

    thickness: Annotated[Positive, PER_ROBOT] = Field(description="thickness [m]")
    youngs: Annotated[Positive, PER_ROBOT] = Field(description="Young's modulus [Pa]")
    poisson: Annotated[float, PER_ROBOT, Field(gt=-1, le=0.5)] = Field(default=0.5, description="Poisson's ratio")
    density: Annotated[Positive, PER_ROBOT] = Field(description="density [kg/m^3]")
    bending: Literal["hinge", "midedge"] = Field(default="hinge", description="bending model")
    natural: Literal["initial", "flat"] = Field(default="initial", description="natural shape")
    stiffness: ShellStiffness = Field(default=ShellStiffness(), description="{membrane = .., bending = ..}, any subset")
    nodes: Nodes | None = Field(default=None, description="node indices: the table is for the triangles between them")
    box: Box | None = Field(default=None, description="{min = [..], max = [..]}: the table is for the triangles inside")

    @model_validator(mode="before")
    @classmethod
    def _not_magnetised(cls, given: Any) -> Any:
        if isinstance(given, dict) and not given.keys().isdisjoint({"magnetisation", "magnetisation_file"}):
            raise ValueError("shells cannot be magnetised, only rods: remove magnetisation")
        return given

    @model_validator(mode="after")
    def _one_selection(self) -> Shell:
        if self.nodes is not None or self.box is not None:
            exactly_one(self, "nodes", "box")
        return self


class Mass(Table):
    """[[mass]]: extra point masses."""

    nodes: Nodes = Field(description="node indices")
    add: Annotated[Positive, PER_ROBOT] = Field(description="mass on each node [kg]")


class Clamp(Table):
    """[[clamp]]: fixed dofs."""

    nodes: Nodes | None = Field(default=None, description="node indices")
    box: Box | None = Field(default=None, description="{min = [..], max = [..]}")
    axes: str = Field(default="xyz", description='subset of "xyz"')
    twist: bool = Field(default=True, description="true or false: also fix the twist of edges between the nodes")

    @model_validator(mode="after")
    def _holds_something(self) -> Clamp:
        exactly_one(self, "nodes", "box")
        if not self.axes and not self.twist:
            raise ValueError('axes = "" and twist = false: the clamp holds nothing')
        return self

    @field_validator("axes")
    @classmethod
    def _axes(cls, axes: str) -> str:
        if not set(axes) <= set("xyz") or len(set(axes)) < len(axes):
            raise ValueError('expected a subset of "xyz"')
        return axes


class Rotation(Table):
    """A rotation about an axis."""

    axis: Vector = Field(description="direction [x, y, z]")
    center: Vector = Field(description="a point of the axis [x, y, z] in m")
    rate: Annotated[float, PER_ROBOT] = Field(description="angular velocity [rad/s]")

    @field_validator("axis")
    @classmethod
    def _direction(cls, axis: list[float]) -> list[float]:
        return nonzero(axis)


class Move(Table):
    """[[move]]: prescribed motion of clamped dofs."""

    nodes: Nodes | None = Field(default=None, description="node indices")
    velocity: Annotated[Vector, PER_ROBOT] | None = Field(default=None, description="velocity [x, y, z] in m/s")
    rotation: Rotation | None = Field(default=None, description="{axis = [..], center = [..], rate = ..}")
    file: FileName | None = Field(default=None, description="name of a CSV file: time, x y z of each node")
    edges: Nodes | None = Field(default=None, description="edge indices")
    twist_rate: Annotated[float, PER_ROBOT] | None = Field(default=None, description="rate of the twist angle [rad/s]")
    start: NotNegative = Field(default=0.0, description="time [s]")
    stop: Stop = Field(default=math.inf, description="time [s], or inf")

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
        _check_interval(self)
        return self


def _check_interval(table: Move | PointForce) -> None:
    if table.stop <= table.start:
        raise ValueError(f"expected start < stop, got start = {table.start}, stop = {table.stop}")


class Resistive(Table):
    """Resistive force theory on rods."""

    tangential: Annotated[NotNegative, PER_ROBOT] = Field(description="coefficient along the rod [Pa s; quadratic: 1]")
    normal: Annotated[NotNegative, PER_ROBOT] = Field(description="coefficient across the rod [Pa s; quadratic: 1]")
    law: Literal["linear", "quadratic"] = Field(default="linear", description="how the force depends on the velocity")
    density: Annotated[Positive, PER_ROBOT] | None = Field(default=None, description="density of the fluid [kg/m^3]")
    length: Literal["rest", "current"] = Field(default="rest", description="which length of an edge counts")

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

    density: Annotated[Positive, PER_ROBOT] = Field(description="density of the fluid [kg/m^3]")
    coefficient: Annotated[NotNegative, PER_ROBOT] = Field(description="drag coefficient")


class Thrust(Table):
    """Thrust of a bell that expels fluid."""

    coefficient: Annotated[NotNegative, PER_ROBOT] = Field(description="thrust per rate of displaced volume [N s/m^3]")
    smoothing: Positive = Field(description="flow below which the thrust fades [m^3/s]")
    axis: Vector | None = Field(default=None, description="direction [x, y, z]; by default the bell's own axis")
    refill: Annotated[float, PER_ROBOT, Field(ge=0, le=1)] = Field(default=0.0, description="share when refilling")

    @field_validator("axis")
    @classmethod
    def _direction(cls, axis: list[float] | None) -> list[float] | None:
        return None if axis is None else nonzero(axis)


class Environment(Table):
    """[environment]: what acts everywhere. Without a key, that force is absent."""

    gravity: Annotated[Vector, PER_ROBOT] | None = Field(default=None, description="acceleration [x, y, z] in m/s^2")
    fluid_density: Annotated[NotNegative, PER_ROBOT] | None = Field(
        default=None, description="buoyancy's fluid [kg/m^3]"
    )
    viscosity: Annotated[NotNegative, PER_ROBOT] | None = Field(default=None, description="viscous force [Pa s]")
    resistive: Resistive | None = Field(default=None, description="{tangential = .., normal = ..}")
    mass_damping: Annotated[NotNegative, PER_ROBOT] | None = Field(default=None, description="damping rate [1/s]")
    drag: Drag | None = Field(default=None, description="{density = .., coefficient = ..}")
    pressure: Annotated[float, PER_ROBOT] | None = Field(default=None, description="on triangles, along normals [Pa]")
    thrust: Thrust | None = Field(default=None, description="{coefficient = .., smoothing = ..}")

    @model_validator(mode="after")
    def _buoyancy_needs_gravity(self) -> Environment:
        if self.fluid_density is not None and self.gravity is None:
            raise ValueError("fluid_density gives buoyancy, which needs gravity")
        return self


class PointForce(Table):
    """[[point_force]]: a constant force on nodes."""

    nodes: Nodes = Field(description="node indices")
    force: Annotated[Vector, PER_ROBOT] = Field(description="force on each node [x, y, z] in N")
    start: float = Field(default=-math.inf, description="time [s]; without it the force acts from the beginning")
    stop: Stop = Field(default=math.inf, description="time [s], or inf")

    @model_validator(mode="after")
    def _ordered(self) -> PointForce:
        _check_interval(self)
        return self


class Actuation(Table):
    """[actuation]: natural strains over time."""

    natural_curvature: FileName | None = Field(
        default=None, description="name of a CSV file: time, kappa1 of each spring, .."
    )
    natural_twist: FileName | None = Field(default=None, description="name of a CSV file: time, twist of each spring")
    natural_hinge_angle: FileName | None = Field(
        default=None, description="name of a CSV file: time, angle of each hinge"
    )
    rest_length: FileName | None = Field(
        default=None, description="name of a CSV file: time, rest length of each rod edge"
    )
    python: FileName | None = Field(default=None, description='"file.py:function"')

    @model_validator(mode="after")
    def _not_empty(self) -> Actuation:
        if not self.model_fields_set:
            raise ValueError(f"expected at least one of {', '.join(type(self).model_fields)}")
        return self

    @field_validator("python")
    @classmethod
    def _function(cls, name: str | None) -> str | None:
        return file_and_function(name)


class Simulation(Table):
    """[simulation]: the integrator and how far to go."""

    integrator: Literal["implicit_euler", "implicit_midpoint", "newmark", "static"] = Field(
        default="implicit_euler", description="time integrator"
    )
    dt: Positive | None = Field(default=None, description="time step [s]")
    duration: Positive | None = Field(default=None, description="simulated time [s]")
    load_steps: Annotated[int, Field(ge=1, le=MOST_LOAD_STEPS)] | None = Field(
        default=None, description="number of load steps"
    )
    beta: Annotated[float, Field(gt=0, le=0.5)] | None = Field(default=None, description="Newmark's beta")
    gamma: Annotated[float, Field(gt=0, le=1)] | None = Field(default=None, description="Newmark's gamma")
    force_tolerance: Positive = Field(default=1e-8, description="absolute tolerance of the residual [N]")
    relative_tolerance: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=1e-8, description="tolerance relative to the step's force scale"
    )
    max_iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)] | None = Field(
        default=None, description="most Newton iterations of a step, by default 50; static: 200"
    )
    line_search: bool = Field(default=True, description="true or false")
    max_substeps: Annotated[int, Field(ge=0, le=MOST_SUBSTEPS)] | None = Field(
        default=None, description="most parts a failed step is divided into, by default none; 16 with contact"
    )
    solver: str = Field(default="auto", description='"auto" or the name of a linear solver')
    compile: bool | Literal["auto"] = Field(
        default="auto", description='true, false, or "auto": compile what steps evaluate where the run is long'
    )

    @field_validator("compile", mode="before")
    @classmethod
    def _whether_to_compile(cls, value: object) -> object:
        if value != "auto" and not isinstance(value, bool):
            raise ValueError(f'expected true, false or "auto", got {value!r}')
        return value

    @model_validator(mode="after")
    def _keys_of_the_integrator(self) -> Simulation:
        static, newmark = self.integrator == "static", self.integrator == "newmark"
        for name, belongs in (("load_steps", static), ("beta", newmark), ("gamma", newmark)):
            if getattr(self, name) is not None and not belongs:
                owner = "static" if name == "load_steps" else "newmark"
                raise ValueError(f'{name} belongs to integrator = "{owner}"; "{self.integrator}" does not use it')
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
            below, above = max(math.floor(count), 1) * self.dt, math.ceil(count) * self.dt
            raise ValueError(
                f"duration = {self.duration} is not a whole number of steps of dt = {self.dt}: "
                f"take {below:.6g} or {above:.6g}"
            )


class Distribution(Table):
    """How a number is drawn for each robot."""

    uniform: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    loguniform: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    normal: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    values: Annotated[list[float], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Distribution:
        kind = exactly_one(self, "uniform", "loguniform", "normal", "values")
        numbers = getattr(self, kind)
        if kind in ("uniform", "loguniform") and numbers[0] > numbers[1]:
            raise ValueError(f"{kind}: expected [low, high] with low <= high, got {numbers}")
        if kind == "normal" and numbers[1] < 0:
            raise ValueError(f"normal: expected [mean, standard deviation] with a deviation >= 0, got {numbers}")
        return self


class Batch(Table):
    """[batch]: how many robots, and what differs between them."""

    size: Annotated[int, Field(ge=1, le=MOST)] = Field(default=1, description="number of robots")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="seed of the random numbers")
    randomize: dict[str, Distribution] = Field(default={}, description="distributions by dotted name")


class Output(Table):
    """[output]: what is stored."""

    every: Annotated[int, Field(ge=1, lt=2**63)] = Field(
        default=10, description="steps from one stored frame to the next"
    )


class Document(Contacts):
    """A scene file."""

    robot: Robot = Field(description="table [robot]: file, or nodes with rod_edges and triangles")
    rod: list[Rod] = Field(default=[], description="table [rod], or several [[rod]]")
    shell: list[Shell] = Field(default=[], description="table [shell], or several [[shell]]")
    spring: list[Spring] = Field(default=[], description="tables [[spring]]")
    mass: list[Mass] = Field(default=[], description="tables [[mass]]")
    clamp: list[Clamp] = Field(default=[], description="tables [[clamp]]")
    move: list[Move] = Field(default=[], description="tables [[move]]")
    environment: Environment = Field(default=Environment(), description="table [environment]")
    point_force: list[PointForce] = Field(default=[], description="tables [[point_force]]")
    magnetic: Magnetic | None = Field(default=None, description="table [magnetic]")
    actuation: Actuation | None = Field(default=None, description="table [actuation]")
    controller: Controller | None = Field(default=None, description="table [controller]")
    simulation: Simulation = Field(description="table [simulation]")
    batch: Batch = Field(default=Batch(), description="table [batch]")
    output: Output = Field(default=Output(), description="table [output]")

    @property
    def code(self) -> dict[str, str]:
        """The functions that the scene names, "file.py:function", by dotted key."""
        tables = {
            "actuation.python": self.actuation,
            "controller.python": self.controller,
            "magnetic.python": self.magnetic,
        }
        return {key: table.python for key, table in tables.items() if table is not None and table.python is not None}

    @field_validator("rod", "shell", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _nothing_in_time_when_static(self) -> Document:
        if self.simulation.integrator != "static":
            return self
        if self.move:
            raise ValueError('[[move]] prescribes motion over time, and integrator = "static" has no time')
        if any({"start", "stop"} & load.model_fields_set for load in self.point_force):
            raise ValueError('start and stop of [[point_force]] do not apply: integrator = "static" has no time')
        if self.magnetic is not None and self.magnetic.rotating is not None:
            raise ValueError('magnetic.rotating turns over time, and integrator = "static" has no time')
        if self.controller is not None:
            raise ValueError('controller: a loop is closed over time, and integrator = "static" has no time')
        self.check_contacts_in_statics()
        return self

    @model_validator(mode="after")
    def _responses_that_can_be_solved(self) -> Document:
        constraints, integrator = self.keys_with("complementarity"), self.simulation.integrator
        if constraints and integrator != "implicit_euler":
            raise ValueError(
                f'{constraints[0]}.response: expected "penalty" or "barrier" with integrator = "{integrator}", got '
                '"complementarity", which goes with "implicit_euler" alone'
            )
        searched = self.keys_with("barrier") + constraints
        if searched and not self.simulation.line_search:
            raise ValueError(
                f"simulation.line_search: expected true, got false: {searched[0]}.response is one that needs it"
            )
        return self

    @model_validator(mode="after")
    def _radii_touch_something(self) -> Document:
        given = [k for k, rod in enumerate(self.rod) if rod.contact_radius is not None]
        if given and not self.contacts:
            table = f"rod.{given[0]}" if len(self.rod) > 1 else "rod"
            raise ValueError(
                f"{table}.contact_radius: nothing touches the robot: add [floor], [[obstacle]] or [self_contact], "
                "or remove the key"
            )
        return self

    @model_validator(mode="after")
    def _fields_act_on_something(self) -> Document:
        magnetised = [k for k, rod in enumerate(self.rod) if rod.magnetised]
        if self.magnetic is not None and not magnetised:
            raise ValueError(
                "magnetic: no rod is magnetised: give [rod] a magnetisation, or remove the table; shells cannot be "
                "magnetised"
            )
        if self.magnetic is None and magnetised:
            table = f"rod.{magnetised[0]}" if len(self.rod) > 1 else "rod"
            key = "magnetisation" if self.rod[magnetised[0]].magnetisation_file is None else "magnetisation_file"
            raise ValueError(f"{table}.{key}: there is no magnetic field: add [magnetic], or remove the key")
        return self
