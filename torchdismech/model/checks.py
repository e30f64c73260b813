"""What a model refuses before a step: parts that were exchanged, states and controls of other robots, loads in vain."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from torchdismech.elastic import ElasticTerm
from torchdismech.elastic.inelastic import internal_count
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.robot.body import Body
from torchdismech.robot.plane import IN_PLANE
from torchdismech.robot.state import Control, State
from torchdismech.values import Place, refuse_unfitting

# how far a planar robot may be out of its plane, as a share of where its nodes are, and in rad: what rounding may leave
BESIDE_PLANE = {torch.float64: 1e-9, torch.float32: 1e-5}

__all__ = [
    "check_state",
    "refuse_curvature_out_of_plane",
    "refuse_force_out_of_plane",
    "refuse_leaving_plane",
    "refuse_other_parts",
    "refuse_other_values",
    "refuse_shape_out_of_plane",
    "refuse_twist_in_plane",
    "refuse_velocity_out_of_plane",
]

BENT = 1e-6  # curvature at rest out of a planar robot's plane that rounding may leave


def refuse_other_parts(terms: Collection[ElasticTerm], forces: Collection[Force], laid_out: tuple[int, int]) -> None:
    """Refuse terms and forces other than those that the matrix was laid out for; `laid_out` is their numbers."""
    bound = all(hasattr(force, "body") for force in forces)
    if (len(terms), len(forces)) != laid_out or not bound:
        raise InputError(
            "Model.forces, Model.terms: one was added, removed or replaced since the model was built; the robot's "
            "matrix is laid out for those that it was built with: build the model anew, by RobotBuilder.finalize"
        )


def check_state(state: State, body: Body, terms: Iterable[ElasticTerm], batch: int | None) -> None:
    """Refuse a state with other dofs, internal variables, dtype or device, or of another number of robots.

    `batch` is the number that the model's parameters are given for; None: any.
    """
    if state.q.shape[1] != body.n_dofs:
        raise InputError(f"State.q: this model has {body.n_dofs} dofs, got {state.q.shape[1]}")
    count, kept = internal_count(terms), None if state.internal is None else tuple(state.internal.shape)
    expected = (state.batch, count) if count else None
    if kept != expected:
        raise InputError(f"State.internal: this model's materials expect {expected}, got {kept}")
    if batch not in (None, state.batch):
        raise InputError(f"this model's parameters are for {batch} robots, got a state of {state.batch}")
    state.check_like(body.nodes.dtype, body.nodes.device)


def refuse_other_values(control: Control, places: Mapping[str, Place], batch: int) -> None:
    """Refuse values of a control for constants that the model does not have, or of shapes that do not fit them."""
    for name, value in control.values.items():
        if name not in places:
            raise InputError(f"Control.values: no constant {name!r}; there are: {', '.join(sorted(places))}")
        refuse_unfitting(f"Control.values[{name!r}]", places[name], value, batch)


def refuse_twist_in_plane(where: str, twist: Tensor, own: Tensor | None) -> None:
    """Refuse another twist at rest than a planar robot's own, as it does not twist."""
    if own is None or not torch.equal(twist.to(own), own):
        raise InputError(
            f"{where}: the robot is planar, and its rods do not twist; leave it out, or build the robot with "
            "planar=False"
        )


def refuse_curvature_out_of_plane(where: str, curvature: Tensor, lost: Tensor) -> None:
    """Refuse curvatures at rest out of a planar robot's plane, into which it does not bend.

    Parameters
    ----------
    lost : 1 where those curvatures, (.., S, 2) or (.., S), are out of the plane, else 0.
    """
    if curvature.numel() and float((curvature.detach() * lost).abs().max()) > BENT:
        raise InputError(
            f"{where}: the robot is planar, and its rods bend in the x-z plane alone, by kappa1 unless they have "
            "directors of your own; leave the other curvature as it is, 0, or build the robot with planar=False"
        )


