"""`Frames`: tangents, directors and reference twists of a robot's edges, and how they follow the nodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.compilation import Compilation
from torchdismech.fused import Fused
from torchdismech.geometry.frames import REST_BRANCH
from torchdismech.geometry.retraction import LengthPreservingMove
from torchdismech.geometry.rods import reference_twist
from torchdismech.geometry.vec3 import Vec3, components_of
from torchdismech.robot.body import Body
from torchdismech.robot.plane import Plane
from torchdismech.robot.state import State
from torchdismech.rows import finite_rows
from torchdismech.selection import first_of_run, selected

__all__ = ["Frames"]

FOLDED = 1e-6  # smallest 1 + cos of the angle between tangents that is not folded: 0.08 degrees from the fold


class Frames(nn.Module):
    """Tangents, directors and reference twists of a robot's framed edges, and their transport to another q.

    Parameters
    ----------
    body : of the robot.
    free : (n,) bool, dofs that move.
    compilation : decides which of these functions run compiled.
    """

    _nodes: Tensor
    _spring_edges: Tensor
    _spring_signs: Tensor

    def __init__(self, body: Body, free: np.ndarray, compilation: Compilation):
        super().__init__()
        self._edges, self._held, self._first_held = len(body.framed_edges), len(body.held_tangents), body.first_held
        self._first_angle = 3 * body.n_nodes
        self.compilation = compilation
        dtype, springs = body.nodes.dtype, body.springs
        self.register_buffer("_nodes", torch.as_tensor(body.framed_edges.T.copy(), device="cpu"), persistent=False)
        self._runs = tuple(map(first_of_run, body.framed_edges.T))
        self.register_buffer("_spring_edges", torch.as_tensor(springs.edges, device="cpu"), persistent=False)
        self.register_buffer(
            "_spring_signs", torch.as_tensor(springs.signs, dtype=dtype, device="cpu"), persistent=False
        )
        self._length_preserving = LengthPreservingMove(body.links, free[: 3 * body.n_nodes].reshape(-1, 3), dtype)

    def tangents(self, q: Tensor) -> Tensor:
        """Return the unit tangents of the framed edges (B, A, 3) at q (B, n)."""
        return _vectors(torch.stack(Vec3(*self._along(q)).unit().components()))

    def moved(self, state: State, q: Tensor, plane: Plane | None = None) -> State:
        """Return the state at q (B, n), with its frames transported there and all else unchanged.

        Parameters
        ----------
        plane : how the robots lie in their plane, in which frames do not twist; None: not known.
        """
        carried = self.compilation.compiled(Frames.carried, q.shape[0], q)
        given = state.tangent, state.director, state.reference_twist
        tangent, director, twist = carried(self, q, *given, twists=plane is None)
        return state.replace(q=q, director=director, tangent=tangent, reference_twist=twist)

    def carried(
        self, q: Tensor, tangent: Tensor, director: Tensor, reference_twist: Tensor, twists: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tangents, directors (B, A, 3) and reference twists (B, S) of a state transported to q (B, n).

        Parameters
        ----------
        twists : whether the reference twists change on the way.
        """
        along = self._along(q)
        frames = _CARRIED(along.shape[1], along, components_of(tangent), components_of(director))
        tangents, directors = frames.split(3)
        twist = self._reference_twist(frames, reference_twist) if twists else reference_twist
        return _vectors(tangents), _vectors(directors), twist

    def reference_twist(self, tangent: Tensor, director: Tensor) -> Tensor:
        """Return the reference twists (B, S) of the springs for unit tangents and directors (B, A, 3) at rest."""
        near = tangent.new_full((len(tangent), len(self._spring_edges)), REST_BRANCH)
        return self._reference_twist(torch.cat([components_of(tangent), components_of(director)]), near)

    def moved_by(self, q: Tensor, step: Tensor, kept: Tensor | None = None) -> Tensor:
        """Return q (B, n) moved by a step (B, n), where edges get the lengths that the step asks for to first order.

        A straight-line move would stretch edges that turn, see `geometry/retraction.py`.

        Parameters
        ----------
        kept : (B,) 1 for robots that are moved so, 0 for others, which get q + step; None: all are.
        """
        move = self.compilation.compiled(LengthPreservingMove.forward, q.shape[0], q)
        return move(self._length_preserving, q, step, kept)

    def folded(self, state: State, q: Tensor) -> Tensor:
        """Return for which robots (B,) an edge turned over since `state`, or a spring's edges fold back on each other.

        Edges of length zero have no direction, and count as folded. Robots whose q is not finite do not.
        """
        tangent = self.tangents(q)
        turned = (state.tangent * tangent).sum(-1)
        e, f = (tangent[:, self._spring_edges[:, k]] * self._spring_signs[:, k, None] for k in range(2))
        worst = torch.cat([turned, (e * f).sum(-1), turned.new_ones(turned.shape[0], 1)], dim=1).amin(1)
        return ~(worst + 1 > FOLDED) & finite_rows([q])

    def _along(self, q: Tensor) -> Tensor:
        """Return vectors (3, A, B) along the framed edges at q (B, n)."""
        transposed = q.t().contiguous()
        nodes = transposed[: self._first_angle].unflatten(0, (-1, 3))  # (N, 3, B)
        starts, ends = (selected(nodes, 0, *both) for both in zip(self._nodes, self._runs, strict=True))
        along = (ends - starts).transpose(0, 1)
        if not self._held:
            return along
        return torch.cat([along, transposed[self._first_held :].unflatten(0, (self._held, 3)).transpose(0, 1)], dim=1)

    def _reference_twist(self, frames: Tensor, previous: Tensor) -> Tensor:
        """Return the reference twist (B, S) of the springs, on the branch nearest to the previous one.

        Parameters
        ----------
        frames : (6, A, B) tangents, then directors.
        """
        edges, signs = self._spring_edges, self._spring_signs.t().unsqueeze(2)
        return _REFERENCE_TWISTS(len(edges), previous.t(), frames, edges, signs)[0].t().contiguous()


def _carried(along: Tensor, tangent: Tensor, director: Tensor) -> tuple:
    """Return tangents of edges `along` (3, A, B), and directors transported there from `tangent`, by components."""
    there, before, anchor = (Vec3(*vector.unbind(0)) for vector in (along, tangent, director))
    there = there.unit()
    moved = anchor.transported(before, there)
    # transport keeps lengths and angles only up to rounding, which would add up over many steps
    moved = (moved - there.times(moved.dot(there))).unit()
    return *there.components(), *moved.components()


def _reference_twists(previous: Tensor, frames: Tensor, edges: Tensor, signs: Tensor) -> list:
    """Return the reference twists (S, B), nearest to the previous, of springs with `edges` (S, 2) and `signs`."""
    rows = frames.unbind(0)
    (te, de), (tf, df) = (
        (Vec3(*(x[edge] for x in rows[:3])).times(sign), Vec3(*(x[edge] for x in rows[3:])))
        for edge, sign in zip(edges.unbind(1), signs.unbind(0), strict=True)
    )
    return [reference_twist(de.transported(te, tf), df, tf, previous)]


def _vectors(components: Tensor) -> Tensor:
    """Return components (3, A, B) as vectors (B, A, 3)."""
    return components.permute(2, 1, 0).contiguous()


_CARRIED, _REFERENCE_TWISTS = Fused(_carried, "frames"), Fused(_reference_twists, "reference twist")
