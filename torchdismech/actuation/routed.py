"""Forces along a path through a robot, whose points pull together: what tendons and chambers share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchdismech.actuation.path import Path, PointsAt
from torchdismech.actuation.route import AtNodes, Fixed, OnEdges, RestFrames
from torchdismech.actuation.tension import Segments
from torchdismech.body import Body
from torchdismech.errors import InputError
from torchdismech.forces.base import Force
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.state import Control, State

__all__ = ["Route", "RoutedForce"]

Route = AtNodes | OnEdges | Fixed
TOUCHING = 1e-9  # part of a path's length below which two of its points are one


class RoutedForce(Force):
    """Tensions in the straight segments between the points of a route.

    A segment pulls its two points together, and these the sections that carry them: a subclass says by what tension,
    and how it changes with the segments where it does.

    Parameters
    ----------
    route : the parts of the route, in their order.

    Attributes
    ----------
    offset : (B or 1, K, 3) of all points from the nodes or edges that carry them, in the axes of the world, of the
        robot as built; where points are in space, the points themselves [m].
    """

    per_robot: tuple[str, ...] = ("offset",)
    compiles = True
    offset: Tensor
    path: Path

    def __init__(self, route: Sequence[Route]):
        super().__init__()
        self.route = [route] if isinstance(route, Route) else list(route)
        for part in self.route:
            if not isinstance(part, Route):
                raise InputError(
                    f"{type(self).__name__}.route: expected AtNodes, OnEdges or Fixed, got {type(part).__name__}"
                )

    def bind(self, body: Body) -> None:
        """Find what carries the points; refuse routes without length, and those that pass the robot by."""
        super().bind(body)
        name, frames = type(self).__name__, RestFrames(body)
        carriers = [part.carriers(body) for part in self.route]
        points = [point for part in carriers for point in part]
        if len(points) < 2:
            raise InputError(f"{name}.route: expected two points or more, got {len(points)}")
        if not any(point.nodes for point in points):
            raise InputError(f"{name}.route: every point is fixed in space, so that it acts on nothing of the robot")
        given = [frames.offsets(part, own) for part, own in zip(self.route, carriers, strict=True)]
        robots = max(len(part) for part in given)
        offset = torch.cat([part.expand(robots, -1, -1) for part in given], dim=1)
        self.offset = nn.Parameter(offset.to(body.nodes), requires_grad=False)
        self.path = Path(body, points, frames.axes)
        length = self.rest_segments().length
        if bool((length <= TOUCHING * length.sum(1, keepdim=True)).any()):
            k = int((length <= TOUCHING * length.sum(1, keepdim=True)).any(0).nonzero()[0])
            raise InputError(f"{name}.route: points {k} and {k + 1} are one point; leave one of them out")

    def rest_segments(self) -> Segments:
        """Return the segments of the robot as built."""
        return Segments.between(self.path.at_rest(self.body, self.offset))

    def points(self, state: State) -> Tensor:
        """Return the points (B, K, 3) of the route at a state [m]."""
        return self._at(state).points

    def length(self, state: State) -> Tensor:
        """Return the length (B,) of the path at a state [m]."""
        return Segments.between(self.points(state)).length.sum(1)

    # ---- what a subclass says ----------------------------------------------------------------------------------

    @property
    def coupled(self) -> bool:
        """Whether the tension in a segment changes with other segments."""
        return False

    def tension_in(self, segments: Segments, rates: Tensor | None) -> Tensor:
        """Return the tensions (B, M) [N], for rates of the segments (B, M, 3) where `rubs`."""
        raise TypeError(f"{type(self).__name__} has to define tension_in(segments, rates)")

    def tension_derivatives(self, segments: Segments, rates: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return those of coupled tensions by the segments and by their rates (B, M, M, 3); None for zero."""
        raise TypeError(f"{type(self).__name__} has to define tension_derivatives(segments, rates)")

    @property
    def rubs(self) -> bool:
        """Whether tensions change with the rates of the segments."""
        return False

    # ---- the force ---------------------------------------------------------------------------------------------

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n)."""
        at = self._at(state)
        segments = Segments.between(at.points)
        rates = at.velocity(state).diff(dim=1) if self.rubs else None
        local = at.generalised(segments.on_points(self.tension_in(segments, rates)))
        return torch.zeros_like(state.q).index_add(1, self.path.dofs.flatten(), local.flatten(1))

    def blocks(self) -> list[Block]:
        """Return each point's dofs, those of each segment, and, where tensions are coupled, of the whole path."""
        dofs = self.path.dofs.cpu().numpy()
        pairs = self.path.segment_dofs.cpu().numpy()
        whole = [Block(self.path.union[None], self.path.union[None])] if self.coupled else []
        return [Block(dofs, dofs), Block(pairs, pairs), *whole]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return those by positions and angles, with friction also by velocities."""
        at = self._at(state)
        segments = Segments.between(at.points)
        rates = at.velocity(state).diff(dim=1) if self.rubs else None
        tension = self.tension_in(segments, rates)
        ends = at.jacobian()
        stretch = self.path.stretch(ends)
        turning = stretch.mT @ (-tension[..., None, None] * segments.turned_by() @ stretch)
        found: Derivatives = [
            (at.second(segments.on_points(tension)), None),
            (turning, None),
        ]
        if self.coupled:
            by_position = at.velocity_by_position(state) if self.rubs else None
            found.append(self._by_coupling(ends, segments, rates, by_position))
        return found

    def _by_coupling(
        self, ends: Tensor, segments: Segments, rates: Tensor | None, by_position: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return what of the derivatives (B, 1, D, D) comes from tensions that change with other segments."""
        stretch = self.path.spread(ends).diff(dim=1)  # (B, M, 3, D)
        acting = -(segments.direction.unsqueeze(-2) @ stretch).squeeze(-2)  # (B, M, D): of a tension on the dofs
        by_segments, by_rates = self.tension_derivatives(segments, rates)
        columns = stretch.flatten(1, 2)
        by_dofs = by_segments.flatten(2) @ columns
        if by_rates is None or by_position is None:
            return (acting.mT @ by_dofs).unsqueeze(1), None
        by_dofs = by_dofs + by_rates.flatten(2) @ self.path.spread(by_position).diff(dim=1).flatten(1, 2)
        by_speeds = by_rates.flatten(2) @ columns
        return (acting.mT @ by_dofs).unsqueeze(1), (acting.mT @ by_speeds).unsqueeze(1)

    def _at(self, state: State) -> PointsAt:
        return self.path.at(state, self.offset)
