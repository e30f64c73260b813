"""Contact of a robot's nodes with a floor or another rigid thing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.body import Body
from torchdismech.contact.law import ConstraintLaw, ContactLaw, law_of
from torchdismech.contact.path import Path
from torchdismech.contact.response import Friction, Response
from torchdismech.contact.shapes import Shape
from torchdismech.errors import InputError
from torchdismech.forces.base import Force
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.state import Control, State

__all__ = ["Obstacle"]

FAR = 1e6  # m: the gap of nodes that do not touch an obstacle; finite, so that gradients are


class Obstacle(Force):
    """A rigid thing that the nodes of a robot may touch.

    Each node is a ball with the contact radius of what it belongs to (the rod's, or half the shell's thickness). Edges
    and triangles between the nodes are not seen: they should be short against the radius of what they lie on.

    Parameters
    ----------
    shape : what it looks like at displacement zero.
    response, friction : the law between the surfaces.
    path : how it moves; at rest by default.
    name : what reports call it.
    nodes : indices of the nodes that touch it; None: all. The others pass through it.
    """

    per_robot = ("radius", "traction")
    radius: Tensor
    traction: Tensor | None  # (B, N, 3) that a search expects of friction, while it does; see `integrate.primal_dual`
    _passing: Tensor

    def __init__(
        self,
        shape: Shape,
        response: Response,
        friction: Friction | None = None,
        path: Path | None = None,
        name: str = "obstacle",
        nodes: Sequence[int] | None = None,
    ):
        super().__init__()
        if not name or "/" in name:
            raise InputError(f"Obstacle.name: expected a name without '/', got {name!r}")
        self.shape = shape
        self.law = law_of(response, friction)
        self.path = path
        self.name = name
        self.nodes = None if nodes is None else [int(node) for node in nodes]
        self.register_buffer("traction", None, persistent=False)

    @property
    def constrained(self) -> bool:
        """Whether it is a constraint, and no force: the integrator finds its loads."""
        return isinstance(self.law, ConstraintLaw)

    @property
    def constant(self) -> bool:  # type: ignore[override]
        """Whether it never pushes by itself, as a constraint does not."""
        return self.constrained

    @property
    def symmetric(self) -> bool:
        """Whether the derivatives are symmetric matrices: without friction."""
        return self.constrained or self.law.friction is None

    @property
    def conservative(self) -> bool:  # type: ignore[override]
        """Whether there is a potential of the whole force: without friction."""
        return self.constrained or self.law.friction is None

    def bind(self, body: Body) -> None:
        """Learn the nodes' radii, and which of them touch."""
        super().bind(body)
        self.register_buffer("radius", body.node_contact_radius(), persistent=False)
        passing = torch.zeros(body.n_nodes, dtype=torch.bool)
        if self.nodes is not None:
            wrong = [i for i in self.nodes if not 0 <= i < body.n_nodes]
            if wrong or not self.nodes:
                expected = f"expected indices 0 to {body.n_nodes - 1}"
                raise InputError(f"{type(self).__name__}.nodes: {expected}, got {wrong or 'none'}")
            passing[:] = True
            passing[self.nodes] = False
        self.register_buffer("_passing", passing, persistent=False)

    def clearance(self, distance: Tensor) -> Tensor:
        """Return the gaps (B, N) of nodes at distances (B, N) from its surface; large where they do not touch it."""
        return torch.where(self._passing, FAR, distance - self.radius)

    def relative(self, state: State) -> tuple[Tensor, Tensor]:
        """Return positions and velocities (B, N, 3) of the nodes as the moving obstacle sees them."""
        if self.path is None:
            return state.positions, state.node_velocities
        displacement, velocity = self.path.at(state.time)
        return state.positions - displacement.unsqueeze(1), state.node_velocities - velocity.unsqueeze(1)

    def displacement(self, time: Tensor) -> Tensor:
        """Return how far (B, 3) it has moved at the times (B,) [m]."""
        return self.radius.new_zeros(len(time), 3) if self.path is None else self.path.at(time)[0]

    def gap(self, q: Tensor, time: Tensor) -> Tensor:
        """Return the gaps (B, N) between the nodes and the obstacle at q (B, n) and the times (B,) [m]."""
        points = q[:, : 3 * self.body.n_nodes].unflatten(1, (-1, 3)) - self.displacement(time).unsqueeze(1)
        return self.clearance(self.shape.distance(points))

    def feasible(self, q: Tensor, before: State, time: Tensor) -> Tensor:
        """Return q (B, n) with the nodes that would overlap at the times (B,) carried along with the obstacle instead.

        From where they were `before`, as they were then outside, so they are still.
        """
        count = 3 * self.body.n_nodes
        moved = self.displacement(time) - self.displacement(before.time)
        outside = (self.gap(q, time) > 0).unsqueeze(2)
        nodes = torch.where(outside, q[:, :count].unflatten(1, (-1, 3)), before.positions + moved.unsqueeze(1))
        return torch.cat([nodes.flatten(1), q[:, count:]], dim=1)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the contact force (B, n) [N]."""
        if isinstance(self.law, ConstraintLaw):
            return torch.zeros_like(state.q)
        points, velocity = self.relative(state)
        distance, normal, _ = self.shape.distance_and_derivatives(points)
        return self.body.on_nodes(self.law.forces(self.clearance(distance), normal, velocity))

    def blocks(self) -> list[Block]:
        """Return each node's three coordinates."""
        if self.constrained:
            return []
        dofs = 3 * np.arange(self.body.n_nodes)[:, None] + np.arange(3)
        return [Block(dofs, dofs)]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivatives by position and by velocity (B, N, 3, 3)."""
        return [] if isinstance(self.law, ConstraintLaw) else self._both(state, self.law)[1]

    def with_derivatives(self, state: State, control: Control) -> tuple[Tensor, Derivatives]:
        """Return the contact force and its derivatives, of distances that are found once."""
        own = type(self).forward is Obstacle.forward and type(self).derivatives is Obstacle.derivatives
        if isinstance(self.law, ConstraintLaw) or torch.is_grad_enabled() or not own:
            return super().with_derivatives(state, control)
        return self._both(state, self.law)

    def _both(self, state: State, law: ContactLaw) -> tuple[Tensor, Derivatives]:
        points, velocity = self.relative(state)
        distance, normal, curvature = self.shape.distance_and_derivatives(points)
        gap = self.clearance(distance)
        force, by_x, by_velocity = law.forces_and_derivatives(gap, normal, curvature, velocity, self.traction)
        return self.body.on_nodes(force), [(by_x, by_velocity)]

    @property
    def rubs(self) -> bool:
        """Whether it has friction that is smoothed."""
        return isinstance(self.law, ContactLaw) and self.law.friction is not None

    def tractions(self, state: State) -> Tensor:
        """Return what friction takes off the loads, over these (B, N, 3), also of nodes without load."""
        assert isinstance(self.law, ContactLaw)
        points, velocity = self.relative(state)
        return self.law.tractions(self.shape.distance_and_derivatives(points)[1], velocity)

    def expected_tractions(self, state: State, velocity: Tensor, tractions: Tensor) -> Tensor:
        """Return the tractions (B, N, 3) to expect at another velocity (B, n), if `tractions` were at the state."""
        assert isinstance(self.law, ContactLaw)
        points, before = self.relative(state)
        change = self.relative(state.replace(velocity=velocity))[1] - before
        return self.law.expected(self.shape.distance_and_derivatives(points)[1], before, change, tractions)

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the potential (B,) of the normal forces [J]."""
        if isinstance(self.law, ConstraintLaw):
            return torch.zeros_like(state.time)
        return self.law.energy(self.gap(state.q, state.time), self.law.constants).sum(1)
