"""The tables of a scene file that say what touches what: [floor], [[obstacle]], [[contact]], [self_contact]."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from torchdismech.contact.response import RELEASE
from torchdismech.io.schema.base import (
    Direction,
    FileName,
    Index,
    Key,
    Name,
    Nodes,
    NotNegative,
    Pair,
    PerRobot,
    Positive,
    Table,
    TimeTableName,
    Triple,
    Vector,
)

__all__ = [
    "Bounded",
    "Contacts",
    "Floor",
    "Law",
    "LawOfObstacles",
    "ObstacleTable",
    "PartContact",
    "SelfContact",
    "obstacle_name",
]

# keys that need friction, and what complementarity has in their place
OF_FRICTION = {
    "slip_velocity": "does not smooth friction",
    "static_friction": "has one coefficient",
    "forward_friction": "has one coefficient",
    "backward_friction": "has one coefficient",
    "rolling": "has friction without spin",
}


class Law(Table):
    """How two surfaces push each other apart and rub."""

    response: Literal["penalty", "barrier", "complementarity"] = Field(
        "penalty", description="what keeps surfaces apart"
    )
    stiffness: PerRobot[Positive] | None = Field(
        None,
        validate_default=True,
        description="of each contact [N/m]: its load, such as a node's weight, over twice the overlap it may have",
    )
    method: Literal["interior_point", "fischer_burmeister", "gauss_seidel"] | None = Field(
        None, description='how complementarity finds loads, by default "interior_point"'
    )
    friction: PerRobot[NotNegative] | None = Field(None, description="coefficient of friction")
    slip_velocity: PerRobot[Positive] = Field(1e-3, description="at which friction has its full size [m/s]")
    static_friction: PerRobot[NotNegative] | None = Field(
        None, description="coefficient of friction at rest, by default the same"
    )
    release: PerRobot[Annotated[float, Field(gt=1)]] = Field(
        RELEASE, description="in slip velocities, from where on friction at rest is that of sliding"
    )
    tolerance: PerRobot[Positive] | None = Field(
        None,
        description="gap at which contact begins [m], by default half the smallest contact radius; with "
        "penalty at most five times the overlap, else surfaces float; with "
        "complementarity how far surfaces may overlap, by default 1e-8",
    )

    @field_validator("stiffness")
    @classmethod
    def _of_a_potential(cls, stiffness: float | None, info: ValidationInfo) -> float | None:
        response = info.data.get("response")  # none if it was refused itself
        if response == "complementarity" and stiffness is not None:
            raise ValueError('response = "complementarity" has no stiffness, surfaces do not overlap: remove the key')
        if response in ("penalty", "barrier") and stiffness is None:
            raise ValueError(f"missing ({cls.model_fields['stiffness'].description})")
        return stiffness

    @field_validator("method")
    @classmethod
    def _of_constraints(cls, method: str | None, info: ValidationInfo) -> str | None:
        response = info.data.get("response")
        if response in ("penalty", "barrier") and method is not None:
            raise ValueError(f'belongs to response = "complementarity"; "{response}" does not use it: remove the key')
        return method

    @model_validator(mode="after")
    def _friction_acts(self) -> Law:
        if self.static_friction is None and "release" in self.model_fields_set:
            raise ValueError("release belongs to static_friction, which is not given")
        for name, why_not in OF_FRICTION.items():
            value = getattr(self, name, None)  # tables of self-contact have not all of the keys
            given = name in self.model_fields_set and value is not None and value is not False
            if given and self.response == "complementarity":
                raise ValueError(f'{name}: response = "complementarity" {why_not}: remove the key')
            if given and self.friction is None:
                raise ValueError(f"{name} belongs to friction, which is not given: without it surfaces are smooth")
        return self


class LawOfObstacles(Law):
    """A contact law of the robot with an obstacle: besides `Law`, friction along rods, and rods that roll."""

    forward_friction: PerRobot[NotNegative] | None = Field(
        None, description="coefficient of friction of rods that slide ahead along themselves, by default that back"
    )
    backward_friction: PerRobot[NotNegative] | None = Field(
        None, description="and of rods that slide back along themselves, by default that ahead"
    )
    rolling: bool = Field(
        False, description="whether friction feels how fast rods spin about themselves, and turns them"
    )


class Floor(LawOfObstacles):
    """[floor]: all below a height."""

    nodes: Nodes | None = Field(None, description="indices of the nodes that touch it, by default all")
    height: PerRobot[float] = Field(0.0, description="z of the floor [m]")


class SelfContact(Law):
    """[self_contact]: the robot's parts touch each other."""

    ring: Index | None = Field(None, description="parts so many edges apart, or less, never touch")
    rounding: Annotated[float, Field(ge=0, le=1)] = Field(
        0.02, description="radius, over their reach, by which edges are rounded where they are nearly parallel"
    )
    centre_line: Literal["straight", "smooth"] = Field(
        "straight", description="what rods that cross touch as: chains of straight edges, or smooth lines"
    )
    themselves: bool = Field(
        True, description="true or false: what hangs together, and has one name, touches itself, too"
    )


