"""Contact of a robot with a floor or another rigid thing."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.law import ConstraintLaw, ContactLaw, law_of
from torchdismech.contact.obstacles.path import Path
from torchdismech.contact.obstacles.rod_tangents import RodTangents
from torchdismech.contact.obstacles.rolling import Rolling
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.obstacles.shape_checks import refuse_wrong_shape
from torchdismech.contact.obstacles.shapes import HalfSpace
from torchdismech.contact.obstacles.surface import Surface
from torchdismech.contact.obstacles.touch_points import TouchPoints
from torchdismech.contact.own import of_its_own, take_trained
from torchdismech.contact.response import Friction, Response, warn_of_wide_tolerance
from torchdismech.errors import InputError, refuse_other_kind, truth
from torchdismech.forces.base import Force
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.geometry.checks import Indices, checked_indices
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State

__all__ = ["Obstacle"]

CARRYING_ROUNDS = 3  # in which nodes of edges and triangles that would overlap are carried; then all nodes of the robot
FAR_GAP = 1e6  # m: the gap of nodes that do not touch an obstacle; finite, so that gradients are finite, too


class Obstacle(Force):
    """A rigid thing that a robot may touch.

    What touches it are the nodes, each a ball with the contact radius of what it belongs to (the rod's, or half the
    shell's thickness), and with a `spacing` points on edges and in triangles, too. Each point is a contact of its own.
    A round thing of radius R dips between points, by spacing^2 / (8 (R + contact radius)) on an edge and up to a third
    more in a triangle; a sharp edge has R = 0.

    Parameters
    ----------
    shape : what it looks like at displacement zero.
    response, friction : the law between the surfaces. Friction may have coefficients of its own along rods.
    path : how it moves; at rest by default. A place that is set from step to step otherwise, such as by
        `Control(values={"floor.point": ...})`, is a jump: friction does not feel it, and what it leaps over is not
        noticed.
    name : what reports call it.
    nodes : indices of the nodes that touch it, or a bool mask (N,); None: all. The others pass through it, as do edges
        and triangles that have one of them.
    spacing : points that touch are no farther apart at rest, along edges and across triangles [m]; None: nodes alone.
        Not for a `HalfSpace`: where nodes are above it, so is what lies between them.
    rolling : whether friction feels how fast rods spin about themselves, and turns them, see `rolling.Rolling`. By
        default it goes by the velocity of centre lines, and rods slide where they would roll. For potentials.

    Raises
    ------
    InputError
        A name that is no text, or has a "/"; a spacing that is not above zero, or for a half-space; when it is bound,
        nodes that the robot does not have, friction along rods, or rods that are to roll, where no rod touches it, and
        a shape or law that requires gradients and that another contact has. Rods that are to roll and are not round, or
        cannot turn about themselves.
    """

    per_robot = ("traction",)
    points: TouchPoints
    rod_tangents: RodTangents | None  # at the points, where friction needs them
    rolls: Rolling | None
    traction: Tensor | None  # (B, P, 3) that a search expects of friction, see `integrate.search.primal_dual`
    _passing: Tensor

    def __init__(
        self,
        shape: Shape,
        response: Response,
        friction: Friction | None = None,
        path: Path | None = None,
        name: str = "obstacle",
        nodes: Indices | None = None,
        spacing: float | None = None,
        rolling: bool = False,
    ):
        super().__init__()
        if not isinstance(name, str) or not name or "/" in name:
            raise InputError(f"Obstacle.name: expected a name without '/', got {name!r}")
        refuse_other_kind(f"obstacle {name!r}: shape", shape, Shape, "a Shape, such as HalfSpace or Sphere")
        if path is not None:
            refuse_other_kind(f"obstacle {name!r}: path", path, Path, "a Path or None")
        given: object = spacing
        one_length = isinstance(given, Real) and not isinstance(given, bool)
        if spacing is not None and not (one_length and 0 < float(spacing) < math.inf):
            raise InputError(f"Obstacle.spacing: expected one length above 0 m for all robots, got {spacing}")
        if spacing is not None and isinstance(shape, HalfSpace):
            raise InputError(
                "Obstacle.spacing: what lies between nodes that are above a plane is above it, too; leave it out"
            )
        self.law = law_of(response, friction)
        self.rolling = truth(rolling, f"obstacle {name!r}: rolling")
        if self.rolling and not self.rubs:
            raise InputError(
                f"obstacle {name!r}: rolling: rods roll by friction that is smoothed, and there is none; give a "
                "Friction, and a Penalty or a Barrier"
            )
        self.shape = of_its_own(shape)
        self.path = None if path is None else of_its_own(path)
        self.name = name
        self.nodes = nodes
        self.spacing = None if spacing is None else float(spacing)
        self.register_buffer("traction", None, persistent=False)

    @property
    def name_in_messages(self) -> str:
        """What `faults` calls it."""
        own = "" if type(self) is Obstacle else f"{type(self).__name__}, "
        return f"obstacle {self.name!r} ({own}{type(self.shape).__name__})"

    @property
    def derivatives_in_messages(self) -> str:
        """Whose derivatives are wrong, where they are: its shape was looked at when it was bound."""
        own = type(self).derivatives is not Obstacle.derivatives
        return "its derivatives()" if own else f"the derivatives() of its law, {type(self.law.response).__name__},"

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
        """Find which points of the robot touch."""
        super().bind(body)
        take_trained(f"obstacle {self.name!r}", self.shape, self.law.response, self.law.friction, self.path)
        touches = np.ones(body.n_nodes, dtype=bool)
        if self.nodes is not None:
            touches[:] = False
            touches[checked_indices(self.nodes, body.n_nodes, f"{type(self).__name__}.nodes")] = True
        self.points = TouchPoints(body, touches, self.spacing)
        warn_of_wide_tolerance(f"obstacle {self.name!r}", self.law.response, self.points.radius)
        refuse_wrong_shape(self.shape, self.name, body.nodes, float(self.points.radius.min()))
        passing = torch.zeros(self.points.count, dtype=torch.bool, device="cpu")
        passing[: body.n_nodes] = torch.as_tensor(~touches, device="cpu")
        self.register_buffer("_passing", passing, persistent=False)
        directional = self.law.friction is not None and self.law.friction.directional
        self.rod_tangents = RodTangents(body, self.points) if directional or self.rolling else None
        self.rolls = None
        if self.rod_tangents is not None:
            self._refuse_no_rods(self.rod_tangents, directional)
            if self.rolling:
                self._refuse_corners(self.rod_tangents, body)
                self.rolls = Rolling(body, self.points, self.rod_tangents)

    def _refuse_no_rods(self, tangents: RodTangents, directional: bool) -> None:
        """Refuse friction along rods, or rods that are to roll, where no rod touches."""
        wanted = {"forward_coefficient and backward_coefficient": tangents.on_rods & (tangents.signs[:, 1] > 0)}
        wanted = wanted if directional else {}
        if self.rolling:
            wanted["rolling"] = tangents.on_rods
        for given, there in wanted.items():
            if not bool((there & self.touches).any()):
                raise InputError(
                    f"obstacle {self.name!r}: its friction is to differ along rods or to turn them, and no rod touches "
                    f"it; leave out {given}"
                )

    def _refuse_corners(self, tangents: RodTangents, body: Body) -> None:
        """Refuse rods with corners that are to roll."""
        edges = tangents.edges[tangents.on_rods & self.touches].cpu().numpy()
        if not body.sections.round[edges].all():
            raise InputError(
                f"obstacle {self.name!r}: rolling: rods roll that are round, and a rectangle touches it; leave it out, "
                "or name the nodes that touch"
            )

    def learn_free(self, free: np.ndarray) -> None:
        """Refuse rods that are to roll and cannot turn about themselves."""
        if self.rolls is None or self.rod_tangents is None:
            return
        angles = self.rolls.angles[self.rod_tangents.on_rods & self.touches]
        if not free[angles.cpu().numpy()].any():
            raise InputError(
                f"obstacle {self.name!r}: rolling: the rods cannot turn about themselves, as in planar robots; leave "
                "it out"
            )

    def surface(self, state: State) -> Surface:
        """Return how the robot's surface stands to the obstacle at the points."""
        points, velocity = self.relative(state)
        distance, normal, curvature = self.shape.distance_and_derivatives(points)
        axis = lever = None
        if self.rod_tangents is not None:
            axis = self.rod_tangents.axes(state.tangent)
            if self.rolls is not None:
                velocity, lever = self.rolls.surface_motion(state, self.points.radius, axis, normal, velocity)
        return Surface(self.clearance(distance), normal, curvature, velocity, axis, lever)

    def clearance(self, distance: Tensor) -> Tensor:
        """Return the gaps (B, P) of points at distances (B, P) from its surface; large where they do not touch it."""
        return torch.where(self._passing, FAR_GAP, distance - self.points.radius)

    @property
    def touches(self) -> Tensor:
        """Which points (P,) touch it; the others pass through it."""
        return ~self._passing

    def relative(self, state: State) -> tuple[Tensor, Tensor]:
        """Return positions and velocities (B, P, 3) of the points in the frame of the moving obstacle."""
        points, velocities = self.points.of(state.positions), self.points.of(state.node_velocities)
        if self.path is None:
            return points, velocities
        displacement, velocity = self.path.displacement(state.time), self.path.velocity(state.time)
        return points - displacement.unsqueeze(1), velocities - velocity.unsqueeze(1)

    def relative_points(self, q: Tensor, time: Tensor) -> Tensor:
        """Return the points (B, P, 3) at q (B, n) and the times (B,) in the frame of the moving obstacle."""
        nodes = q[:, : 3 * self.body.n_nodes].unflatten(1, (-1, 3))
        return self.points.of(nodes) - self.displacement(time).unsqueeze(1)

    def displacement(self, time: Tensor) -> Tensor:
        """Return how far (B, 3) it has moved at the times (B,) [m]."""
        return self.points.radius.new_zeros(len(time), 3) if self.path is None else self.path.displacement(time)

    def gap(self, q: Tensor, time: Tensor) -> Tensor:
        """Return the gaps (B, P) between the points and the obstacle at q (B, n) and the times (B,) [m]."""
        return self.clearance(self.shape.distance(self.relative_points(q, time)))

    def out_of_reach(self, q: Tensor, time: Tensor) -> Tensor:
        """Return the robots (B,) that it does not push at q (B, n) and the times (B,): gaps are above the tolerance."""
        return (self.gap(q, time) > self.law.response.tolerance).all(1)

    def feasible(self, q: Tensor, before: State, time: Tensor) -> Tensor:
        """Return q (B, n) with nodes of points that would overlap at the times (B,) carried along with the obstacle.

        They are carried from where they were `before`, as they were outside then. That moves the edges and triangles of
        others, too, whose nodes are then carried likewise; after some rounds all nodes of the robot are.
        """
        count = 3 * self.body.n_nodes
        nodes = q[:, :count].unflatten(1, (-1, 3))
        moved = self.displacement(time) - self.displacement(before.time)
        carried = before.positions + moved.unsqueeze(1)
        for last in [False] * CARRYING_ROUNDS + [True] if self.points.between else [False]:
            overlaps = self.points.nodes_of(self.gap(q, time) <= 0)
            overlaps = overlaps.any(1, keepdim=True) if last else overlaps
            nodes = torch.where(overlaps.unsqueeze(2), carried, nodes)
            q = torch.cat([nodes.flatten(1), q[:, count:]], dim=1)
        return q

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the contact force (B, n) [N]."""
        if isinstance(self.law, ConstraintLaw):
            return torch.zeros_like(state.q)
        surface = self.surface(state)
        return self._of_points(self.force_of(surface), surface.lever)

    def force_of(self, surface: Surface) -> Tensor:
        """Return the forces (B, P, 3) on the points [N], of an obstacle that is a force."""
        assert isinstance(self.law, ContactLaw)
        return self.law.forces(surface.gap, surface.normal, surface.velocity, self._tangent(surface))

    def _tangent(self, surface: Surface) -> Tensor | None:
        """Return the tangents (B, P, 3) of rods that friction may have other coefficients along."""
        if self.rod_tangents is None or surface.axis is None:
            return None
        return self.rod_tangents.directions(surface.axis)

    def blocks(self) -> list[Block]:
        """Return each node's three coordinates, then those of each edge and each triangle with points."""
        if self.constrained:
            return []
        return self.points.blocks() + ([] if self.rolls is None else self.rolls.blocks())

    def derivative_count(self) -> int:
        """Return how many numbers its derivatives by position are, those of points that edges sum up included."""
        between = 0 if self.constrained else self.points.count - self.body.n_nodes
        return super().derivative_count() + 9 * between

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivatives by position and by velocity (B, S, 3 k, 3 k) for each of `blocks`."""
        return [] if isinstance(self.law, ConstraintLaw) else self._both(state, self.law)[1]

    def with_derivatives(self, state: State, control: Control) -> tuple[Tensor, Derivatives]:
        """Return the contact force and its derivatives, of distances that are found once."""
        own = type(self).forward is Obstacle.forward and type(self).derivatives is Obstacle.derivatives
        if isinstance(self.law, ConstraintLaw) or torch.is_grad_enabled() or not own:
            return super().with_derivatives(state, control)
        return self._both(state, self.law)

    def _both(self, state: State, law: ContactLaw) -> tuple[Tensor, Derivatives]:
        of_angles: Derivatives = []
        surface = self.surface(state)
        gap, normal, curvature, velocity, _, lever = surface
        tangent = self._tangent(surface)
        force, by_x, by_velocity = law.forces_and_derivatives(gap, normal, curvature, velocity, self.traction, tangent)
        if self.rolls is not None and by_velocity is not None:
            by_x, of_angles = self.rolls.derivatives(state, self.points.radius, surface, force, by_x, by_velocity)
        positions = self.points.derivatives(by_x)
        velocities = [None] * len(positions) if by_velocity is None else self.points.derivatives(by_velocity)
        return self._of_points(force, lever), [*zip(positions, velocities, strict=True), *of_angles]

    def _of_points(self, force: Tensor, lever: Tensor | None) -> Tensor:
        """Return the force (B, n) on the robot of forces (B, P, 3) on its points, with levers on rods that roll."""
        on_nodes = self.body.on_nodes(self.points.onto_nodes(force))
        if self.rolls is None or lever is None:
            return on_nodes
        return on_nodes + self.rolls.torques(lever, force, self.body.n_dofs)

    @property
    def rubs(self) -> bool:
        """Whether it has friction that is smoothed."""
        return isinstance(self.law, ContactLaw) and self.law.friction is not None

    def slides(self, state: State) -> tuple[Tensor, Tensor]:
        """Return normals and velocities (B, P, 3) of the points, also of those that do not touch."""
        surface = self.surface(state)
        return surface.normal, surface.velocity

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the potential (B,) of the normal forces [J]."""
        if isinstance(self.law, ConstraintLaw):
            return torch.zeros_like(state.time)
        return self.law.energy(self.gap(state.q, state.time), self.law.constants).sum(1)
