"""States of robots in a target shape, which is given by positions of the nodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, warn
from torchdismech.geometry.frames import signed_angle
from torchdismech.model import Model
from torchdismech.robot.state import State
from torchdismech.values import numbers

__all__ = ["state_of_shape"]

ALONG = 1e-6  # sine of the angle between a director and its edge below which it counts as along the edge
# of a target that may be measured: share of where its nodes are, component of a unit vector, angle [rad]
OUT_OF_PLANE = 1e-6
OTHER_UNIT = 20.0  # a factor on lengths at rest that means another unit, not stretch; an inch is 25 mm


def state_of_shape(model: Model, positions: Tensor, directors: Tensor | None) -> State:
    """Return the state of robots at positions (B, N, 3), or of one robot at (N, 3); see `Strains.of_shape`."""
    x = _vectors_of_robots("positions", "nodes", positions, model.body.n_nodes, model)
    x = x.reshape(-1, *x.shape[-2:])
    _refuse_one_place(x.detach(), model.body.links)
    _warn_of_other_unit(x.detach(), model)
    if model.in_plane is not None:
        model.in_plane.refuse_shape("target: positions", model.body.q_of(x), OUT_OF_PLANE)
    state = model.frames.moved(model.rest_state(len(x)), model.body.q_of(x))
    if directors is None:
        return state
    angles = _angles_to(state, _vectors_of_robots("directors", "rod edges", directors, len(model.rod_edges), model))
    if model.planar and bool((angles.detach().abs() > OUT_OF_PLANE).any()):
        raise InputError(
            "target: directors: the robot is planar, and its sections do not turn about their edges; leave "
            "the directors out, or build the robot with planar=False"
        )
    zeros = angles.new_zeros(len(x), model.body.n_angles - angles.shape[1])
    return state.replace(q=model.body.q_of(x, torch.cat([angles, zeros], dim=1)))


def _vectors_of_robots(label: str, kind: str, vectors: Tensor, count: int, model: Model) -> Tensor:
    """Return vectors (.., count, 3) of a target in the model's dtype; refuse other shapes and non-finite numbers."""
    tensor = numbers(vectors, f"target: {label}").to(model.nodes)
    if tuple(tensor.shape[-2:]) != (count, 3) or tensor.dim() not in (2, 3):
        raise InputError(f"target: expected {label} of {count} {kind}, {(count, 3)}, got {tuple(tensor.shape)}")
    if not bool(torch.isfinite(tensor).all()):
        raise InputError(f"target: {label} hold numbers that are not finite")
    return tensor


def _refuse_one_place(positions: Tensor, edges: np.ndarray) -> None:
    """Refuse positions (B, N, 3) in which an edge (E, 2) has no length, and so no direction."""
    start, end = (positions[:, edges[:, side]] for side in (0, 1))
    same = (start == end).all(-1)
    if bool(same.any()):
        robot, edge = same.nonzero()[0].tolist()
        first, second = edges[edge].tolist()
        whose = f" of robot {robot}" if len(positions) > 1 else ""
        raise InputError(
            f"target: positions: nodes {first} and {second}{whose} are in one place: expected a place of its own for "
            "each of the nodes that an edge joins"
        )


def _warn_of_other_unit(positions: Tensor, model: Model) -> None:
    """Warn of positions (B, N, 3) at which edges are many times longer or shorter than at rest."""
    start, end = model.body.links.T

    def length(x: Tensor) -> Tensor:
        return (x[..., end, :] - x[..., start, :]).norm(dim=-1).sum(-1)

    times = length(positions) / length(model.nodes)
    odd = (times > OTHER_UNIT) | (times < 1 / OTHER_UNIT)
    if bool(odd.any()):
        worst = float(times[odd][0])
        warn(f"target: positions: edges are {worst:.3g} times as long as at rest: are the positions in m?")


def _angles_to(state: State, directors: Tensor) -> Tensor:
    """Return the angles (B, E) from the state's directors to the given ones (.., E, 3), about the edges [rad]."""
    count = directors.shape[-2]
    present, axis = state.director[:, :count], state.tangent[:, :count]
    target = directors.expand_as(present)
    across = torch.linalg.cross(axis, target).norm(dim=-1)
    if bool((lost := across <= ALONG * target.norm(dim=-1)).any()):
        edge = int(lost.any(0).nonzero()[0])
        raise InputError(f"target: directors: that of rod edge {edge} is along the edge, or zero: it has no angle")
    return signed_angle(present, target, axis)
