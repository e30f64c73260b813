"""The tables of a scene file that say what a robot is made of: its geometry, rods, shells, springs, masses, clamps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from torchdismech.io.schema.base import (
    OF_NODES,
    Edges,
    FileName,
    FilledTable,
    Index,
    Name,
    Nodes,
    NonEmpty,
    NotNegative,
    Pair,
    PerRobot,
    Positive,
    Table,
    Triple,
    Vector,
)

__all__ = [
    "Box",
    "Circle",
    "Clamp",
    "Dissipation",
    "Inelastic",
    "Inertia",
    "Line",
    "Mass",
    "Membrane",
    "Part",
    "Robot",
    "Rod",
    "Shell",
    "Spring",
]


class Line(Table):
    """A straight rod from one point to another."""

    start: Vector = Field(description="first node [x, y, z] in m")
    end: Vector = Field(description="last node [x, y, z] in m")
    nodes: Annotated[int, Field(ge=2, le=1_000_000)] = Field(description="number of nodes, evenly spaced")

    @model_validator(mode="after")
    def _of_some_length(self) -> Line:
        if self.start == self.end:
            raise ValueError(f"expected two ends in different places, got {self.start} twice")
        return self


class Robot(Table):
    """[robot]: where the geometry comes from."""

    file: FileName | None = Field(None, description="name of a DiSMech text file or of a mesh")
    lines: NonEmpty[Line] | None = Field(
        None,
        description="list of straight rods {start = [..], end = [..], nodes = ..}, which share nodes where they meet",
    )
    nodes: list[Vector] | None = Field(None, min_length=2, description="list of positions [x, y, z] in m")
    rod_edges: NonEmpty[Pair[Index]] | None = Field(None, description="list of pairs of node indices, from 0")
    triangles: NonEmpty[Triple[Index]] | None = Field(None, description="list of triples of node indices, from 0")
    scale: float = Field(
        1.0, gt=0, le=1e6, description="what one unit of the file, of nodes or of lines is in m: 1e-3 for millimetres"
    )
    planar: bool = Field(False, description="true or false: keep to the x-z plane")
    joints: Literal["stiff", "pinned"] = Field(
        "stiff", description="whether rods resist bending where they branch or meet a shell"
    )
    curvature: Literal["half-way", "averaged"] = Field(
        "half-way", description="in which material frame the curvature of rods is measured"
    )

    mass: Literal["lumped", "consistent"] = Field(
        "lumped", description="at the nodes, or consistent with motion that is linear along edges"
    )
    clamp_rule: Literal["trapezoidal", "gregory"] = Field(
        "trapezoidal",
        description="how the energy of rods is added up at clamps with a direction: errors of second or third order",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Robot:
        elements = [name for name in ("rod_edges", "triangles") if getattr(self, name) is not None]
        if self.file is not None and self.nodes is not None:
            raise ValueError("expected either file or nodes, got both")
        if self.file is None and self.nodes is None and self.lines is None:
            raise ValueError("expected file, nodes or lines, got none of them")
        if self.nodes is not None and not elements:
            raise ValueError("nodes are given without rod_edges or triangles")
        if self.nodes is None and elements:
            raise ValueError(f"{elements[0]} join nodes, and nodes are not given")
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
    radius: PerRobot[Positive] = Field(description="radius [m]")


class Rectangle(Table):
    """A rectangular section."""

    shape: Literal["rectangle"]
    width: PerRobot[Positive] = Field(description="width along d2 [m]")
    height: PerRobot[Positive] = Field(description="height along d1 [m]")


class Stiffness(Table):
    """Stiffnesses in place of what section and material give."""

    EA: PerRobot[Positive] | None = Field(None, description="stretching stiffness [N]")
    EI1: PerRobot[Positive] | None = Field(None, description="first bending stiffness [N m^2]")
    EI2: PerRobot[Positive] | None = Field(None, description="second bending stiffness [N m^2]")
    GJ: PerRobot[Positive] | None = Field(None, description="twisting stiffness [N m^2]")


class Part(Table):
    """What [[rod]] and [[shell]] tables have in common."""

    not_both = (("nodes", "box"), ("magnetisation", "magnetisation_file"))

    magnetisation: PerRobot[Vector] | None = Field(None, description="remanence [x, y, z] of the robot as built in A/m")
    magnetisation_file: FileName | None = Field(
        None, description="name of a table: a row x, y, z for each edge, or triangle, of this table"
    )
    name: Name | None = Field(None, description="what [[contact]] calls it; several tables may have the same")
    youngs: PerRobot[Positive] | None = Field(None, description="Young's modulus [Pa]")
    poisson: PerRobot[Annotated[float, Field(gt=-1, le=0.5)]] = Field(0.5, description="Poisson's ratio")
    density: PerRobot[Positive] = Field(description="density [kg/m^3]")
    relaxation_time: PerRobot[NotNegative] = Field(0.0, description="of the material, which damps its deformation [s]")
    nodes: Nodes | None = Field(
        None, description="node indices: the table is for the edges, or triangles, between them"
    )
    box: Box | None = Field(
        None, description="{min = [..], max = [..]}: the table is for the edges, or triangles, inside"
    )

    @property
    def magnetised(self) -> bool:
        """Whether the table's elements are magnetised."""
        return self.magnetisation is not None or self.magnetisation_file is not None


