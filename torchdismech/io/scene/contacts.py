"""The floor, the obstacles and the contacts between parts of a checked scene."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdismech.builder import RobotBuilder
from torchdismech.contact import (
    Barrier,
    Box,
    Capsule,
    Complementarity,
    Cylinder,
    Friction,
    HalfSpace,
    Obstacle,
    Path,
    Penalty,
    SelfContact,
    Sphere,
)
from torchdismech.contact.obstacles.mesh import Mesh
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.response import Response
from torchdismech.io.scene.files import reading, table_over_time
from torchdismech.io.scene.refusals import Key, SceneError, naming
from torchdismech.io.schema import contact as schema
from torchdismech.io.schema.robot import Circle
from torchdismech.model import Model
from torchdismech.robot.materials import Number
from torchdismech.values import tensor_of

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["add_contacts", "refuse_clamped_overlap"]

POTENTIALS: dict[str, type[Penalty] | type[Barrier]] = {"penalty": Penalty, "barrier": Barrier}
ROUNDING = 1e-12  # of components of unit vectors
TOLERANCE = 0.5  # default tolerance of penalties and barriers, over the smallest contact radius
# [s] end of the path of an obstacle with a constant velocity: no run gets there, and a power of two does not round
FOREVER = 2.0**100


def add_contacts(scene: Scene, builder: RobotBuilder) -> None:
    """Add the contacts of a scene to the robot: with the floor, with obstacles, and between its own parts."""
    for key, table in scene.values.contacts.items():
        with naming(scene.path, key):
            builder.add_contact(_contact(scene, key, table))


def _contact(scene: Scene, key: Key, table: schema.Law) -> Obstacle | SelfContact:
    response, friction = _law(scene, table)
    if isinstance(table, schema.SelfContact):
        between, name = (table.between, table.name) if isinstance(table, schema.PartContact) else (None, None)
        return SelfContact(
            response,
            friction,
            ring=table.ring,
            rounding=table.rounding,
            between=between,
            themselves=table.themselves,
            name=name,
            centre_line=table.centre_line,
        )
    if isinstance(table, schema.Floor):
        up = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64, device="cpu")
        return Obstacle(
            HalfSpace(table.height * up, up), response, friction, name="floor", nodes=table.nodes, rolling=table.rolling
        )
    assert isinstance(table, schema.Obstacle)
    return Obstacle(
        _shape(scene, key, table),
        response,
        friction,
        path=_path(scene, key, table),
        name=schema.obstacle_name(int(key[-1]), table),
        nodes=table.nodes,
        spacing=table.spacing if isinstance(table, schema.Bounded) else None,
        rolling=table.rolling,
    )


def _law(scene: Scene, table: Any) -> tuple[Response, Friction | None]:
    """Return the contact response of a table, and its friction, None for smooth surfaces."""
    friction = 0.0 if table.friction is None else table.friction
    more = {} if table.static_friction is None else {"static": table.static_friction, "release": table.release}
    if isinstance(table, schema.LawOfObstacles):
        along = {"forward_coefficient": table.forward_friction, "backward_coefficient": table.backward_friction}
        more |= {name: value for name, value in along.items() if value is not None}
    smooth = not isinstance(friction, Tensor) and friction == 0 and not more
    if table.response == "complementarity":
        settings = {"tolerance": table.tolerance, "method": table.method}
        response = Complementarity(**{name: value for name, value in settings.items() if value is not None})
        return response, None if smooth else Friction(friction)
    begin = TOLERANCE * _smallest_radius(scene) if table.tolerance is None else table.tolerance
    potential = POTENTIALS[table.response](table.stiffness, begin)
    return potential, None if smooth else Friction(friction, table.slip_velocity, **more)


def _smallest_radius(scene: Scene) -> Number:
    """Return the smallest contact radius of rods and shells [m], a number, or (B, 1) where sizes are drawn."""
    radii = []
    for rod in scene.values.rod:
        if rod.contact_radius is not None:
            radii.append(rod.contact_radius)
        elif isinstance(rod.section, Circle):
            radii.append(rod.section.radius)
        else:
            radii += [0.5 * rod.section.width, 0.5 * rod.section.height]
    radii += [0.5 * shell.thickness for shell in scene.values.shell]
    smallest = radii[0]
    for radius in radii[1:]:
        smallest = torch.minimum(*(tensor_of(r, torch.float64) for r in (smallest, radius)))
    return smallest


def _shape(scene: Scene, key: Key, table: schema.Obstacle) -> Shape:
    if isinstance(table, schema.Plane):
        return HalfSpace(table.point, table.normal)
    if isinstance(table, schema.Ball):
        return Sphere(table.center, table.radius)
    if isinstance(table, schema.Block):
        return Box(table.center, table.size, table.rotation)
    if isinstance(table, schema.Cylinder):
        return Cylinder(table.start, table.end, table.radius)
    if isinstance(table, schema.Capsule):
        return Capsule(table.start, table.end, table.radius)
    assert isinstance(table, schema.Mesh)
    with reading(scene.path, (*key, "file"), table.file) as path:
        return Mesh.from_file(path, table.scale, table.rotation, table.position)


def _path(scene: Scene, key: Key, table: schema.Obstacle) -> Path | None:
    if table.velocity is not None:
        return Path.uniform(table.velocity, FOREVER)
    if table.path is None:
        return None
    rows = table_over_time(scene, (*key, "path"), table.path, {3: "displacement x y z"})
    if len(rows.times) < 2:
        raise SceneError(scene.path, (*key, "path"), f"{table.path}: expected two rows or more, got 1")
    return Path(rows.times, rows.values)


# ---- at the start ------------------------------------------------------------------------------------------------


def refuse_clamped_overlap(scene: Scene, model: Model, x: Tensor) -> None:
    """Refuse initial positions x (B, N, 3) with clamped nodes in obstacles by complementarity, which cannot push them.

    Obstacles that Python has added, which follow the scene's, are not looked at.
    """
    keys = [key for key, table in scene.document.contacts.items() if not isinstance(table, schema.SelfContact)]
    for key, obstacle in zip(keys, model.obstacles, strict=False):
        if obstacle.constrained:
            gap, held = _at_the_start(model, obstacle, x)
            refused = held & (gap < -obstacle.law.response.tolerance)
            if bool(refused.any()):
                robot, point = divmod(int(gap.where(refused, torch.inf).argmin()), gap.shape[1])
                problem = (
                    f"clamped {obstacle.points.point_name(point)} of robot {robot} starts at a gap of "
                    f'{gap[robot, point]:.6g} m; response = "complementarity" expects the gaps of clamped nodes, which '
                    "it cannot push out, above 0 at the start"
                )
                raise SceneError(scene.path, key, problem)


def _at_the_start(model: Model, obstacle: Obstacle, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gaps (B, P) of an obstacle's contact points [m], and whether (B, P) clamps hold them along the normal.

    Points between nodes count as held where all their nodes are fixed in all directions.
    """
    body, points = model.body, obstacle.points
    distance, normal, _ = obstacle.shape.distance_and_derivatives(
        obstacle.relative_points(body.q_of(x), x.new_zeros(len(x)))
    )

    def held_along(along: Tensor) -> Tensor:
        moves = model.unknowns.with_held(body.on_nodes(along.expand_as(x)), 0.0)[:, : 3 * body.n_nodes]
        return (moves.unflatten(1, (-1, 3)).abs() <= ROUNDING).all(2)

    held_fully = torch.stack([held_along(axis) for axis in torch.eye(3, dtype=x.dtype, device=x.device)]).all(0)
    between = (held_fully[:, points.nodes] | (points.weights == 0)).all(2)[:, body.n_nodes :]
    held = torch.cat([held_along(normal[:, : body.n_nodes]), between], dim=1)
    return obstacle.clearance(distance), held
