"""States to begin with: at rest, in a given posture, or moving; and the trial state at which users' code is tried."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.contact.initial_overlap import closed_gap
from torchdismech.contact.model import ContactModel
from torchdismech.errors import InputError, refuse_other_dtype, whole_number
from torchdismech.geometry.checks import Indices, checked_indices
from torchdismech.geometry.frames import signed_angle, unit
from torchdismech.geometry.surface import edge_normals
from torchdismech.model.differences import trial_numbers
from torchdismech.robot.body import Body
from torchdismech.robot.kinematics import Frames
from torchdismech.robot.state import State
from torchdismech.values import numbers

__all__ = [
    "as_tensor",
    "initial_motion",
    "placed_state",
    "posture",
    "refuse_closed_gaps",
    "rest_state",
    "rigid_velocity",
    "trial_state",
]

ROUNDINGS = 8.0  # a node counts as on an axis if it is off by at most so many units in the last place


def rest_state(body: Body, frames: Frames, batch: int) -> State:
    """Return robots at rest in the rest shape, with zeros for the acceleration, which is not known yet."""
    refuse_other_dtype("Model: dtype", body.nodes.dtype)
    q, director = body.rest_q.repeat(batch, 1), body.directors.repeat(batch, 1, 1)
    tangent = frames.tangents(q)
    return State(
        q=q,
        velocity=torch.zeros_like(q),
        acceleration=torch.zeros_like(q),
        director=director,
        tangent=tangent,
        reference_twist=frames.reference_twist(tangent, director),
        time=q.new_zeros(batch),
        n_held=body.n_held,
    )


def as_tensor(name: str, given: object, like: Tensor) -> Tensor:
    """Return a caller's tensor of floats as it is, lists and NumPy arrays with the dtype and device of `like`."""
    if isinstance(given, Tensor) and torch._C._functorch.is_batchedtensor(given):
        raise RuntimeError(
            f"{name}: states and steps cannot be transformed by torch.func.vmap: many robots at once are a batch, "
            "(B, n); for derivatives take reverse mode, torch.autograd.grad or backward()"
        )
    return numbers(given, name) if isinstance(given, Tensor) else numbers(given, name).to(like)


def placed_state(body: Body, frames: Frames, q: Tensor | None, velocity: Tensor) -> State:
    """Return robots at q (B, n), by default at rest, with a velocity (B, n); directors are transported to q.

    Edges of length zero are refused.
    """
    state = rest_state(body, frames, len(velocity)).replace(velocity=velocity)
    if q is None:
        return state
    _refuse_collapsed("initial_state: q", body, q[:, : 3 * body.n_nodes].unflatten(1, (-1, 3)))
    return frames.moved(state, q)


def _refuse_collapsed(where: str, body: Body, positions: Tensor) -> None:
    """Refuse edges of length zero at positions (B, N, 3), as they have no direction."""
    links = torch.as_tensor(body.links, device=positions.device)
    same = (positions[:, links[:, 0]] == positions[:, links[:, 1]]).all(-1)
    if bool(same.any()):
        robot, link = same.nonzero()[0].tolist()
        start, end = links[link].tolist()
        raise InputError(f"{where}: nodes {start} and {end} of robot {robot} are in one place, and an edge joins them")


