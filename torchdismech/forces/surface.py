"""Forces on the triangles of shells: drag and pressure."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, warn
from torchdismech.forces.base import Force, Timed, scalar
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.forces.elements import ElementForce, Loops, blocks_of, dofs_of_nodes, sizes_of, vectors_at
from torchdismech.geometry.checks import Indices, distinct_indices
from torchdismech.geometry.vec3 import Mat3, Vec3, side_by_side
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import Given, untrained

__all__ = ["AFTER", "NEXT", "Drag", "Pressure", "SurfaceForce", "area_vector"]

NEXT, AFTER = (1, 2, 0), (2, 0, 1)  # the corners that follow corners 0, 1, 2 counter-clockwise


class SurfaceForce(Force):
    """Base class of forces on triangles, which holds the choice of triangles; rods of the robot are not affected.

    Parameters
    ----------
    triangles : indices or a bool mask (F,) of the triangles; None: all.
    explicit : evaluate the force once at the start of the step and hold it.
    """

    compiles = True
    _chosen: Tensor
    _triangles: Tensor

    def __init__(self, triangles: Indices | None = None, explicit: bool = False):
        super().__init__(explicit)
        self.triangles = triangles

    def bind(self, body: Body) -> None:
        """Store the chosen triangles; refuse a robot without any, and a choice that does not fit."""
        super().bind(body)
        chosen = _chosen(self.triangles, len(body.triangles), type(self).__name__)
        self.register_buffer("_chosen", torch.as_tensor(chosen, device="cpu"), persistent=False)
        self.register_buffer("_triangles", torch.as_tensor(body.triangles[chosen], device="cpu"), persistent=False)


class _OnTriangles(ElementForce, SurfaceForce):
    """A force on the corners of triangles, evaluated by one compiled loop."""

    def bind(self, body: Body) -> None:
        """Store the chosen triangles and the dofs of their corners."""
        super().bind(body)
        self.register_buffer("_dofs", dofs_of_nodes(*self._triangles.cpu().numpy().T), persistent=False)


class Drag(_OnTriangles):
    """F_i = -1/2 rho C_d (A0/3) |w_i| w_i n with w_i = u_i . n, on each corner of each triangle.

    n is the present unit normal, u_i the velocity of the corner's node in a fluid at rest, A0 the triangle's rest area.
    Motion in the plane of a triangle is not resisted, and both sides of the surface feel the fluid. A triangle that
    has collapsed to a line has no normal: the force is NaN there, which the solver reports.

    Parameters
    ----------
    density : of the fluid rho, () or (B, 1), 0 or more [kg/m^3].
    coefficient : C_d, () or (B, 1), 0 or more.
    explicit : see `Force`.

    Raises
    ------
    InputError
        A number has another shape, is below zero or not finite; on binding, the robot has no triangles.
    """

    per_robot = not_negative = ("density", "coefficient")
    density: Tensor
    coefficient: Tensor

    def __init__(self, density: Given, coefficient: Given, explicit: bool = False):
        super().__init__(explicit=explicit)
        for name, value in (("density", density), ("coefficient", coefficient)):
            setattr(self, name, untrained(scalar(value, f"{type(self).__name__}.{name}", from_zero=True)))

    def blocks(self) -> list[Block]:
        """Return the blocks of each triangle's nine dofs, by position, then of each corner's three, by velocity."""
        corners = self._dofs.transpose(1, 2).cpu().numpy()
        return [*super().blocks(), *(Block(corner, corner) for corner in corners)]

    @property
    def _loops(self) -> Loops:
        return _DRAG

    def _loop_arguments(self, state: State) -> tuple[Tensor, ...]:
        return tuple(map(sizes_of, (self.body.face_area, self.density, self.coefficient)))

    def _placed(self, entries: Tensor) -> Derivatives:
        by_position, *by_velocity = entries.split([81, 9, 9, 9])
        return [(blocks_of(by_position, 9), None), *((None, blocks_of(part, 3)) for part in by_velocity)]


def _drag(
    q: Tensor, velocity: Tensor, dofs: Tensor, area: Tensor, density: Tensor, coefficient: Tensor
) -> list[Tensor]:
    """Return the components of the forces on the corners; arguments as `ElementForce` passes them to loops."""
    n = area_vector(*_corners(q, dofs)).unit()
    speeds = [u.dot(n) for u in _corners(velocity, dofs)]
    scale = -density * coefficient * area / 6
    return [x for w in speeds for x in n.times(scale * torch.abs(w) * w).components()]


def _drag_derivatives(
    q: Tensor, velocity: Tensor, dofs: Tensor, area: Tensor, density: Tensor, coefficient: Tensor
) -> list[Tensor]:
    """Return the derivatives by positions, through n, and those by each corner's own velocity.

    n turns only when a corner moves out of the plane: dn/dx_k = (s_k x n) n^T / |2 A|, with s_k the side opposite.
    """
    corners = _corners(q, dofs)
    twice_area = area_vector(*corners).times(2.0)
    size = torch.sqrt(twice_area.dot(twice_area))
    n = twice_area.times(1 / size)
    turns = [side.cross(n).times(1 / size) for side in _opposite(corners)]
    by_position: list[Tensor] = []
    by_velocity: list[Tensor] = []
    for u in _corners(velocity, dofs):
        w = u.dot(n)
        scale = -density * coefficient * area / 6 * torch.abs(w)
        by_corners = [(n.times(2 * u.dot(turn)) + turn.times(w)).times(scale) for turn in turns]
        by_position += side_by_side(*(Mat3.outer(column, n) for column in by_corners))
        by_velocity += Mat3.outer(n, n).times(2 * scale).components()
    return [*by_position, *by_velocity]


class Pressure(Timed, _OnTriangles):
    """F_i = p A n / 3 on each corner, A n the present area vector: follows the surface, at the times start < t <= stop.

    Positive pressure pushes along the outside-pointing normals: it is the pressure inside minus that outside. On a
    closed surface (a balloon, wound counter-clockwise seen from the outside) the force is the gradient of p V, V the
    enclosed volume: no total force, no total torque. On an open surface it is a jump of pressure across the shell. If
    clamps hold all nodes of its rim, it is also the gradient of p V, V the volume above the rim. Otherwise the
    derivative is not symmetric, as work done at the rim depends on the path. Once a model is built, `conservative` says
    whether there is a potential. The pressure is prescribed; it does not fall when the volume grows.

    Parameters
    ----------
    pressure : p, () or (B, 1) [Pa].
    triangles : indices or a bool mask (F,) of the triangles on which it acts; None: all.
    start, stop : [s], as for `PointForce`.
    """

    per_robot = ("pressure",)

    def __init__(
        self,
        pressure: Given,
        triangles: Indices | None = None,
        start: float = -math.inf,
        stop: float = math.inf,
    ):
        super().__init__(triangles)
        self.act_between(start, stop)
        self.pressure = untrained(scalar(pressure, "Pressure.pressure"))

    def bind(self, body: Body) -> None:
        """Store the triangles and their dofs; warn of closed surfaces that are wound inside out."""
        super().bind(body)
        turned = body.surface.inside_out(body.nodes.detach().cpu().numpy())
        turned = turned[np.isin(turned, self._chosen.cpu().numpy())]
        if len(turned):
            warn(
                f"Pressure: acts on a closed surface whose normals point inside, that of triangle {turned[0]}: above 0 "
                "it pushes inwards there; turn the surface's triangles, triangles[:, ::-1], for a pressure inside"
            )

    def learn_free(self, free: np.ndarray) -> None:
        """Set `conservative`: there is a potential if the surface is closed or its rim is clamped."""
        rim = self.body.surface.rim(self._chosen.cpu().numpy())
        self.conservative = not free[3 * rim[:, None] + np.arange(3)].any()
        self._apex = int(rim[0] if len(rim) else self._triangles[0, 0])

    def potential(self, state: State, control: Control) -> Tensor:
        """Return -p V (B,) [J], with V the volume of a closed surface, or between an open one and a node of its rim."""
        x = state.positions - state.positions[:, self._apex, None]
        first, second, third = x[:, self._triangles].unbind(2)
        volume = (first * torch.linalg.cross(second, third)).sum((1, 2)) / 6
        return -self._present(state).squeeze(1) * volume

    @property
    def _loops(self) -> Loops:
        return _PRESSURE

    def _loop_arguments(self, state: State) -> tuple[Tensor, ...]:
        return (self._present(state).t(),)

    def _placed(self, entries: Tensor) -> Derivatives:
        return [(blocks_of(entries, 9), None)]

    def _present(self, state: State) -> Tensor:
        """Return the pressure (B, 1) at the state's time."""
        return self.pressure * self.on(state.time)[:, None]