class PartContact(SelfContact):
    """[[contact]]: named parts of the robot touch each other."""

    between: Pair[str] = Field(description="the names of two parts that touch each other, or twice the same")
    name: Name | None = Field(None, description='what reports call it, by default both names with "-" between')


class Obstacle(LawOfObstacles):
    """[[obstacle]]: a rigid thing; how it moves."""

    not_both = (("velocity", "path"),)

    name: Name | None = Field(None, description="what reports call it")
    nodes: Nodes | None = Field(None, description="indices of the nodes that touch it, by default all")
    velocity: PerRobot[Vector] | None = Field(None, description="velocity [x, y, z] in m/s")
    path: TimeTableName | None = Field(None, description="name of a table: time, displacement x y z")

    @property
    def at_rest(self) -> bool:
        """Whether the obstacle does not move."""
        return self.velocity is None and self.path is None


class Plane(Obstacle):
    """All on the far side of a plane."""

    shape: Literal["plane"]
    point: PerRobot[Vector] = Field(description="a point of the plane [x, y, z] in m")
    normal: PerRobot[Direction] = Field(description="direction [x, y, z] to the side of the robot")


class Bounded(Obstacle):
    """A rigid thing that may get between two nodes."""

    spacing: Positive | None = Field(
        None,
        description="points that touch it are no farther apart, along edges and across triangles [m]; by default "
        "nodes alone touch",
    )


class Ball(Bounded):
    """A ball."""

    shape: Literal["sphere"]
    center: PerRobot[Vector] = Field(description="center [x, y, z] in m")
    radius: PerRobot[Positive] = Field(description="radius [m]")


class Block(Bounded):
    """A box, turned about its center."""

    shape: Literal["box"]
    center: PerRobot[Vector] = Field(description="center [x, y, z] in m")
    size: PerRobot[Triple[Positive]] = Field(description="lengths of the sides [x, y, z] in m")
    rotation: PerRobot[Vector] = Field(
        [0.0, 0.0, 0.0], description="rotation vector [x, y, z]: axis times angle in rad"
    )


class Capsule(Bounded):
    """All within a radius of a segment."""

    shape: Literal["capsule"]
    start: PerRobot[Vector] = Field(description="one end of its axis [x, y, z] in m")
    end: PerRobot[Vector] = Field(description="the other end of its axis [x, y, z] in m")
    radius: PerRobot[Positive] = Field(description="radius [m]")


class Cylinder(Capsule):
    """A cylinder with flat ends."""

    shape: Literal["cylinder"]  # type: ignore[assignment]


class Mesh(Bounded):
    """What a closed triangle mesh encloses."""

    shape: Literal["mesh"]
    file: FileName = Field(description="name of a closed triangle mesh")
    scale: float = Field(1.0, gt=0, le=1e6, description="what one unit of the file is in m: 1e-3 for millimetres")
    rotation: Vector = Field([0.0, 0.0, 0.0], description="rotation vector [x, y, z]: axis times angle in rad")
    position: Vector = Field([0.0, 0.0, 0.0], description="of the file's origin [x, y, z] in m")


ObstacleTable = Annotated[Plane | Ball | Block | Capsule | Cylinder | Mesh, Field(discriminator="shape")]


class Contacts(Table):
    """The tables of a scene about contact, a part of `Document`."""

    floor: Floor | None = Field(None, description="table [floor]")
    obstacle: list[ObstacleTable] = Field(
        [],
        description='tables [[obstacle]], each with shape = "plane", "sphere", "box", "capsule", "cylinder" or "mesh"',
    )
    contact: list[PartContact] = Field([], description="tables [[contact]] of named parts")
    self_contact: SelfContact | None = Field(None, description="table [self_contact]")

    @property
    def contacts(self) -> dict[Key, Law]:
        """All tables about contact by their keys, such as ("obstacle", 0)."""
        found: dict[Key, Law] = {} if self.floor is None else {("floor",): self.floor}
        found |= {("obstacle", k): obstacle for k, obstacle in enumerate(self.obstacle)}
        found |= {("contact", k): contact for k, contact in enumerate(self.contact)}
        return found if self.self_contact is None else found | {("self_contact",): self.self_contact}

    def keys_with(self, response: str) -> list[str]:
        """Return the dotted names of the contact tables with this response."""
        return [".".join(map(str, key)) for key, law in self.contacts.items() if law.response == response]

    def check_contacts_in_statics(self) -> None:
        """Refuse friction and moving obstacles, which need time, for the static integrator."""
        for key, law in self.contacts.items():
            name = ".".join(map(str, key))
            if law.friction:
                raise ValueError(f'{name}.friction needs velocities, and integrator = "static" has none')
            if isinstance(law, Obstacle) and not law.at_rest:
                raise ValueError(f'{name} moves over time, and integrator = "static" has no time')


def obstacle_name(k: int, obstacle: Obstacle) -> str:
    """Return what reports call the obstacle of the k-th table."""
    return f"obstacle{k}" if obstacle.name is None else obstacle.name
