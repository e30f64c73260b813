"""Checks of planar robots: refuse rods, loads and stiffnesses that are out of, or without effect in, the x-z plane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact import HalfSpace, Obstacle
from torchdismech.elastic import Energy, Inelastic
from torchdismech.errors import InputError
from torchdismech.forces import Buoyancy, Force, Gravity, LineLoad, PointForce, PointMoment
from torchdismech.fused import is_own
from torchdismech.magnetics import Constant, Magnetic, Rotating, Table
from torchdismech.robot.body import Body
from torchdismech.robot.plane import IN_PLANE, SLANTED
from torchdismech.values import places_by_batch_size

__all__ = [
    "refuse_fields_out_of_plane",
    "refuse_moments_out_of_plane",
    "refuse_out_of_plane",
    "refuse_rods_out_of_plane",
    "refuse_stiffness_out_of_plane",
    "stiffnesses_in",
]

# s: times at which fields are evaluated, spread over eight decades so that periodic fields are met at different phases
TIMES = (0.0, *(10.0**k for k in range(-4, 4)), *(3.0 * 10.0**k for k in range(-4, 4)))


def refuse_rods_out_of_plane(nodes: np.ndarray, edges: np.ndarray) -> None:
    """Refuse edges (E, 2) between nodes (N, 3) of different y, as these could neither turn nor stretch as rods do.

    Rods in different planes parallel to x-z are allowed.
    """
    along = nodes[edges[:, 1]] - nodes[edges[:, 0]]
    slanted = np.abs(along[:, 1]) > SLANTED * np.linalg.norm(along, axis=1)
    if slanted.any():
        edge = int(np.flatnonzero(slanted)[0])
        first, second = edges[edge].tolist()
        raise InputError(
            f"planar: the edge between nodes {first} and {second} leaves the x-z plane, to which a planar robot keeps: "
            f"their y are {nodes[first, 1]:g} and {nodes[second, 1]:g} m; lay the robot out in x and z, up is usually "
            "z, or build it with planar=False"
        )


def refuse_out_of_plane(forces: Sequence[Force]) -> None:
    """Refuse loads, magnetisations and normals of half-spaces along y: in a planar robot they would have no effect."""
    for force in forces:
        for name, vectors in _vectors_of(force):
            largest = vectors.abs().amax(-2)
            if bool((largest[..., [0, 2]].amax(-1) < IN_PLANE * largest[..., 1]).any()):
                raise InputError(
                    f"planar: {type(force).__name__}.{name} is along y, where a planar robot does not move: it keeps "
                    f"to the x-z plane, and up is usually z; got {vectors.squeeze(-2).tolist()}"
                )


def _vectors_of(force: Force) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, vectors (.., K, 3)) for each attribute that sets the direction of a load, if it is uniform in space.

    A load has an effect if one of its K vectors has a component in the plane.
    """
    if isinstance(force, Gravity | Buoyancy):
        yield "acceleration", force.acceleration.detach().unsqueeze(-2)
    elif isinstance(force, PointForce):
        yield "force", force.force.detach().unsqueeze(-2)
    elif isinstance(force, LineLoad):
        yield "load", force.load.detach().unsqueeze(-2)
    elif isinstance(force, Obstacle) and isinstance(force.shape, HalfSpace):
        yield "shape.normal", force.shape.normal.detach().unsqueeze(-2)
    elif isinstance(force, Magnetic) and force.field.uniform:  # a gradient pulls at a magnetisation along y, too
        yield "magnetisation", force.magnetisation.detach()
        if isinstance(force.field, Constant):
            yield "field", force.field.value.detach().unsqueeze(-2)
        if isinstance(force.field, Rotating):  # each of its two vectors is checked: along y, it would do nothing
            yield "field.first", force.field.first.unsqueeze(-2)
            yield "field.second", force.field.second.unsqueeze(-2)
        if isinstance(force.field, Table):
            values = force.field.rows.detach()
            yield "field", values if values.dim() == 2 else values.transpose(0, 1)