class Rod(Part):
    """[rod] or [[rod]]: section and material of rod edges."""

    section: Annotated[Circle | Rectangle, Field(discriminator="shape")] = Field(
        description='{shape = "circle", radius = ..} or {shape = "rectangle", width = .., height = ..}'
    )
    stiffness: Stiffness = Field(Stiffness(), description="{EA = .., EI1 = .., EI2 = .., GJ = ..}, any subset")
    natural: Literal["initial", "straight"] = Field("initial", description="natural shape")
    directors_file: FileName | None = Field(
        None, description="name of a table: a row x, y, z for each edge of the table, its director d1"
    )
    contact_radius: PerRobot[Positive] | None = Field(None, description="radius that touches [m]")

    @model_validator(mode="after")
    def _poisson_acts(self) -> Rod:
        if self.stiffness.GJ is not None and "poisson" in self.model_fields_set:
            raise ValueError("poisson does nothing beside GJ in stiffness, which alone depends on it: leave it out")
        return self

    def problem_of_moduli(self, planar: bool, turned: bool) -> str | None:
        """Return what is wrong with youngs and stiffness: a missing key, or one without effect; None if nothing is.

        Parameters
        ----------
        planar : whether the robot keeps to the x-z plane.
        turned : whether rods have directors from files, with which bending in the plane may take EI2.
        """
        names = ["EA", "EI1", *(["EI2"] if turned or not planar else []), *([] if planar else ["GJ"])]
        every = f"all of {', '.join(names)} in stiffness" + ", as the robot is planar" * planar
        return _problem_of_youngs(self.youngs, self.stiffness, names, every)


class SpringStiffness(FilledTable):
    """Stiffnesses of bending and twisting in place of what the edges give."""

    EI1: PerRobot[Positive] | None = Field(None, description="first bending stiffness [N m^2]")
    EI2: PerRobot[Positive] | None = Field(None, description="second bending stiffness [N m^2]")
    GJ: PerRobot[Positive] | None = Field(None, description="twisting stiffness [N m^2]")


class Spring(Table):
    """[[spring]]: stiffnesses of single bend-twist springs."""

    nodes: Annotated[NonEmpty[Triple[Index]], OF_NODES] = Field(
        description="triples of node indices: before each spring, at it, after it"
    )
    stiffness: SpringStiffness = Field(description="{EI1 = .., EI2 = .., GJ = ..}, any subset")


class ShellStiffness(Table):
    """Stiffnesses in place of what thickness and material give."""

    membrane: PerRobot[Positive] | None = Field(None, description="of an edge per length [N/m]")
    bending: PerRobot[Positive] | None = Field(None, description="of a hinge or a plate [N m]")


class Shell(Part):
    """[shell] or [[shell]]: thickness and material of triangles."""

    thickness: PerRobot[Positive] = Field(description="thickness [m]")
    bending: Literal["hinge", "midedge"] = Field("midedge", description="bending model")
    membrane: Literal["springs", "continuum"] | None = Field(
        None, description='how triangles stretch; without, "continuum" with "midedge", "springs" with "hinge"'
    )
    natural: Literal["initial", "flat"] = Field("initial", description="natural shape")
    stiffness: ShellStiffness = Field(ShellStiffness(), description="{membrane = .., bending = ..}, any subset")

    def problem_of_moduli(self, stretched_otherwise: bool) -> str | None:
        """Return what is wrong with youngs and stiffness: a missing key, or one without effect; None if nothing is.

        Parameters
        ----------
        stretched_otherwise : whether [membrane] says how triangles stretch, in place of this table.
        """
        if stretched_otherwise and self.stiffness.membrane is not None:
            return "stiffness.membrane: [membrane] is there in its place: leave it out"
        if stretched_otherwise and "relaxation_time" in self.model_fields_set:
            missing = "youngs is missing: Young's modulus [Pa], times which relaxation_time damps beside [membrane]"
            return missing if self.youngs is None else None
        names = ["bending"] if stretched_otherwise else ["membrane", "bending"]
        every = (
            "bending in stiffness, as [membrane] is there"
            if stretched_otherwise
            else "both membrane and bending in stiffness"
        )
        return _problem_of_youngs(self.youngs, self.stiffness, names, every)