def posture(body: Body, frames: Frames, positions: Tensor) -> Tensor:
    """Return the q (B, n) of robots whose nodes are at positions (B, N, 3) [m].

    The angles of rods are zero, against frames that are transported from the rest shape. Mid-edge normals are the means
    of the triangles' normals.
    """
    if positions.dim() != 3 or positions.shape[1:] != (body.n_nodes, 3):
        raise InputError(f"posture: positions have to be (B, {body.n_nodes}, 3), got {tuple(positions.shape)}")
    if not bool(torch.isfinite(positions).all()):
        raise InputError("posture: positions hold numbers that are not finite")
    _refuse_collapsed("posture: positions", body, positions)
    q = body.q_of(positions)
    if not len(body.normal_edges):
        return q
    state = frames.moved(rest_state(body, frames, len(q)), q)
    first = len(body.rod_edges) + len(body.joint_edges)
    carried = slice(first, first + len(body.normal_edges))
    tangent = state.tangent[:, carried]
    number = {edge: k for k, edge in enumerate(map(tuple, body.surface.edges.tolist()))}
    index = torch.tensor([number[edge] for edge in map(tuple, body.normal_edges.tolist())], device=q.device)
    normal = edge_normals(body.surface, positions)[:, index]
    across = unit(normal - tangent * (normal * tangent).sum(-1, keepdim=True))
    angles = q.new_zeros(len(q), body.n_angles)
    angles[:, carried] = signed_angle(state.director[:, carried], across, tangent)
    return body.q_of(positions, angles)


def rigid_velocity(
    body: Body,
    state: State,
    velocity: Tensor | Sequence[float],
    angular_velocity: Tensor | Sequence[float],
    center: Tensor | Sequence[float] | None,
    nodes: Indices | None,
) -> Tensor:
    """Return the velocity (B, n) of a state whose nodes, or some of them, move as a rigid body.

    Frames of edges between these nodes turn along, so that nothing is strained. Other nodes and edges keep the velocity
    that they have in the state, and so do held tangents and their angles.

    Parameters
    ----------
    velocity, angular_velocity : (3,) or (B, 3) [m/s, rad/s], of the centre and about it.
    center : (3,) or (B, 3) [m]; None: the centre of mass of these nodes.
    nodes : which nodes move, by indices or a bool mask (N,); None: all.

    Raises
    ------
    InputError
        A vector has another shape; the angular velocity moves no node and turns no edge.
    """
    moving = torch.full((body.n_nodes,), nodes is None, device="cpu")
    if nodes is not None:
        moving[checked_indices(nodes, body.n_nodes, "thrown: nodes")] = True
    x, spin = state.positions, _vectors("angular_velocity", angular_velocity, state)
    if center is not None:
        middle = _vectors("center", center, state)
    else:
        mass = (body.node_mass() * moving.to(x)).expand(state.batch, -1).unsqueeze(-1)
        middle = (mass * x).sum(1) / mass.sum(1)
    arm = x - middle.unsqueeze(1)
    straight = _vectors("velocity", velocity, state).unsqueeze(1)
    around = torch.linalg.cross(spin.unsqueeze(1).expand_as(arm), arm)
    of_nodes = torch.where(moving.to(x.device).unsqueeze(-1), straight + around, state.node_velocities)
    count = len(body.framed_edges)
    ends = moving[torch.as_tensor(body.framed_edges, device="cpu")].all(1).to(x.device)
    turning = (spin.unsqueeze(1) * state.tangent[:, :count]).sum(-1)
    _refuse_no_turn(spin, around[:, moving], turning[:, ends], float(x.abs().max()))
    first = 3 * body.n_nodes
    of_angles = torch.where(ends, turning, state.velocity[:, first : first + count])
    return torch.cat([of_nodes.flatten(1), of_angles, state.velocity[:, first + count :]], dim=1)


def _refuse_no_turn(spin: Tensor, of_nodes: Tensor, of_edges: Tensor, size: float) -> None:
    """Refuse a spin (B, 3) that gives nodes (B, k, 3) and edges (B, A) no velocity, up to rounding.

    `size` is the largest coordinate [m].
    """
    rounding = ROUNDINGS * torch.finfo(spin.dtype).eps * float(spin.abs().max())
    still = bool((of_nodes.abs() <= rounding * size).all()) and bool((of_edges.abs() <= rounding).all())
    if still and bool(spin.any()):
        raise InputError(
            "thrown: angular_velocity turns nothing, as the nodes that move are on its axis, and no edge is between "
            "them that could turn about itself; give a center beside them, or more nodes, or leave it out"
        )