@torch.no_grad()
def refuse_fields_out_of_plane(forces: Sequence[Force], body: Body) -> None:
    """Refuse magnetic fields that are along y at all edges at rest and all `TIMES`, as they would have no effect.

    Checked are the library's own kinds of fields, functions of time among them. A field that is not uniform is accepted
    if something is magnetised along y, at which its gradient pulls; so is a field that is zero at all these times.
    """
    middles = body.nodes[torch.as_tensor(body.rod_edges, device="cpu")].mean(1)
    for force in forces:
        if not isinstance(force, Magnetic) or not is_own(force.field):
            continue
        if not force.field.uniform and bool((force.magnetisation[..., 1] != 0).any()):
            continue
        robots = max(places_by_batch_size(force.field), default=1)
        places = middles.expand(robots, -1, -1)
        fields = [force.field(places, middles.new_full((robots,), time)).abs() for time in TIMES]
        largest = torch.stack([field.amax(1) for field in fields]).amax(0)  # (B, 3)
        if bool((largest[:, [0, 2]].amax(1) < IN_PLANE * largest[:, 1]).any()):
            raise InputError(
                f"planar: {type(force).__name__}.field ({type(force.field).__name__}) is along y wherever the robot is "
                "at rest, so it does nothing: a planar robot keeps to the x-z plane, and up is usually z; turn the "
                "field, or build the robot with planar=False"
            )


def refuse_moments_out_of_plane(forces: Sequence[Force], body: Body, directors: Tensor) -> None:
    """Refuse moments that have no component about y on any edge: they would have no effect.

    Parameters
    ----------
    directors : d1 of the framed edges at rest (A, 3), those of the rods first.
    """
    for force in forces:
        if not isinstance(force, PointMoment):
            continue
        moment = force.moment.detach().to(directors).reshape(-1, 1, 3)
        about_y = moment[..., 1] if force.frame == "world" else _about_y(moment, force, body, directors)
        if bool((about_y.abs().amax(-1) < IN_PLANE * moment.abs().amax((-2, -1))).any()):
            raise InputError(
                f"planar: {type(force).__name__}.moment has no part about y, and a planar robot turns about no other "
                f"axis: it keeps to the x-z plane; got {force.moment.tolist()} in {force.frame} axes"
            )


def _about_y(moment: Tensor, force: PointMoment, body: Body, directors: Tensor) -> Tensor:
    """Return the components about y (.., K) of a moment (.., 1, 3) given in the section axes m1, m2, t of its edges."""
    edges, _ = force.edges_and_shares(body)
    along = (body.nodes[body.rod_edges[edges, 1]] - body.nodes[body.rod_edges[edges, 0]]).to(directors)
    first = directors[edges]
    second = torch.nn.functional.normalize(torch.linalg.cross(along, first), dim=-1)
    return moment[..., 0] * first[:, 1] + moment[..., 1] * second[:, 1]


def refuse_stiffness_out_of_plane(what: str, names: Iterable[str], turned: bool) -> None:
    """Refuse stiffnesses, by their names, against deformations that rods in the x-z plane do not have.

    Parameters
    ----------
    what : text of the message before the name.
    turned : whether some rods have directors from the user, so that they may bend in the plane with EI2.
    """
    for name in names:
        if name == "GJ" or (name == "EI2" and not turned):
            does = "do not twist" if name == "GJ" else "bend with EI1 there"
            raise InputError(
                f"{what}{name}: the robot is planar, and its rods {does}; leave it out, or build the robot with "
                "planar=False"
            )


def stiffnesses_in(law: Energy | Inelastic) -> list[str]:
    """Return the names of a law's or a dissipation's constants that are not zero, without a prefix `viscous_`."""
    constants = {name.removeprefix("viscous_"): value for name, value in law.named_parameters(recurse=False)}
    return [name for name, value in constants.items() if bool((value != 0).any())]