def _problem_of_youngs(youngs: float | None, stiffness: Table, names: Sequence[str], every: str) -> str | None:
    """Return what is wrong with Young's modulus: needed and missing, or without effect; None if nothing is.

    It is needed unless all stiffnesses `names` that would be derived from it are given.
    """
    derived = [name for name in names if getattr(stiffness, name) is None]
    if youngs is None and derived:
        return f"youngs is missing: Young's modulus [Pa], or {every}"
    if youngs is not None and not derived:
        return f"youngs does nothing beside {every}: leave it out"
    return None


class Membrane(Table):
    """[membrane]: how all shells stretch, in place of Hooke's law; of an incompressible continuum."""

    of_laws = {"neo_hookean": ["shear"], "mooney_rivlin": ["c1", "c2"]}

    law: Literal["neo_hookean", "mooney_rivlin"] = Field(description="the material")
    shear: PerRobot[Positive] | None = Field(None, description="shear modulus times thickness [N/m], of neo_hookean")
    c1: PerRobot[NotNegative] | None = Field(None, description="first modulus times thickness [N/m], of mooney_rivlin")
    c2: PerRobot[NotNegative] | None = Field(None, description="second modulus times thickness [N/m], of mooney_rivlin")


class Dissipation(FilledTable):
    """[dissipation]: what resists the rates of strains of all rods and shells, beside relaxation_time."""

    EA: PerRobot[NotNegative] | None = Field(None, description="of stretching rods [N s]")
    EI1: PerRobot[NotNegative] | None = Field(None, description="of their first bending [N m^2 s]")
    EI2: PerRobot[NotNegative] | None = Field(None, description="of their second bending [N m^2 s]")
    GJ: PerRobot[NotNegative] | None = Field(None, description="of twisting them [N m^2 s]")
    membrane: PerRobot[NotNegative] | None = Field(
        None, description="of shells' edges, per length, where they are springs [N s/m]"
    )
    bending: PerRobot[NotNegative] | None = Field(None, description="of shells' hinges [N m s]")


class Inelastic(Table):
    """[[inelastic]]: a law of a material that remembers, of all rods or of all shells."""

    of_laws = {"dahl": ["limit"], "plastic": ["limit"], "maxwell": ["relaxation_time"]}

    law: Literal["dahl", "plastic", "maxwell"] = Field(
        description='"dahl" for hysteresis, "plastic" for what stays bent, "maxwell" for relaxation'
    )
    name: str | None = Field(None, description="what reports and constants call it, by default as the law")
    EA: PerRobot[NotNegative] | None = Field(None, description="stiffness in stretching rods [N]")
    EI1: PerRobot[NotNegative] | None = Field(None, description="in their first bending [N m^2]")
    EI2: PerRobot[NotNegative] | None = Field(None, description="in their second bending [N m^2]")
    GJ: PerRobot[NotNegative] | None = Field(None, description="in twisting them [N m^2]")
    membrane: PerRobot[NotNegative] | None = Field(
        None, description="of shells' edges, per length, where they are springs [N/m]"
    )
    bending: PerRobot[NotNegative] | None = Field(None, description="of shells' hinges [N m]")
    limit: PerRobot[Positive] | None = Field(
        None, description="of dahl and plastic: the largest strain of the spring [1; rods' bending and twisting: 1/m]"
    )
    relaxation_time: PerRobot[Positive] | None = Field(None, description="of maxwell [s]")


class Mass(Table):
    """[[mass]]: extra point masses."""

    nodes: Nodes = Field(description="node indices")
    add: PerRobot[Positive] = Field(description="mass on each node [kg]")


class Inertia(Table):
    """[[inertia]]: what is hard to turn, fixed to edges of rods."""

    edges: Edges = Field(description="indices of rod edges")
    across: PerRobot[Positive] = Field(description="about axes across each edge [kg m^2]")
    along: PerRobot[Positive] | None = Field(None, description="about each edge [kg m^2], by default none")


class Clamp(Table):
    """[[clamp]]: fixed dofs."""

    one_of = ("nodes", "box")

    nodes: Nodes | None = Field(None, description="node indices")
    box: Box | None = Field(None, description="{min = [..], max = [..]}")
    axes: str | None = Field(None, description='subset of "xyz", by default all')
    twist: bool = Field(True, description="true or false: also fix the twist of edges between the nodes")
    direction: Literal["rest"] | Vector | None = Field(
        None, description='"rest" or [x, y, z]: hold rods at the nodes in this direction'
    )

    along: PerRobot[Vector] | None = Field(
        None, description="[x, y, z] of the line that nodes slide along, not with axes"
    )
    normal: PerRobot[Vector] | None = Field(
        None, description="[x, y, z] across the plane that nodes slide in, not with axes or along"
    )
