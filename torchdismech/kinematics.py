"""Frames: how the frames of a robot's edges move along with its nodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.body import Body
from torchdismech.compilation import Compilation
from torchdismech.geometry.retraction import LengthPreservingMove
from torchdismech.geometry.vec3 import Vec3
from torchdismech.state import State

__all__ = ["Frames"]

FOLDED = 1e-6  # the least 1 + cosine that counts as not folded: 0.08 degrees from the fold


class Frames(nn.Module):
    """Tangents, directors and reference twists of a robot's framed edges, and moves that carry them along.

    Parameters
    ----------
    body : of the robot.
    free : (n,) bool, dofs that move.
    compilation : says which of this runs compiled.
    """

    _edges: Tensor
    _spring_edges: Tensor
    _spring_signs: Tensor

    def __init__(self, body: Body, free: np.ndarray, compilation: Compilation):
        super().__init__()
        self.n_nodes, self._first_held = body.n_nodes, body.first_held
        self.compilation = compilation
        dtype, springs = body.nodes.dtype, body.springs
        self.register_buffer("_edges", torch.as_tensor(body.framed_edges), persistent=False)
        self.register_buffer("_spring_edges", torch.as_tensor(springs.edges), persistent=False)
        self.register_buffer("_spring_signs", torch.as_tensor(springs.signs, dtype=dtype), persistent=False)
        self._length_preserving = LengthPreservingMove(body.links, free[: 3 * self.n_nodes].reshape(-1, 3), dtype)

    def tangents(self, q: Tensor) -> Tensor:
        """Return the unit tangents of the framed edges (B, A, 3) at q (B, n)."""
        return self._tangents(q).stacked()

    def moved(self, state: State, q: Tensor) -> State:
        """Return the state at q (B, n), its frames transported there; all else unchanged."""
        carried = self.compilation.form(Frames.carried, q.shape[0], q)
        tangent, director, twist = carried(self, q, state.tangent, state.director, state.reference_twist)
        return state.replace(q=q, director=director, tangent=tangent, reference_twist=twist)

    def carried(
        self, q: Tensor, tangent: Tensor, director: Tensor, reference_twist: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tangents, directors (B, A, 3) and reference twists (B, S) at q (B, n) for those before."""
        there, before, anchor = self._tangents(q), Vec3.of(tangent), Vec3.of(director)
        moved = anchor.transported(before, there)
        # transport keeps lengths and angles up to rounding; this keeps rounding from adding up over many steps
        moved = (moved - there.times(moved.dot(there))).unit()
        return there.stacked(), moved.stacked(), self._reference_twist(there, moved, reference_twist)

    def reference_twist(self, tangent: Tensor, director: Tensor) -> Tensor:
        """Return the reference twist (B, S) of the springs between -pi and pi, for unit vectors (B, A, 3)."""
        return self._reference_twist(Vec3.of(tangent), Vec3.of(director), None)

    def moved_by(self, q: Tensor, step: Tensor) -> Tensor:
        """Return q (B, n) moved by a step (B, n), edges keeping the length that it asks for to first order."""
        move = self.compilation.form(LengthPreservingMove.forward, q.shape[0], q)
        return move(self._length_preserving, q, step)

    def folded(self, state: State, q: Tensor) -> Tensor:
        """Return the robots (B,) where an edge turned over since `state`, or two edges of a spring fold back."""
        tangent = self.tangents(q)
        turned = (state.tangent * tangent).sum(-1)
        e, f = (tangent[:, self._spring_edges[:, k]] * self._spring_signs[:, k, None] for k in range(2))
        worst = torch.cat([turned, (e * f).sum(-1), turned.new_ones(turned.shape[0], 1)], dim=1).amin(1)
        return ~(worst + 1 > FOLDED)

    def _tangents(self, q: Tensor) -> Vec3:
        nodes = q[:, : 3 * self.n_nodes].unflatten(1, (-1, 3)).unbind(-1)
        along = [x[:, self._edges[:, 1]] - x[:, self._edges[:, 0]] for x in nodes]
        if self._first_held < q.shape[1]:
            held = q[:, self._first_held :].unflatten(1, (-1, 3)).unbind(-1)
            along = [torch.cat(pair, dim=1) for pair in zip(along, held, strict=True)]
        return Vec3(*along).unit()

    def _reference_twist(self, tangent: Vec3, director: Vec3, previous: Tensor | None) -> Tensor:
        """Return the reference twist (B, S) of the springs, on the branch nearest to `previous`."""
        edges, signs = self._spring_edges, self._spring_signs
        te, tf = (tangent.columns(edges[:, k]).times(signs[:, k]) for k in range(2))
        de, df = (director.columns(edges[:, k]) for k in range(2))
        de = de.transported(te, tf)
        angle = torch.atan2(de.cross(df).dot(tf), de.dot(df))
        if previous is None:
            return angle
        return angle + 2 * torch.pi * torch.round((previous - angle) / (2 * torch.pi))
