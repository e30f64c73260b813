"""Clamps as rigid bodies: poses that move them, and the forces and torques that they exert.

The pose of a clamp is the position of its point [m], which is the mean of its nodes at rest, and a unit quaternion
(w, x, y, z), the rotation from rest.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.geometry.frames import rotated, signed_angle, transported
from torchdismech.geometry.quaternions import best_rotation, conjugate, power, product, rotation_matrix
from torchdismech.robot.body import Body, Clamp
from torchdismech.robot.state import Control, State

__all__ = ["RigidWays", "posed", "rest_poses", "wrenches"]

TURN = 2 * torch.pi
UNIT = 1e-3  # largest difference of a quaternion's length from 1
# Weight of a given rotation in a fit, relative to the vectors and well above rounding. It decides rotations that the
# vectors leave open, such as those about a line on which all nodes are.
FITTED = {torch.float64: 1e-9, torch.float32: 1e-5}


def rest_poses(body: Body) -> Tensor:
    """Return the poses of the clamps at rest (C, 7)."""
    identity = body.nodes.new_tensor([1.0, 0.0, 0.0, 0.0])
    return torch.cat([body.clamp_points, identity.expand(len(body.clamps), -1)], dim=1)


def posed(body: Body, state: State, control: Control) -> Control:
    """Return the control with its poses (B, C, 7), if it has any, converted to values of clamped dofs in `clamped_q`.

    A quaternion does not count whole turns, so each angle takes the branch that is nearest to its value in the state. A
    clamp can thus turn by less than half a turn in a step, and many turns take many steps. A step that fails leaves the
    state where it was; if the next pose is half a turn or more from there, whole turns are lost.
    """
    if control.pose is None:
        return control
    clamped = body.clamped
    position, quaternion = control.pose.split([3, 4], dim=-1)
    size = torch.linalg.vector_norm(quaternion, dim=-1, keepdim=True)
    if not bool(((size - 1).abs() < UNIT).all()):
        worst = float(size.flatten()[(size - 1).abs().argmax()])
        raise InputError(f"Control.pose: expected unit quaternions (w, x, y, z), got one of length {worst:.6g}")
    rotation = rotation_matrix(quaternion / size)
    turned = (rotation[:, clamped.clamp] @ clamped.at_rest.unsqueeze(-1)).squeeze(-1)
    nodes, edges, held = clamped.counts
    arms, tangent, director, direction = turned.split([nodes, edges, edges, held], dim=1)
    before = transported(state.director[:, clamped.framed], state.tangent[:, clamped.framed], tangent)
    angle, last = signed_angle(before, director, tangent), state.twist[:, clamped.framed]
    angle = angle + TURN * torch.round((last - angle) / TURN)
    x = position[:, clamped.clamp[:nodes]] + arms
    q = state.q if control.clamped_q is None else control.clamped_q
    moved = torch.cat([x.flatten(1), angle, direction.flatten(1)], dim=1)
    return control.replace(pose=None, clamped_q=q.index_copy(1, clamped.dofs, moved))


class RigidWays:
    """The paths of clamps as rigid bodies, from where they are in a state to the poses (B, C, 7) of a control.

    A clamp's point moves on a straight line, and the clamp turns evenly about one axis, by the smaller of the two
    angles. If its nodes are not in their rigid shape at the start, the deviation decreases evenly to zero.
    """

    def __init__(self, body: Body, start: State, pose: Tensor):
        self._body, self._last = body, pose
        self._first = _fitted_poses(body, start, pose)
        fitted = posed(body, start, Control(pose=self._first)).clamped_q
        assert fitted is not None
        self._fading = (start.q - fitted)[:, body.clamped.dofs]

    def posed(self, control: Control, share: Tensor, state: State) -> Control:
        """Return the control with the poses at fractions `share` (B,) of the paths, written into its `clamped_q`.

        Parameters
        ----------
        share : may be below 0 and above 1, too.
        state : its anchors define the angles of edges.
        """
        there = posed(self._body, state, control.replace(pose=_between(self._first, self._last, share[:, None, None])))
        assert there.clamped_q is not None
        fading = (1 - share)[:, None] * self._fading
        return there.replace(clamped_q=there.clamped_q.index_add(1, self._body.clamped.dofs, fading))


def _fitted_poses(body: Body, state: State, near: Tensor) -> Tensor:
    """Return the poses (B, C, 7) that fit the clamps' nodes and frames in a state best (Horn 1987).

    Parameters
    ----------
    near : (B, C, 7) poses; among rotations that fit alike, the one nearest to theirs is taken.
    """
    clamped, batch = body.clamped, len(state.q)
    nodes, edges, held = clamped.counts
    x, angle, ends = state.q[:, clamped.dofs].split([3 * nodes, edges, 3 * held], dim=1)
    point = torch.stack([state.positions[:, clamp.nodes].mean(1) for clamp in body.clamps], dim=1)
    arms = x.unflatten(1, (-1, 3)) - point[:, clamped.clamp[:nodes]]
    tangent = state.tangent[:, clamped.framed]
    director = rotated(state.director[:, clamped.framed], tangent, angle)
    turned = torch.cat([arms, tangent, director, ends.unflatten(1, (-1, 3))], dim=1)
    products = turned.unsqueeze(-1) * clamped.at_rest.unsqueeze(-2)
    sums = products.new_zeros(batch, len(body.clamps), 3, 3).index_add(1, clamped.clamp, products)
    return torch.cat([point, best_rotation(sums, near[..., 3:], FITTED[sums.dtype])], dim=-1)


def _between(first: Tensor, last: Tensor, share: Tensor) -> Tensor:
    """Return the poses (B, C, 7) at a fraction `share` of the way from `first` to `last`."""
    x, y = first[..., :3], last[..., :3]
    turn = product(last[..., 3:], conjugate(first[..., 3:]))
    return torch.cat([x + share * (y - x), product(power(turn, share), first[..., 3:])], dim=-1)


def wrenches(body: Body, tangents: Tensor, state: State, q: Tensor, reaction: Tensor) -> Tensor:
    """Return the force [N] and the torque [N m] that each clamp exerts on the robot, (B, C, 6) in world axes.

    The torque is about the mean of the clamp's nodes.

    Parameters
    ----------
    tangents : (B, A, 3) unit tangents of the framed edges at q.
    state : its anchors define the reference frames.
    q : (B, n) where the reaction acts.
    reaction : (B, n) generalised force of the clamps on the robot.
    """
    by_clamp = []
    for clamp in body.clamps:
        sizes = (3 * len(clamp.placed), len(clamp.framed), 3 * len(clamp.held))
        index = torch.as_tensor(_dofs(body, clamp), device=q.device)
        nodes, couples, pulls = reaction[:, index].split(sizes, dim=1)
        x, _, held = q[:, index].split(sizes, dim=1)
        force, at = nodes.unflatten(1, (-1, 3)), x.unflatten(1, (-1, 3))
        arms = torch.cat([at - at.mean(1, keepdim=True), held.unflatten(1, (-1, 3))], dim=1)
        torque = torch.linalg.cross(arms, torch.cat([force, pulls.unflatten(1, (-1, 3))], dim=1)).sum(1)
        # Turning a clamp by w turns the frame of an edge by w, and its reference frame, which is transported from the
        # anchor, by w less (w.t) t and by -kb.dt/2 about t: the angle between them changes by w.t + kb.(w x t)/2.
        tangent, anchor = tangents[:, clamp.framed], state.tangent[:, clamp.framed]
        binormal = 2 * torch.linalg.cross(anchor, tangent) / (1 + (anchor * tangent).sum(-1, keepdim=True))
        axis = tangent + 0.5 * torch.linalg.cross(tangent, binormal)
        torque = torque + (couples.unsqueeze(-1) * axis).sum(1)
        by_clamp.append(torch.cat([force.sum(1), torque], dim=1))
    return torch.stack(by_clamp, dim=1) if by_clamp else q.new_zeros(len(q), 0, 6)


def _dofs(body: Body, clamp: Clamp) -> np.ndarray:
    """Return a clamp's dofs: coordinates of nodes that it places, then angles, then components of held tangents."""
    nodes, held = (
        (first + 3 * index[:, None] + np.arange(3)).reshape(-1)
        for first, index in ((0, clamp.placed), (body.first_held, clamp.held))
    )
    return np.concatenate([nodes, 3 * body.n_nodes + clamp.framed, held])
