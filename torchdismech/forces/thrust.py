"""Thrust: the force on a bell, such as a jellyfish's, that expels fluid."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, positive_number, warn
from torchdismech.forces.base import scalar, vector
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.forces.surface import AFTER, NEXT, SurfaceForce, area_vector
from torchdismech.geometry.checks import Indices
from torchdismech.geometry.frames import cross_matrix, unit
from torchdismech.geometry.surface import find_surface
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import Given, untrained

__all__ = ["Thrust"]

FLAT = 1e-6  # volume over size^3 below which a bell counts as flat, up to rounding, also in float32


class Thrust(SurfaceForce):
    """The thrust of a bell (a jellyfish) that expels fluid through its rim: proportional to the volume it expels.

    The volume V is that between the bell's triangles and the cone from the rim to the mean of the rim's nodes, above
    zero where the triangles' normals point out of the bell; a bell that is built inside out is warned of. With the
    expelled flow e = -dV/dt, from the velocities of the nodes,

        thrust = coefficient * e * tanh(|e| / smoothing) * (1 if e > 0 else refill)

    along the axis, spread over the bell's nodes in proportion to the rest area of their triangles. A jet of density rho
    that leaves at the speed c gives coefficient = rho c.

    It couples all nodes of the bell. So by default it is explicit, held over a step at its value at the start: it adds
    no entries to the matrix, but steps have to be short compared with a stroke. With explicit=False the derivatives are
    exact and the matrix is dense over the bell's nodes.

    Parameters
    ----------
    coefficient : thrust per flow, () or (B, 1) [N s/m^3].
    smoothing : flow [m^3/s] below which the thrust fades out, quadratically near zero, so that it is smooth at rest.
        Take some percent of the largest flow.
    axis : "body": the direction of the bell's total area vector (away from the opening), which turns with the bell; or
        a fixed direction, (3,) or (B, 3), of any length.
    refill : fraction of the thrust that acts backwards while the bell refills, () or (B, 1), from 0 to 1.
    triangles : indices or a bool mask (F,) of the bell's triangles, which need exactly one rim; None: all.
    explicit : see `Force`.
    """

    per_robot = ("coefficient", "refill", "axis")
    axis: nn.Parameter | None
    _chosen: Tensor
    _nodes: Tensor
    _corners: Tensor
    _rim: Tensor

    def __init__(
        self,
        coefficient: Given,
        smoothing: float,
        axis: Given | str = "body",
        refill: Given = 0.0,
        triangles: Indices | None = None,
        explicit: bool = True,
    ):
        super().__init__(triangles, explicit)
        self.smoothing = positive_number(smoothing, "Thrust.smoothing", "a flow above 0 m^3/s")
        self.coefficient = untrained(scalar(coefficient, "Thrust.coefficient"))
        self.axis = None if _is_body(axis) else untrained(_direction(axis))
        self.refill = untrained(scalar(refill, "Thrust.refill"))
        if bool(((self.refill < 0) | (self.refill > 1)).any()):
            raise InputError(f"Thrust.refill: expected a share from 0 to 1, got {refill}")

    def bind(self, body: Body) -> None:
        """Number the bell's nodes and find its rim; warn of a bell that is wound inside out."""
        super().bind(body)
        triangles = self._triangles.cpu().numpy()
        nodes, corners = np.unique(triangles, return_inverse=True)
        self.register_buffer("_nodes", torch.as_tensor(nodes, device="cpu"), persistent=False)
        self.register_buffer("_corners", torch.as_tensor(corners.reshape(-1, 3), device="cpu"), persistent=False)
        rim = np.searchsorted(nodes, _one_rim(triangles))
        self.register_buffer("_rim", torch.as_tensor(rim, device="cpu"), persistent=False)
        rest = body.nodes[None].detach()
        if float(self._volume(rest)) < -FLAT * float(self._about_rim(rest).abs().max()) ** 3:
            warn(
                "Thrust: the triangles' normals point into the bell, so that it would expel what it takes in: turn the "
                "triangles, triangles[:, ::-1]"
            )

    def volume(self, state: State) -> Tensor:
        """Return the volume (B,) [m^3] between the bell and the cone over its rim."""
        return self._volume(state.positions)

    def expelled(self, state: State) -> Tensor:
        """Return the flow (B,) [m^3/s] that the bell expels: minus the rate of change of its volume."""
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

    def _volume(self, positions: Tensor) -> Tensor:
        y = self._about_rim(positions)[:, self._corners]
        return (y * _volume_gradient(y)).sum((1, 2, 3)) / 3

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
        return unit(_area_vectors(state.positions[:, self._triangles]).sum(1))

    def _axis_gradient(self, state: State) -> Tensor:
        """Return the derivative (B, 3, 3 nb) of the body's axis by the positions of the bell's nodes."""
        x = state.positions[:, self._triangles]
        total = _area_vectors(x).sum(1)
        size = torch.linalg.vector_norm(total, dim=-1)[:, None, None]
        a = total.unsqueeze(-1) / size
        across = (torch.eye(3, dtype=a.dtype, device=a.device) - a @ a.mT) / size
        by_corner = (0.5 * across[:, None, None] @ cross_matrix(_sides(x))).flatten(1, 2)  # (B, 3 F, 3, 3)
        by_node = x.new_zeros(len(x), len(self._nodes), 3, 3).index_add(1, self._corners.flatten(), by_corner)
        return by_node.transpose(1, 2).flatten(2, 3)

    def _about_rim(self, values: Tensor) -> Tensor:
        """Return positions or velocities of the bell's nodes (B, nb, 3) minus their mean over the rim."""
        own = values[:, self._nodes]
        return own - own[:, self._rim].mean(1, keepdim=True)

    def _at_nodes(self, gradient: Tensor) -> Tensor:
        """Return the gradient (B, nb, 3) by the bell's nodes, from that by `_about_rim` at corners (B, F, 3, 3)."""
        by_node = gradient.new_zeros(gradient.shape[0], len(self._nodes), 3)
        by_node = by_node.index_add(1, self._corners.flatten(), gradient.flatten(1, 2))
        by_mean = -by_node.sum(1, keepdim=True) / len(self._rim)
        return by_node.index_add(1, self._rim, by_mean.expand(-1, len(self._rim), -1))


# ---- triangles: corners are (B, F, 3, 3), in the order triangle, corner, component ---------------------------------


def _area_vectors(x: Tensor) -> Tensor:
    """Return the area vectors (B, F, 3) of triangles [m^2]."""
    return area_vector(*(Vec3.of(corner) for corner in x.unbind(2))).stacked()


def _sides(x: Tensor) -> Tensor:
    """Return the side opposite to each corner (B, F, 3, 3), from the next corner to the one after."""
    return x[:, :, AFTER] - x[:, :, NEXT]


def _volume_gradient(y: Tensor) -> Tensor:
    """Return the derivatives (B, F, 3, 3) by each corner of the volume between a triangle and the origin."""
    return torch.linalg.cross(y[:, :, NEXT], y[:, :, AFTER]) / 6


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


def _one_rim(triangles: np.ndarray) -> np.ndarray:
    """Return the nodes (k,) of a bell's rim in their order along it; refuse a bell without a rim or with several."""
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