def _pressure(q: Tensor, velocity: Tensor, dofs: Tensor, pressure: Tensor) -> tuple[Tensor, ...]:
    """Return the components of the forces on the corners, equal at all three; arguments as for other loops."""
    return 3 * area_vector(*_corners(q, dofs)).times(pressure / 3).components()


def _pressure_derivatives(q: Tensor, velocity: Tensor, dofs: Tensor, pressure: Tensor) -> list[Tensor]:
    """Return the derivatives of the three forces by the corners' positions."""
    return 3 * side_by_side(*(Mat3.cross(side).times(pressure / 6) for side in _opposite(_corners(q, dofs))))


def _corners(values: Tensor, dofs: Tensor) -> list[Vec3]:
    """Return the positions or velocities of the three corners, from q or velocity (n, B)."""
    return [vectors_at(values, corner) for corner in dofs.unbind(0)]


def area_vector(first: Vec3, second: Vec3, third: Vec3) -> Vec3:
    """Return the area vectors [m^2] of triangles with these corners, along the normals that point outside."""
    return (second - first).cross(third - first).times(0.5)


def _opposite(corners: list[Vec3]) -> list[Vec3]:
    """Return the side s_k opposite to each corner, walked counter-clockwise: 2 dA/dx_k v = s_k x v."""
    return [corners[after] - corners[following] for following, after in zip(NEXT, AFTER, strict=True)]


_DRAG = Loops("drag on shells", _drag, _drag_derivatives, 9)
_PRESSURE = Loops("pressure on shells", _pressure, _pressure_derivatives, 9)


def _chosen(triangles: Indices | None, count: int, what: str) -> np.ndarray:
    """Return the indices of the chosen triangles among `count`."""
    if not count:
        raise InputError(f"{what}: acts on the triangles of shells, and the robot has none; add a shell to it")
    if triangles is None:
        return np.arange(count)
    return distinct_indices(triangles, count, f"{what}.triangles")
