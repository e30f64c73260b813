"""Forces on the triangles of shells: drag, pressure, the thrust of a bell."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.body import Body
from torchdismech.errors import InputError
from torchdismech.forces.base import Force, acting, check_interval, scalar, vector
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.forces.elements import ElementForce, Loops, blocks_of, dofs_of_nodes, sizes_of, vectors_at
from torchdismech.geometry.checks import Indices, checked_indices
from torchdismech.geometry.frames import unit
from torchdismech.geometry.surface import find_surface
from torchdismech.geometry.vec3 import Mat3, Vec3, side_by_side
from torchdismech.state import Control, State

__all__ = ["Drag", "Pressure", "Thrust"]

NEXT, AFTER = (1, 2, 0), (2, 0, 1)  # the corners that follow corners 0, 1, 2 counter-clockwise


class SurfaceForce(Force):
    """What forces on triangles share: which triangles they act on. A robot may have rods too; they feel nothing.

    Parameters
    ----------
    triangles : indices or a bool mask (F,) of the triangles; None: all.
    explicit : evaluate the force once at the start of the step and hold it.
    """

    compiles = True
    _triangles: Tensor

    def __init__(self, triangles: Indices | None = None, explicit: bool = False):
        super().__init__(explicit)
        self.triangles = triangles

    def bind(self, body: Body) -> None:
        """Find the triangles; refuse a robot without any, and a choice that does not fit."""
        super().bind(body)
        chosen = _chosen(self.triangles, len(body.triangles), type(self).__name__)
        self.register_buffer("_chosen", torch.as_tensor(chosen), persistent=False)
        self.register_buffer("_triangles", torch.as_tensor(body.triangles[chosen]), persistent=False)


class _OnTriangles(ElementForce, SurfaceForce):
    """A force on the corners of triangles, by one loop."""

    def bind(self, body: Body) -> None:
        """Find the triangles and their dofs."""
        super().bind(body)
        self.register_buffer("_dofs", dofs_of_nodes(*self._triangles.cpu().numpy().T), persistent=False)

    def _rows(self) -> list[np.ndarray]:
        """Return the dofs (F, 3) of each corner."""
        return list(self._dofs.transpose(1, 2).cpu().numpy())


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

    def __init__(self, density, coefficient, explicit: bool = False):
        super().__init__(explicit=explicit)
        for name, value in (("density", density), ("coefficient", coefficient)):
            given = scalar(value, f"{type(self).__name__}.{name}", from_zero=True)
            setattr(self, name, nn.Parameter(given, requires_grad=False))

    def blocks(self) -> list[Block]:
        """Return the triangles' nine dofs against themselves, and each corner against itself."""
        corners = self._rows()
        dofs = np.concatenate(corners, axis=1)
        return [Block(dofs, dofs), *(Block(corner, corner) for corner in corners)]

    @property
    def _loops(self) -> Loops:
        return _DRAG

    def _given(self, state: State) -> tuple[Tensor, ...]:
        return tuple(map(sizes_of, (self.body.face_area, self.density, self.coefficient)))

    def _placed(self, found: Tensor) -> Derivatives:
        by_position, *by_velocity = found.split([81, 9, 9, 9])
        return [(blocks_of(by_position, 9), None), *((None, blocks_of(part, 3)) for part in by_velocity)]


def _drag(
    q: Tensor, velocity: Tensor, dofs: Tensor, area: Tensor, density: Tensor, coefficient: Tensor
) -> list[Tensor]:
    """Return the forces on the corners by components; arguments as loops are given them."""
    n = _area(*_corners(q, dofs)).unit()
    speeds = [u.dot(n) for u in _corners(velocity, dofs)]
    scale = -density * coefficient * area / 6
    return [x for w in speeds for x in n.times(scale * torch.abs(w) * w).components()]


def _drag_derivatives(
    q: Tensor, velocity: Tensor, dofs: Tensor, area: Tensor, density: Tensor, coefficient: Tensor
) -> list[Tensor]:
    """Return the derivatives by positions, through n, and those by each corner's own velocity.

    A corner that moves within the plane does not turn it: dn/dx_k = (s_k x n) n^T / |2 A|, s_k the side opposite.
    """
    corners = _corners(q, dofs)
    twice_area = _area(*corners).times(2.0)
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


