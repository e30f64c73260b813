"""Forces by tensions along paths through a robot: what tendons and chambers share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchdismech.actuation.points import PointsAt, RoutePoints
from torchdismech.actuation.route import AtNodes, Carriers, Fixed, OnEdges, RestFrames
from torchdismech.actuation.tension import Paths, Segments
from torchdismech.errors import InputError
from torchdismech.forces.base import Force, number
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.forces.elements import refuse_other_count
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State

__all__ = ["Route", "RoutedForce", "per_route"]

Route = AtNodes | OnEdges | Fixed
TOUCHING = 1e-9  # points nearer to each other than this part of the path's length are refused as one point


class RoutedForce(Force):
    """Tensions in the straight segments between the points of routes.

    A segment pulls its two points together, and so the sections that carry them. A subclass gives the tensions and,
    where they depend on the segments, their derivatives.

    Parameters
    ----------
    routes : T routes, each a part or a list of parts in their order.

    Attributes
    ----------
    offset : (B or 1, K, 3) offsets of all points, route after route, from the nodes or edges that carry them, in the
        axes of the world, of the robot as built; for points fixed in space, the points themselves [m].
    """

    per_robot: tuple[str, ...] = ("offset",)
    compiles = True
    offset: Tensor
    route_points: RoutePoints
    paths: Paths

    def __init__(self, routes: Sequence[Route | Sequence[Route]]):
        super().__init__()
        if not isinstance(routes, Sequence):
            raise InputError(
                f"{type(self).__name__}: expected a list of routes, also of one alone, got {type(routes).__name__}"
            )
        self.routes = [list(route) if isinstance(route, Sequence) else [route] for route in routes]
        for part in (part for route in self.routes for part in route):
            if not isinstance(part, Route):
                raise InputError(
                    f"{type(self).__name__}: expected a list of routes of AtNodes, OnEdges or Fixed, got "
                    f"{type(part).__name__}"
                )
        if not self.routes:
            raise InputError(f"{type(self).__name__}: expected a list of routes, got none")

    def bind(self, body: Body) -> None:
        """Find what carries the points; refuse segments without length, and routes that do not touch the robot."""
        super().bind(body)
        frames = RestFrames(body)
        points: list[Carriers] = []
        offsets: list[Tensor] = []
        counts = []
        for k, route in enumerate(self.routes):
            carriers = [part.carriers(body) for part in route]
            of_route = [point for part in carriers for point in part]
            self._check_points(k, of_route)
            offsets += [
                frames.offsets(part, carriers_of_part) for part, carriers_of_part in zip(route, carriers, strict=True)
            ]
            points += of_route
            counts.append(len(of_route))
        robots = max(len(part) for part in offsets)
        offset = torch.cat([part.expand(robots, -1, -1) for part in offsets], dim=1)
        self.offset = nn.Parameter(offset.to(body.nodes), requires_grad=False)
        self.paths = Paths(counts, body.nodes)
        self.route_points = RoutePoints(body, points, self.paths, frames.axes)
        rest = self.rest_segments()
        short = rest.length <= TOUCHING * rest.total[:, self.paths.path_of]
        if bool(short.any()):
            m = int(short.any(0).nonzero()[0])
            k = int(self.paths.path_of[m])
            first = int(self.paths.starts[m]) - sum(counts[:k])
            problem = f"points {first} and {first + 1} are one point; leave one of them out"
            raise InputError(f"{type(self).__name__}, route {k}: {problem}")

    def _check_points(self, k: int, points: Sequence[Carriers]) -> None:
        """Refuse routes of fewer than two points, and routes without a point on the robot."""
        if len(points) < 2:
            raise InputError(f"{type(self).__name__}, route {k}: expected two points or more, got {len(points)}")
        if not any(point.nodes for point in points):
            raise InputError(
                f"{type(self).__name__}, route {k}: every point is fixed in space, so that it acts on nothing of the "
                "robot"
            )

    def rest_segments(self) -> Segments:
        """Return the segments of the robot as built."""
        return Segments.between(self.paths, self.route_points.at_rest(self.body, self.offset))

    def points(self, state: State) -> Tensor:
        """Return the points (B, K, 3) of the routes at a state [m], route after route.

        With the offsets that a control sets, call it within `with model.holding(state, control):`.
        """
        return self._at(state).points

    def lengths(self, state: State) -> Tensor:
        """Return the lengths (B, T) of the paths at a state [m]."""
        return self.segments(state).total

    def segments(self, state: State) -> Segments:
        """Return the segments at a state."""
        return Segments.between(self.paths, self.points(state))

    # ---- for subclasses to define ------------------------------------------------------------------------------

    @property
    def coupled(self) -> bool:
        """Whether the tension in a segment changes with other segments."""
        return False

    def tension_in(self, segments: Segments, rates: Tensor | None) -> Tensor:
        """Return the tensions (B, M) in the segments [N]; `rates` of the segments (B, M, 3) [m/s] come where `rubs`."""
        raise TypeError(f"{type(self).__name__} has to define tension_in(segments, rates)")

    def tension_derivatives(self, segments: Segments, rates: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the derivatives (B, M, M, 3) of coupled tensions by the segments and by their rates; None for zero."""
        raise TypeError(f"{type(self).__name__} has to define tension_derivatives(segments, rates)")

    @property
    def rubs(self) -> bool:
        """Whether tensions change with the rates of the segments."""
        return False

    # ---- the force ---------------------------------------------------------------------------------------------

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n)."""
        at = self._at(state)
        segments = Segments.between(self.paths, at.points)
        rates = self.route_points.differences(at.velocity(state)) if self.rubs else None
        pulls = segments.on_points(self.tension_in(segments, rates), at.points.shape[1])
        return at.generalised(pulls, state.q)

    def blocks(self) -> list[Block]:
        """Return blocks of each framed edge, of each segment and, where tensions are coupled, one of all dofs."""
        dofs, pairs = self.route_points.edge_dofs.cpu().numpy(), self.route_points.segment_dofs.cpu().numpy()
        union = self.route_points.union.cpu().numpy()[None]
        coupling = [Block(union, union)] if self.coupled else []
        return [Block(dofs, dofs), Block(pairs, pairs), *coupling]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the force's derivatives, block by block: by positions and angles, with friction also by velocities."""
        at = self._at(state)
        segments = Segments.between(self.paths, at.points)
        rates = self.route_points.differences(at.velocity(state)) if self.rubs else None
        tension = self.tension_in(segments, rates)
        ends = at.jacobian()
        segment_jacobian = self.route_points.segment_jacobian(ends)
        turning = segment_jacobian.mT @ (-tension[..., None, None] * segments.turned_by() @ segment_jacobian)
        blocks: Derivatives = [
            (at.second(segments.on_points(tension, at.points.shape[1])), None),
            (self.route_points.shared_sums(turning), None),
        ]
        if self.coupled:
            by_position = at.velocity_by_position(state) if self.rubs else None
            blocks.append(self._by_coupling(ends, segments, rates, by_position))
        return blocks

    def _by_coupling(
        self, ends: Tensor, segments: Segments, rates: Tensor | None, by_position: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the part of the force's derivatives that comes from tensions changing with the segments.

        These are (B, 1, D, D) by positions and angles, and as many by velocities, or None for those without friction.
        """
        segment_jacobian = self.route_points.differences(self.route_points.to_union(ends))  # (B, M, 3, D)
        unit_force = -(segments.direction.unsqueeze(-2) @ segment_jacobian).squeeze(-2)  # (B, M, D): by unit tension
        by_segments, by_rates = self.tension_derivatives(segments, rates)
        columns = segment_jacobian.flatten(1, 2)
        by_dofs = by_segments.flatten(2) @ columns
        if by_rates is None or by_position is None:
            return (unit_force.mT @ by_dofs).unsqueeze(1), None
        by_dofs = by_dofs + by_rates.flatten(2) @ self.route_points.differences(
            self.route_points.to_union(by_position)
        ).flatten(1, 2)
        by_speeds = by_rates.flatten(2) @ columns
        return (unit_force.mT @ by_dofs).unsqueeze(1), (unit_force.mT @ by_speeds).unsqueeze(1)

    def _at(self, state: State) -> PointsAt:
        return self.route_points.at(state, self.offset)


def per_route(value, what: str, count: int) -> Tensor:
    """Return a parameter of routes as a tensor: (), for each route (T,), or for each robot (B, 1) or (B, T)."""
    tensor = number(value, what)
    refuse_other_count(tensor, what, count, "routes")
    return tensor
