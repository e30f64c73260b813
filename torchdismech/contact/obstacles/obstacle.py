"""Obstacle: contact of a robot with a floor or another rigid body, as a force or a constraint."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.copies import own_copy, take_trained
from torchdismech.contact.law import Ruled, law_of
from torchdismech.contact.obstacles.path import Path
from torchdismech.contact.obstacles.rod_tangents import RodTangents
from torchdismech.contact.obstacles.rolling import Rolling
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.obstacles.shape_checks import refuse_wrong_shape
from torchdismech.contact.obstacles.shapes import HalfSpace
from torchdismech.contact.obstacles.touch_points import Surface, TouchPoints
from torchdismech.contact.response import Friction, Response, warn_of_wide_tolerance
from torchdismech.errors import InputError, name_in_files, positive_number, refuse_other_kind, truth
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.forces.rubbing import RubbingForce
from torchdismech.fused import compiled_code_accepts, traced
from torchdismech.geometry.checks import Indices, checked_indices
from torchdismech.native import taping
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.robot.unknowns import Unknowns

__all__ = ["Obstacle"]

# of `Obstacle.without_overlap` that carry single nodes, before a last one carries all nodes of a robot
CARRYING_ROUNDS = 3
LEAST_GAIN = 1e-4  # of a gap, by a motion of 1: nodes whose clamps let them move less off an obstacle stay
FAR_GAP = 1e6  # m: the gap of points that pass through an obstacle; finite, so that gradients are finite, too


class Obstacle(Ruled, RubbingForce):
    """A rigid body that a robot may touch.

    The robot touches it with points: its nodes and, with a `spacing`, points on edges and in triangles. Each point is a
    ball with the contact radius of its rod, or half the thickness of its shell, and a contact of its own. Between
    points a round obstacle of radius R sinks into the robot, by spacing^2 / (8 (R + contact radius)) on an edge and up
    to a third more in a triangle; a sharp edge has R = 0.

    Parameters
    ----------
    shape : its shape, placed as at displacement zero.
    response, friction : the law between the surfaces. Friction may have other coefficients along rods.
    path : how it moves; at rest by default. If you set its place from step to step in another way, such as by
        `Control(values={"floor.point": ...})`, it jumps: friction does not feel that motion, and a robot that it leaps
        over is not noticed.
    name : its name in reports.
    nodes : indices of the nodes that touch it, or a bool mask (N,); None: all. The other nodes pass through it, and so
        do edges and triangles with such a node.
    spacing : largest distance at rest between neighbouring points on edges and in triangles [m]; None: nodes alone.
        Not for a `HalfSpace`: where nodes are above it, so is what lies between them.
    rolling : whether friction depends on the spin of rods about their axes and turns them, see `rolling.Rolling`. By
        default friction depends on the velocity of centre lines alone, and rods slide where they would roll. For
        potentials.

    Raises
    ------
    InputError
        A name that is no text, or has a "/"; a spacing that is not above zero, or for a half-space. When it is bound to
        a robot: nodes that the robot does not have; coefficients along rods, or rolling, where no rod touches it;
        rolling of rods that are not round, or that cannot turn about their axes; a shape, law or path that requires
        gradients and belongs to another contact.
    """

    per_robot = ("traction",)
    points: TouchPoints
    rod_tangents: RodTangents | None  # at the points; None where friction needs none
    rolls: Rolling | None  # None where rods do not roll
    # (B, P, 3), set by `SmoothedFriction.with_tractions` for the derivatives of primal-dual steps
    traction: Tensor | None
    _passing: Tensor  # (P,) bool, which points pass through the obstacle

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
        name = name_in_files(name, "Obstacle.name")
        refuse_other_kind(f"obstacle {name!r}: shape", shape, Shape, "a Shape, such as HalfSpace or Sphere")
        if path is not None:
            refuse_other_kind(f"obstacle {name!r}: path", path, Path, "a Path or None")
        self.spacing = None if spacing is None else _length_between_points(spacing, shape)
        self.law = law_of(response, friction)
        self.rolling = truth(rolling, f"obstacle {name!r}: rolling")
        if self.rolling and not self.rubs:
            raise InputError(
                f"obstacle {name!r}: rolling: rods roll by friction that is smoothed, and there is none; give a "
                "Friction, and a Penalty or a Barrier"
            )
        self.shape = own_copy(shape)
        self.path = None if path is None else own_copy(path)
        self.name = name
        self.nodes = nodes
        self.register_buffer("traction", None, persistent=False)

    @property
    def name_in_messages(self) -> str:
        """How error messages call the obstacle: by name, class and shape."""
        own = "" if type(self) is Obstacle else f"{type(self).__name__}, "
        return f"obstacle {self.name!r} ({own}{type(self.shape).__name__})"

    @property
    def derivatives_in_messages(self) -> str:
        """How messages about wrong derivatives call their source: its own method, or its law's.

        The derivatives of its shape were checked when it was bound.
        """
        own = type(self).derivatives is not Obstacle.derivatives
        return "its derivatives()" if own else f"the derivatives() of its law, {type(self.law.response).__name__},"

    @property
    def constant(self) -> bool:  # type: ignore[override]
        """Whether its force is always zero, as that of a constraint is."""
        return self.constrained

    @property
    def symmetric(self) -> bool:
        """Whether the derivatives are symmetric matrices, as they are without friction."""
        return not self.rubs

    @property
    def conservative(self) -> bool:  # type: ignore[override]
        """Whether the whole force has a potential, as it has without friction."""
        return not self.rubs

    def bind(self, body: Body) -> None:
        """Learn the robot: make the points that touch, and check the shape and what friction needs of rods."""
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
        """Refuse coefficients along rods, or rolling, if no rod touches the obstacle."""
        have_direction, on_rods = tangents.on_rods & (tangents.signs[:, 1] > 0), tangents.on_rods
        for argument, given, points in (
            ("forward_coefficient and backward_coefficient", directional, have_direction),
            ("rolling", self.rolling, on_rods),
        ):
            if given and not bool((points & self.touches).any()):
                raise InputError(
                    f"obstacle {self.name!r}: its friction is to differ along rods or to turn them, and no rod touches "
                    f"it; leave out {argument}"
                )

    def _refuse_corners(self, tangents: RodTangents, body: Body) -> None:
        """Refuse rolling if a rod that touches has a section that is not round."""
        edges = tangents.edges[tangents.on_rods & self.touches].cpu().numpy()
        if not body.sections.round[edges].all():
            raise InputError(
                f"obstacle {self.name!r}: rolling: rods roll that are round, and a rectangle touches it; leave it out, "
                "or name the nodes that touch"
            )

    def learn_free(self, free: np.ndarray) -> None:
        """Refuse rolling if no rod that touches can turn about its axis."""
        if self.rolls is None or self.rod_tangents is None:
            return
        angles = self.rolls.angles[self.rod_tangents.on_rods & self.touches]
        if not free[angles.cpu().numpy()].any():
            raise InputError(
                f"obstacle {self.name!r}: rolling: the rods cannot turn about themselves, as in planar robots; leave "
                "it out"
            )

    def surface(self, state: State) -> Surface:
        """Return gaps, normals and relative velocities of the robot's surface at the points."""
        points, velocity = self.relative(state)
        distance, normal, curvature = self.shape.distance_and_derivatives(points)
        axis = lever = None
        if self.rod_tangents is not None:
            axis = self.rod_tangents.axes(state.tangent)
            if self.rolls is not None:
                velocity, lever = self.rolls.surface_motion(state, self.points.radius, axis, normal, velocity)
        return Surface(self.clearance(distance), normal, curvature, velocity, axis, lever)

    def clearance(self, distance: Tensor) -> Tensor:
        """Return the gaps (B, P) of points at distances (B, P) from its surface; `FAR_GAP` where they pass through."""
        return torch.where(self._passing, FAR_GAP, distance - self.points.radius)

    @property
    def touches(self) -> Tensor:
        """The points (P,) bool that touch it; the others pass through it."""
        return ~self._passing

    def relative(self, state: State) -> tuple[Tensor, Tensor]:
        """Return positions and velocities (B, P, 3) of the points in the frame of the moving obstacle."""
        points, velocities = self.relative_points(state.q, state.time), self.points.of(state.node_velocities)
        return points, velocities if self.path is None else velocities - self.path.velocity(state.time).unsqueeze(1)

    def relative_points(self, q: Tensor, time: Tensor) -> Tensor:
        """Return the points (B, P, 3) at q (B, n) and the times (B,) in the frame of the moving obstacle."""
        points = self.points.of(q[:, : 3 * self.body.n_nodes].unflatten(1, (-1, 3)))
        return points if self.path is None else points - self.path.displacement(time).unsqueeze(1)

    def displacement(self, time: Tensor) -> Tensor:
        """Return how far (B, 3) it has moved at the times (B,) [m]."""
        return time.new_zeros(len(time), 3) if self.path is None else self.path.displacement(time)

    def gap(self, q: Tensor, time: Tensor) -> Tensor:
        """Return the gaps (B, P) between the points and the obstacle at q (B, n) and the times (B,) [m]."""
        return self.clearance(self.shape.distance(self.relative_points(q, time)))

    def out_of_reach(self, q: Tensor, time: Tensor) -> Tensor:
        """Return the robots (B,) bool whose gaps are all above the tolerance at q (B, n) and the times (B,)."""
        return (self.gap(q, time) > self.law.response.tolerance).all(1)

    def without_overlap(self, q: Tensor, before: State, time: Tensor) -> Tensor:
        """Return q (B, n) without overlap at the times (B,), as a first iterate for barriers.

        Nodes of points that would overlap get the positions that they had `before`, where they were outside, moved
        along with the obstacle. Edges and triangles between these and other nodes may then overlap, so it is done again
        for their nodes; after `CARRYING_ROUNDS` all nodes of a robot with an overlap are moved.
        """
        count = 3 * self.body.n_nodes
        nodes = q[:, :count].unflatten(1, (-1, 3))
        moved = self.displacement(time) - self.displacement(before.time)
        carried = before.positions + moved.unsqueeze(1)
        for last in [False] * CARRYING_ROUNDS + [True] if self.points.between else [False]:
            overlaps = self.points.nodes_of(self.gap(q, time) <= 0)
            if _known_to_be_none(overlaps):
                break
            overlaps = overlaps.any(1, keepdim=True) if last else overlaps
            nodes = torch.where(overlaps.unsqueeze(2), carried, nodes)
            q = torch.cat([nodes.flatten(1), q[:, count:]], dim=1)
        return q

    def step_aside(self, q: Tensor, before: State, time: Tensor, unknowns: Unknowns) -> Tensor:
        """Return changes (B, n) of q by which nodes that clamps hold in part leave the obstacle at the times (B,).

        Such nodes cannot be carried along by `without_overlap`, but for the part in which they move. Here they go where
        their clamps let them, until they have the gaps that they had `before`: at half-spaces these gaps, at other
        convex shapes these or larger ones.

        Parameters
        ----------
        q : (B, n) that the robot can have, with all clamped dofs in their places.
        """
        start, count = q, self.body.n_nodes
        gaps_before = self.gap(before.q, before.time)
        for _ in range(CARRYING_ROUNDS if self.points.between else 1):
            gaps = self.gap(q, time)
            overlaps = gaps <= 0
            if _known_to_be_none(overlaps):
                break
            missing = torch.where(overlaps, gaps_before - gaps, 0.0).clamp(min=0)
            most = missing.amax(1, keepdim=True) if self.points.between else missing
            way = torch.where(self.points.nodes_of(overlaps), most, 0.0)
            normal = self.shape.distance_and_derivatives(self.relative_points(q, time)[:, :count])[1]
            along = unknowns.with_held(self.body.on_nodes(normal), 0.0)
            gained = (along[:, : 3 * count].unflatten(1, (-1, 3)) * normal).sum(2)  # of the gap, by a step of `along`
            share = torch.where(gained > LEAST_GAIN, way / gained, 0.0)
            q = q + self.body.on_nodes(share.unsqueeze(2).expand(-1, -1, 3)) * along
        return q - start

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the contact force (B, n) [N]."""
        if self.constrained:
            return torch.zeros_like(state.q)
        surface = self.surface(state)
        return self._of_points(self.force_of(surface), surface.lever)

    def force_of(self, surface: Surface) -> Tensor:
        """Return the forces (B, P, 3) on the points [N]; not for constraints."""
        return self.force_law.forces(surface.gap, surface.normal, surface.velocity, self._tangent(surface))

    def _tangent(self, surface: Surface) -> Tensor | None:
        """Return the tangents (B, P, 3) of rods, zero where there is none; None where friction needs none."""
        if self.rod_tangents is None or surface.axis is None:
            return None
        return self.rod_tangents.directions(surface.axis)

    def blocks(self) -> list[Block]:
        """Return the dofs of the blocks of derivatives.

        Each node's three coordinates, those of each edge and each triangle with points, then those that rolling adds.
        """
        if self.constrained:
            return []
        return self.points.blocks() + ([] if self.rolls is None else self.rolls.blocks())

    def derivative_count(self) -> int:
        """Return how many numbers its derivatives by position take, with the 3 x 3 blocks of points between nodes.

        These are summed into the blocks of edges and triangles, but stand in memory before.
        """
        between = 0 if self.constrained else self.points.count - self.body.n_nodes
        return super().derivative_count() + 9 * between

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivatives by position and by velocity (B, S, 3 k, 3 k) for each of `blocks`."""
        return [] if self.constrained else self._both(state)[1]

    def with_derivatives(self, state: State, control: Control) -> tuple[Tensor, Derivatives]:
        """Return the contact force (B, n) and its derivatives, from one evaluation of the distances."""
        is_unchanged = type(self).forward is Obstacle.forward and type(self).derivatives is Obstacle.derivatives
        if self.constrained or torch.is_grad_enabled() or not is_unchanged:
            return super().with_derivatives(state, control)
        return self._both(state)

    def _both(self, state: State) -> tuple[Tensor, Derivatives]:
        of_angles: Derivatives = []
        law, surface = self.force_law, self.surface(state)
        gap, normal, curvature, velocity, _, lever = surface
        tangent = self._tangent(surface)
        force, by_x, by_velocity = law.forces_and_derivatives(gap, normal, curvature, velocity, self.traction, tangent)
        if self.rolls is not None and by_velocity is not None:
            by_x, of_angles = self.rolls.derivatives(state, self.points.radius, surface, force, by_x, by_velocity)
        positions = self.points.derivatives(by_x)
        velocities = [None] * len(positions) if by_velocity is None else self.points.derivatives(by_velocity)
        return self._of_points(force, lever), [*zip(positions, velocities, strict=True), *of_angles]

    def _of_points(self, force: Tensor, lever: Tensor | None) -> Tensor:
        """Return the force (B, n) on all dofs of forces (B, P, 3) on the points, with torques on rods that roll."""
        on_nodes = self.body.on_nodes(self.points.onto_nodes(force))
        if self.rolls is None or lever is None:
            return on_nodes
        return on_nodes + self.rolls.torques(lever, force, self.body.n_dofs)

    def first_friction(self, state: State) -> Tensor:
        """Return tractions, normals and relative velocities (B, P, 9) at all points, also where they do not touch."""
        law, surface = self.force_law, self.surface(state)
        slide = surface.normal, surface.velocity
        return torch.cat([law.tractions(*slide), *slide], dim=2)

    def expected_friction(self, state: State, before: Tensor) -> Tensor:
        """Return linearised tractions at the next iterate, then normals and relative velocities there, (B, P, 9)."""
        traction, normal_before, velocity_before = before.split(3, dim=2)
        law, surface = self.force_law, self.surface(state)
        normal, velocity = surface.normal, surface.velocity
        tractions = law.expected_tractions(normal_before, velocity_before, velocity - velocity_before, traction)
        return torch.cat([tractions, normal, velocity], dim=2)

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the potential (B,) of the normal forces [J]."""
        if self.constrained:
            return torch.zeros_like(state.time)
        return self.force_law.energy(self.gap(state.q, state.time), self.force_law.constants).sum(1)


def _length_between_points(spacing: float, shape: Shape) -> float:
    """Return a spacing of points as a float; refuse what is no length, and any for a half-space."""
    length = positive_number(spacing, "Obstacle.spacing", "one length above 0 m for all robots")
    if isinstance(shape, HalfSpace):
        raise InputError(
            "Obstacle.spacing: what lies between nodes that are above a plane is above it, too; leave it out"
        )
    return length


def _known_to_be_none(flags: Tensor) -> bool:
    """Return whether none of some flags is True; False where asking would wait for a GPU, or end a recording."""
    return compiled_code_accepts(flags) and not traced() and not taping() and not bool(flags.any())