class Pressure(_OnTriangles):
    """F_i = p A n / 3 on each corner, A n the present area vector: follows the surface, at the times start < t <= stop.

    Positive pressure pushes along the outside-pointing normals: it is the pressure inside minus that outside. On a
    closed surface (a balloon, wound counter-clockwise seen from the outside) the force is the gradient of p V, V the
    enclosed volume: no total force, no total torque. On an open surface it is that of a jump of pressure across the
    shell; its derivative is then not symmetric, as work done at the rim depends on the path. The pressure is given; it
    does not fall when the volume grows.

    Parameters
    ----------
    pressure : p, () or (B, 1) [Pa].
    triangles : indices or a bool mask (F,) of the triangles that feel it; None: all.
    start, stop : [s]; open at the start, as in `PointForce`.
    """

    per_robot = ("pressure",)

    def __init__(
        self,
        pressure,
        triangles: Indices | None = None,
        start: float = -math.inf,
        stop: float = math.inf,
    ):
        super().__init__(triangles)
        self.start, self.stop = check_interval(start, stop, "Pressure")
        self.pressure = nn.Parameter(scalar(pressure, "Pressure.pressure"), requires_grad=False)

    def blocks(self) -> list[Block]:
        """Return the triangles' nine dofs against themselves."""
        dofs = np.concatenate(self._rows(), axis=1)
        return [Block(dofs, dofs)]

    @property
    def _loops(self) -> Loops:
        return _PRESSURE

    def _given(self, state: State) -> tuple[Tensor, ...]:
        return (self._present(state).t(),)

    def _placed(self, found: Tensor) -> Derivatives:
        return [(blocks_of(found, 9), None)]

    def _present(self, state: State) -> Tensor:
        """Return the pressure (B, 1) at the state's time."""
        return self.pressure * acting(state.time, self.start, self.stop)[:, None]


def _pressure(q: Tensor, velocity: Tensor, dofs: Tensor, pressure: Tensor) -> tuple[Tensor, ...]:
    """Return the forces on the corners by components, which are all the same; arguments as loops are given them."""
    return 3 * _area(*_corners(q, dofs)).times(pressure / 3).components()


def _pressure_derivatives(q: Tensor, velocity: Tensor, dofs: Tensor, pressure: Tensor) -> list[Tensor]:
    """Return the derivatives of the three forces by the corners' positions."""
    return 3 * side_by_side(*(Mat3.cross(side).times(pressure / 6) for side in _opposite(_corners(q, dofs))))