@torch.no_grad()
def refuse_force_out_of_plane(force: Tensor, body: Body) -> None:
    """Refuse forces (B, n) along y and moments about edges, which a planar robot does not feel."""
    nodes, angles = force[:, : body.first_held].tensor_split([3 * body.n_nodes], dim=1)
    x, y, z = nodes.unflatten(1, (-1, 3)).unbind(-1)
    along_y = (x.abs() + z.abs() < IN_PLANE * y.abs()).any()
    if bool(along_y | (angles.abs() > 0).any()):
        raise InputError(
            "Control.force: the robot is planar: it keeps to the x-z plane, and a force along y or a moment about "
            "an edge does nothing; leave it out, or build the robot with planar=False"
        )


@torch.no_grad()
def refuse_velocity_out_of_plane(where: str, velocity: Tensor, body: Body) -> None:
    """Refuse velocities (.., n) of nodes along y, and of edges about themselves, which a planar robot does not follow.

    What rounding leaves of a velocity in the plane is taken.
    """
    nodes, angles = velocity[..., : body.first_held].tensor_split([3 * body.n_nodes], dim=-1)
    along_y = nodes[..., 1::3].abs().amax(-1) > IN_PLANE * nodes.abs().amax(-1)
    if bool((along_y | (angles != 0).any(-1)).any()):
        raise InputError(
            f"{where}: the robot is planar: it keeps to the x-z plane, and a velocity along y or of an edge about "
            "itself moves nothing; leave it out, or build the robot with planar=False"
        )


def refuse_shape_out_of_plane(where: str, q: Tensor, body: Body, across: Tensor) -> None:
    """Refuse places (B, n) of a planar robot in no plane along x and z, and edges turned about themselves.

    `across` are the dofs (K,) out of the plane.
    """
    plane = body.rest_q.repeat(len(q), 1)
    plane[:, 1 : 3 * body.n_nodes : 3] += q.detach()[:, 1:2] - body.nodes[0, 1]
    if _leaves(q, plane, body, across):
        raise InputError(
            f"{where}: the robot is planar: its nodes keep the y that they have at rest, all moved along y alike, and "
            "its edges are not turned about themselves; leave out what differs, or build the robot with planar=False"
        )


def refuse_leaving_plane(control: Control, q: Tensor, body: Body, across: Tensor) -> None:
    """Refuse clamps that a control moves out of the plane in which a planar robot is at q (B, n): others do not follow.

    What rounding leaves of a motion in the plane is taken. `across` are the dofs (K,) out of the plane.
    """
    target, pose = control.clamped_q, control.pose
    if target is not None and _leaves(target, q, body, across):
        raise InputError(
            "Control.clamped_q: the robot is planar: it keeps to the x-z plane, and the y of its nodes and the angles "
            "of its edges, which are all clamped, stay as the state has them; leave out what differs, or build the "
            "robot with planar=False"
        )
    if pose is not None and _turns_away(pose.detach(), q.detach(), body):
        raise InputError(
            "Control.pose: the robot is planar: it keeps to the x-z plane, so its clamps neither move along y nor turn "
            "about other axes, with quaternions (w, 0, y, 0); leave that out, or build the robot with planar=False"
        )


def _leaves(q: Tensor, plane: Tensor, body: Body, across: Tensor) -> bool:
    """Return whether places (B, n) differ from others in the dofs `across` (K,) the plane x-z."""
    at, expected = q.detach().index_select(1, across), plane.detach().index_select(1, across)
    if torch.equal(at, expected):  # in most steps
        return False
    beside = BESIDE_PLANE[q.dtype] * torch.where(across < 3 * body.n_nodes, _size(q.detach(), body), 1.0)
    return bool(((at - expected).abs() > beside).any())


def _turns_away(pose: Tensor, q: Tensor, body: Body) -> bool:
    """Return whether poses (B, C, 7) move clamps along y, or turn them about other axes, of robots at q (B, n)."""
    along_y, turned = pose[..., 1] - body.clamp_points[:, 1] - q[:, 1:2] + body.nodes[0, 1], pose[..., 4::2]
    if not bool(along_y.any() | turned.any()):  # in most steps
        return False
    limit = BESIDE_PLANE[q.dtype]
    return bool((along_y.abs() > limit * _size(q, body)).any() | (turned.abs() > limit).any())


def _size(q: Tensor, body: Body) -> Tensor:
    """Return how far nodes are from the origin at most, at q (B, n) [m]."""
    return q[:, : 3 * body.n_nodes].abs().amax()