def _vectors(name: str, given: Tensor | Sequence[float], state: State) -> Tensor:
    """Return a vector for each robot, (B, 3), from one for all or one for each."""
    vector = numbers(given, f"thrown: {name}").to(state.q)
    if tuple(vector.shape) not in ((3,), (1, 3), (state.batch, 3)):
        raise InputError(f"thrown: {name} has to be (3,) or ({state.batch}, 3), got {tuple(vector.shape)}")
    if not bool(torch.isfinite(vector).all()):
        raise InputError(f"thrown: {name} holds numbers that are not finite")
    return vector.expand(state.batch, 3)


def initial_motion(
    batch: object, q: object, velocity: object, of_model: int | None, n_dofs: int, like: Tensor
) -> tuple[Tensor | None, Tensor]:
    """Return q, or None, and velocity, by default zero, both (B, n), from what a caller gives as (n,), (B, n) or None.

    B is `batch`, or else that of q, velocity or the model's constants (`of_model`), or 1. Refused are other shapes, and
    numbers that are not finite.

    Parameters
    ----------
    like : a tensor of the model; q and velocity get its dtype and device.
    """
    asked = None if batch is None else whole_number(batch, "initial_state: batch")
    set_values = {name: value for name, value in (("q", q), ("velocity", velocity)) if value is not None}
    given = {name: as_tensor(f"initial_state: {name}", value, like) for name, value in set_values.items()}
    for name, value in given.items():
        if value.dim() not in (1, 2) or value.shape[-1] != n_dofs:
            shapes = f"({n_dofs},) or (B, {n_dofs})"
            raise InputError(f"initial_state: {name} has to be {shapes}, got {tuple(value.shape)}")
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"initial_state: {name} holds numbers that are not finite")
    batches = {len(value) for value in given.values() if value.dim() == 2} - {1}
    number = asked or max([*batches, of_model or 1])
    for other in batches - {number}:
        raise InputError(f"initial_state: q or velocity is given for {other} robots, asked for are {number}")
    # copies, as a caller may write to its tensors and arrays later
    of_all = {name: value.to(like).expand(number, -1) for name, value in given.items()}
    motion = {name: value.clone(memory_format=torch.contiguous_format) for name, value in of_all.items()}
    return motion.get("q"), motion.get("velocity", like.new_zeros(number, n_dofs))


def refuse_closed_gaps(contact: ContactModel, state: State) -> None:
    """Refuse a start at which a gap to a barrier is closed, or so small that only rounding keeps it open."""
    gap = closed_gap(contact, state)
    if gap is not None:
        raise InputError(
            f"robot {gap.robot}, {gap.where}: the gap to {gap.of} is {gap.gap:.3g} m, and contact by Barrier "
            f"needs a gap there from the start, of more than {gap.least:.3g} m (a millionth of its tolerance, and "
            f"what coordinates in {state.q.dtype} can tell); move it away, or take Penalty"
        )


def trial_state(body: Body, frames: Frames, batch: int) -> State:
    """Return robots that are bent, stretched, twisted and moving at random, the same ones at each call."""
    noise = trial_numbers(body.nodes.new_empty(3, batch, body.n_dofs), 0)
    rest = rest_state(body, frames, batch)
    scale = torch.full_like(noise[0], 0.3)
    scale[:, : 3 * body.n_nodes] = 0.1 * body.typical_length()
    q = rest.q + scale * noise[0]
    tangent, director, twist = frames.carried(q, rest.tangent, rest.director, rest.reference_twist)
    return rest.replace(
        q=q,
        velocity=noise[1],
        acceleration=noise[2],
        director=director,
        tangent=tangent,
        reference_twist=twist,
        time=rest.time + torch.linspace(0.3, 0.9, batch, device="cpu").to(rest.time),
    )