class Thrust(SurfaceForce):
    """The thrust of a bell (a jellyfish) that expels fluid through its rim: proportional to the volume it expels.

    The volume V is that between the bell's triangles and the cone from the rim to the mean of the rim's nodes. With
    the expelled flow e = -dV/dt, from the velocities of the nodes,

        thrust = coefficient * e * tanh(|e| / smoothing) * (1 if e > 0 else refill)

    along the axis, spread over the bell's nodes in proportion to the rest area of their triangles. A jet of density rho
    that leaves at the speed c gives coefficient = rho c.

    It couples all nodes of the bell. So by default it is explicit, held over a step at its value at the start: no
    entries in the matrix, but steps have to be short against the stroke. With explicit=False the derivatives are exact
    and the matrix is dense over the bell's nodes.

    Parameters
    ----------
    coefficient : thrust per flow, () or (B, 1) [N s/m^3].
    smoothing : flow [m^3/s] below which the thrust fades, quadratically at last: smooth at rest. Take some percent of
        the largest flow.
    axis : "body": the direction of the bell's total area vector (away from the opening), which turns with it; or a
        fixed direction, (3,) or (B, 3), of any length.
    refill : share of the thrust that acts backwards while the bell refills, () or (B, 1), from 0 to 1.
    triangles : indices or a bool mask (F,) of the bell's triangles, which need exactly one rim; None: all.
    """

    per_robot = ("coefficient", "refill", "axis")
    axis: nn.Parameter | None
    _chosen: Tensor
    _nodes: Tensor
    _corners: Tensor
    _rim: Tensor

    def __init__(
        self,
        coefficient,
        smoothing: float,
        axis="body",
        refill=0.0,
        triangles: Indices | None = None,
        explicit: bool = True,
    ):
        super().__init__(triangles, explicit)
        if not (math.isfinite(smoothing) and smoothing > 0):
            raise InputError(f"Thrust.smoothing: expected a flow above 0 m^3/s, got {smoothing}")
        self.coefficient = nn.Parameter(scalar(coefficient, "Thrust.coefficient"), requires_grad=False)
        self.smoothing = float(smoothing)
        self.axis = None if _is_body(axis) else nn.Parameter(_direction(axis), requires_grad=False)
        self.refill = nn.Parameter(scalar(refill, "Thrust.refill"), requires_grad=False)
        if bool(((self.refill < 0) | (self.refill > 1)).any()):
            raise InputError(f"Thrust.refill: expected a share from 0 to 1, got {refill}")

    def bind(self, body: Body) -> None:
        """Number the bell's nodes and find its rim."""
        super().bind(body)
        triangles = self._triangles.cpu().numpy()
        nodes, corners = np.unique(triangles, return_inverse=True)
        self.register_buffer("_nodes", torch.as_tensor(nodes), persistent=False)
        self.register_buffer("_corners", torch.as_tensor(corners.reshape(-1, 3)), persistent=False)
        rim = np.searchsorted(nodes, _one_rim(triangles))
        self.register_buffer("_rim", torch.as_tensor(rim), persistent=False)

    def volume(self, state: State) -> Tensor:
        """Return the volume (B,) between the bell and its rim [m^3]."""
        y = self._about_rim(state.positions)[:, self._corners]
        return (y * _volume_gradient(y)).sum((1, 2, 3)) / 3

    def expelled(self, state: State) -> Tensor:
        """Return the flow (B,) that the bell expels, minus the rate of its volume [m^3/s]."""
        y, v = (self._about_rim(z)[:, self._corners] for z in (state.positions, state.node_velocities))
        return -(v * _volume_gradient(y)).sum((1, 2, 3))

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the thrust on the bell's nodes (B, n)."""
        thrust = self._thrust(self.expelled(state).unsqueeze(-1))
        load = (thrust * self._share()).unsqueeze(-1) * self._direction(state).unsqueeze(-2)
        total = torch.zeros_like(state.positions)
        return self.body.on_nodes(total.index_add(1, self._nodes, load))

    def blocks(self) -> list[Block]:
        """Return one dense block over the bell's nodes."""
        dofs = (3 * self._nodes.cpu().numpy()[:, None] + np.arange(3)).reshape(1, -1)
        return [Block(dofs, dofs)]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the dense derivatives by the positions and the velocities of the bell's nodes."""
        y, v = (self._about_rim(z)[:, self._corners] for z in (state.positions, state.node_velocities))
        by_v = _volume_gradient(y)
        by_y = (
            torch.linalg.cross(v[:, :, NEXT], y[:, :, AFTER]) + torch.linalg.cross(y[:, :, NEXT], v[:, :, AFTER])
        ) / 6
        flow = -(v * by_v).sum((1, 2, 3)).unsqueeze(-1)
        share = self._share().unsqueeze(-1)
        unit_load = (share * self._direction(state).unsqueeze(-2)).expand(state.batch, -1, -1).flatten(1)  # (B, 3 nb)
        by_flow = (self._slope(flow) * unit_load).unsqueeze(-1)
        position, velocity = (-by_flow * self._at_nodes(g).flatten(1).unsqueeze(1) for g in (by_y, by_v))
        if self.axis is None:
            turned = (self._thrust(flow) * share.squeeze(-1))[..., None, None] * self._axis_gradient(state).unsqueeze(1)
            position = position + turned.flatten(1, 2)
        return [(position.unsqueeze(1), velocity.unsqueeze(1))]

    def _thrust(self, flow: Tensor) -> Tensor:
        """Return the thrust [N] of a flow, both (B, 1)."""
        return self._gain(flow) * flow * torch.tanh(flow.abs() / self.smoothing)

    def _slope(self, flow: Tensor) -> Tensor:
        """Return the derivative of the thrust by the flow (B, 1)."""
        size = flow.abs() / self.smoothing
        fade = torch.tanh(size)
        return self._gain(flow) * (fade + size * (1 - fade * fade))

    def _gain(self, flow: Tensor) -> Tensor:
        return self.coefficient * torch.where(flow > 0, torch.ones_like(flow), self.refill)

    def _share(self) -> Tensor:
        """Return each node's share of the bell's rest area (.., nb)."""
        area = self.body.face_area[..., self._chosen]
        corners = area.repeat_interleave(3, dim=-1) / 3
        share = area.new_zeros(*area.shape[:-1], len(self._nodes)).index_add(-1, self._corners.flatten(), corners)
        return share / area.sum(-1, keepdim=True)

    def _direction(self, state: State) -> Tensor:
        """Return the unit axis, (3,) or (B, 3)."""
        if self.axis is not None:
            return unit(self.axis)
        return unit(_area_vector(state.positions[:, self._triangles]).sum(1))

    def _axis_gradient(self, state: State) -> Tensor:
        """Return the derivative (B, 3, 3 nb) of the body's axis by the positions of the bell's nodes."""
        x = state.positions[:, self._triangles]
        total = _area_vector(x).sum(1)
        size = torch.linalg.vector_norm(total, dim=-1)[:, None, None]
        a = total.unsqueeze(-1) / size
        across = (torch.eye(3, dtype=a.dtype, device=a.device) - a @ a.mT) / size
        by_corner = (0.5 * across[:, None, None] @ _skew(_sides(x))).flatten(1, 2)  # (B, 3 F, 3, 3)
        by_node = x.new_zeros(len(x), len(self._nodes), 3, 3).index_add(1, self._corners.flatten(), by_corner)
        return by_node.transpose(1, 2).flatten(2, 3)

    def _about_rim(self, values: Tensor) -> Tensor:
        """Return positions or velocities of the bell's nodes (B, nb, 3) minus their mean over the rim."""
        own = values[:, self._nodes]
        return own - own[:, self._rim].mean(1, keepdim=True)

    def _at_nodes(self, gradient: Tensor) -> Tensor:
        """Return the gradient (B, nb, 3) by nodes of one by `_about_rim` at the corners (B, F, 3, 3)."""
        by_node = gradient.new_zeros(gradient.shape[0], len(self._nodes), 3)
        by_node = by_node.index_add(1, self._corners.flatten(), gradient.flatten(1, 2))
        by_mean = -by_node.sum(1, keepdim=True) / len(self._rim)
        return by_node.index_add(1, self._rim, by_mean.expand(-1, len(self._rim), -1))


# ---- triangles by components ---------------------------------------------------------------------------------------


def _corners(values: Tensor, dofs: Tensor) -> list[Vec3]:
    """Return positions or velocities of the corners, of those of all dofs."""
    return [vectors_at(values, corner) for corner in dofs.unbind(0)]


def _area(first: Vec3, second: Vec3, third: Vec3) -> Vec3:
    """Return the area vectors [m^2], pointing outside."""
    return (second - first).cross(third - first).times(0.5)


def _opposite(corners: list[Vec3]) -> list[Vec3]:
    """Return the side s_k opposite to each corner, walked counter-clockwise: 2 dA/dx_k v = s_k x v."""
    return [corners[after] - corners[following] for following, after in zip(NEXT, AFTER, strict=True)]


_DRAG = Loops("drag on shells", _drag, _drag_derivatives, 9)
_PRESSURE = Loops("pressure on shells", _pressure, _pressure_derivatives, 9)


# ---- triangles: corners are (B, F, 3, 3), the corner before the component ------------------------------------------


def _area_vector(x: Tensor) -> Tensor:
    """Return the area vectors (B, F, 3) of triangles [m^2]."""
    return _area(*(Vec3.of(corner) for corner in x.unbind(2))).stacked()


def _sides(x: Tensor) -> Tensor:
    """Return the side opposite to each corner, as `_opposite` does."""
    return x[:, :, AFTER] - x[:, :, NEXT]


def _volume_gradient(y: Tensor) -> Tensor:
    """Return the derivative by each corner of the volume between a triangle and the origin."""
    return torch.linalg.cross(y[:, :, NEXT], y[:, :, AFTER]) / 6


def _skew(vector: Tensor) -> Tensor:
    """Return the matrices (..., 3, 3) that multiply by `vector` (..., 3) from the left, as a vector product."""
    eye = torch.eye(3, dtype=vector.dtype, device=vector.device)
    return torch.linalg.cross(vector.unsqueeze(-1), eye.expand(*vector.shape, 3), dim=-2)


# ---- parameters and choices ----------------------------------------------------------------------------------------


def _is_body(axis) -> bool:
    if isinstance(axis, str) and axis != "body":
        raise InputError(f"Thrust.axis: expected 'body' or a direction (3,) or (B, 3), got {axis!r}")
    return isinstance(axis, str)


def _direction(axis) -> Tensor:
    direction = vector(axis, "Thrust.axis")
    if bool((direction == 0).all(-1).any()):
        raise InputError(f"Thrust.axis: expected 'body' or a direction (3,) or (B, 3) that is not zero, got {axis}")
    return direction


def _chosen(triangles: Indices | None, count: int, what: str) -> np.ndarray:
    """Return the indices of the chosen triangles among `count`."""
    if not count:
        raise InputError(f"{what}: acts on the triangles of shells, and the robot has none; add a shell to it")
    if triangles is None:
        return np.arange(count)
    index = checked_indices(triangles, count, f"{what}.triangles")
    unique, times = np.unique(index, return_counts=True)
    if len(unique) < len(index):
        raise InputError(f"{what}.triangles: expected each once, got {unique[times > 1].tolist()[:10]} too often")
    return index


def _one_rim(triangles: np.ndarray) -> np.ndarray:
    """Return the nodes of the only rim of a bell, walking along it; refuse a bell with none or several."""
    surface = find_surface(triangles)
    border = np.delete(surface.edges, surface.hinge_edges, axis=0).tolist()
    if not border:
        raise InputError(
            "Thrust: the bell is closed, nothing can leave it; choose its triangles so that they have a rim"
        )
    following, rim = dict(border), [border[0][0]]
    while following[rim[-1]] != rim[0] and len(rim) < len(border):
        rim.append(following[rim[-1]])
    if len(rim) != len(border) or len(following) != len(border):  # further rims, or one that meets itself at a node
        raise InputError(
            f"Thrust: the bell needs exactly one rim, and that must not touch itself; of {len(border)} border edges "
            f"{len(rim)} follow from node {rim[0]}; choose its triangles accordingly"
        )
    return np.array(rim)
