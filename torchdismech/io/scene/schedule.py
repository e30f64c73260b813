"""The control of a scene as a function of time: motion of clamped dofs, natural strains, rest lengths, constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from torchdismech.geometry.quaternions import product
from torchdismech.io.scene.users_code import UsersFunction
from torchdismech.io.tables import TimeTable
from torchdismech.model import Model
from torchdismech.robot.state import Control

__all__ = ["Motion", "NodeMotion", "Path3", "Rotation", "Schedule", "Translation", "Twisting", "load_function"]


@dataclass(frozen=True)
class Motion:
    """A motion of nodes or edges from `start` to `stop` [s]; before it they are at rest, after it they stay.

    Attributes
    ----------
    index : the nodes or edges that move.
    """

    index: list[int]
    start: float
    stop: float

    def elapsed(self, time: Tensor) -> Tensor:
        """Return the time (B, 1) [s] since the start, from 0 to the motion's duration, at the times (B,)."""
        # with stop = inf the upper limit is inf: `clamp` then only limits from below
        return (time - self.start).clamp(0, self.stop - self.start)[:, None]

    def overlaps(self, other: Motion) -> bool:
        """Return whether both motions move the same node at the same time."""
        together = self.start < other.stop and other.start < self.stop
        return together and not set(self.index).isdisjoint(other.index)


@dataclass(frozen=True)
class Translation(Motion):
    """Motion of nodes at a velocity, (3,) or (B, 3) [m/s]."""

    velocity: Tensor

    def moved(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the positions (B, k, 3) at the times (B,)."""
        return x + (self.velocity.to(x) * self.elapsed(time))[:, None, :]


@dataclass(frozen=True)
class Rotation(Motion):
    """Rotation of nodes about an axis (3,) through a center (3,) at a rate, () or (B, 1) [rad/s]."""

    axis: Tensor
    center: Tensor
    rate: Tensor

    def moved(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the positions (B, k, 3) at the times (B,)."""
        axis, center, angle = self._axis(x), self.center.to(x), self._angle(time)[:, :, None]
        arm = x - center
        along = axis * (arm * axis).sum(-1, keepdim=True)
        across = torch.linalg.cross(axis.expand_as(arm), arm)
        return center + along + (arm - along) * torch.cos(angle) + across * torch.sin(angle)

    def quaternion(self, time: Tensor) -> Tensor:
        """Return the rotation (B, 4) at the times (B,) as unit quaternions (w, x, y, z)."""
        half = 0.5 * self._angle(time)
        return torch.cat([torch.cos(half), torch.sin(half) * self._axis(time)], dim=1)

    def turn(self, time: Tensor) -> Tensor:
        """Return the rotation vectors (B, 3) [rad] at the times (B,); angles beyond a full turn are not reduced."""
        return self._angle(time) * self._axis(time)

    def _axis(self, like: Tensor) -> Tensor:
        return (self.axis / torch.linalg.vector_norm(self.axis)).to(like)

    def _angle(self, time: Tensor) -> Tensor:
        return self.rate.to(time) * self.elapsed(time)


@dataclass(frozen=True)
class Path3(Motion):
    """Motion of nodes along a table of positions over time: x y z of each node in turn [m]."""

    table: TimeTable

    def moved(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the positions (B, k, 3) at the times (B,)."""
        return self.table.at(time).unflatten(1, (-1, 3)).expand_as(x)


@dataclass(frozen=True)
class Twisting(Motion):
    """Turning of edges about their axes at a rate, () or (B, 1) [rad/s]."""

    rate: Tensor

    def moved(self, theta: Tensor, time: Tensor) -> Tensor:
        """Return the twist angles (B, k) at the times (B,)."""
        return theta + self.rate.to(theta) * self.elapsed(time)


NodeMotion = Translation | Rotation | Path3
Function = Callable[[Tensor, Model, Control], Control]


@dataclass(frozen=True)
class Schedule:
    """The control of a scene as a function of time.

    Attributes
    ----------
    node_motions : applied one after the other in the order of their starts.
    edge_motions : twists, which add up.
    strains : tables over time by the fields of `Control` that they set, which are keys of [actuation]:
        natural_curvature has S columns for kappa1 of the springs [1], or 2 S for kappa1 and then kappa2,
        natural_membrane_strain E11, E22, E12 of each triangle in turn, and the others a column for each element.
    values : constants of the model that files set over time, by name: a table for each of their columns.
    poses : whether clamps with a direction turn: then all clamps move as rigid bodies, by poses.
    function : called last with (time, model, control); the control that it returns is the schedule's.
    """

    node_motions: list[NodeMotion]
    edge_motions: list[Twisting]
    strains: dict[str, TimeTable] = field(default_factory=dict)
    values: dict[str, list[TimeTable]] = field(default_factory=dict)
    poses: bool = False
    function: Function | None = None

    @property
    def ahead(self) -> bool:
        """Whether `rollout` may ask for controls before the steps are taken: not if a user's function takes part.

        Such a function may depend on anything, also on what steps change.
        """
        return self.function is None

    def __call__(self, time: Tensor, model: Model) -> Control:
        """Return the control at the times (B,) [s]."""
        control = Control(
            **{name: _of_control(name, table.at(time), model) for name, table in self.strains.items()},
            clamped_q=self._clamped_q(time, model),
            pose=self._pose(time, model) if self.poses else None,
            values={
                name: torch.cat([column.at(time) for column in columns], 1) for name, columns in self.values.items()
            },
        )
        return control if self.function is None else self.function(time, model, control)

    def _clamped_q(self, time: Tensor, model: Model) -> Tensor | None:
        if not self.node_motions and not self.edge_motions:
            return None
        x = self._positions(time, model)
        theta = x.new_zeros(len(time), model.body.n_angles)
        for twisting in self.edge_motions:
            theta[:, twisting.index] = twisting.moved(theta[:, twisting.index], time)
        return model.body.q_of(x, theta)

    def _positions(self, time: Tensor, model: Model) -> Tensor:
        """Return the positions (B, N, 3) of all nodes, moved from where they are at rest."""
        x = model.nodes.expand(len(time), -1, -1).clone()
        for motion in self._in_order:
            x[:, motion.index] = motion.moved(x[:, motion.index], time)
        return x

    @property
    def _in_order(self) -> list[NodeMotion]:
        return sorted(self.node_motions, key=lambda motion: motion.start)

    def _pose(self, time: Tensor, model: Model) -> Tensor:
        """Return the poses (B, C, 7) of the clamps: mean position of the nodes, and rotation as a quaternion.

        Motions move all nodes of a clamp or none (see `motions`), so each clamp moves as a rigid body.
        """
        pose, x = model.rest_poses.expand(len(time), -1, -1).clone(), self._positions(time, model)
        for k, clamp in enumerate(model.body.clamps):
            nodes = clamp.nodes.tolist()
            pose[:, k, :3] = x[:, nodes].mean(1)
            for motion in self._in_order:
                if isinstance(motion, Rotation) and not set(nodes).isdisjoint(motion.index):
                    pose[:, k, 3:] = product(motion.quaternion(time), pose[:, k, 3:])
        return pose


def _of_control(name: str, values: Tensor, model: Model) -> Tensor:
    """Return the columns (B, C) of a table of natural strains in the shape that the field `name` of `Control` has."""
    if name == "natural_membrane_strain":
        return values.unflatten(1, (-1, 3))
    if name != "natural_curvature":
        return values
    springs = len(model.springs)
    if values.shape[1] == 2 * springs:
        return torch.stack([values[:, :springs], values[:, springs:]], dim=-1)
    natural = model.natural_strains(len(values)).natural_curvature
    assert natural is not None  # the robot has springs, as the table has a column for each
    return torch.stack([values, natural[..., 1]], dim=-1)


def load_function(scene: Path, name: str) -> Function:
    """Return the function that actuation.python names, wrapped so that its errors and wrong results are named.

    A right result is a `Control` that fits the robot.
    """
    user_function = UsersFunction(scene, "actuation.python", name)

    def checked(time: Tensor, model: Model, control: Control) -> Control:
        answer = user_function.call(user_function.function, time, model, control)
        return user_function.checked(answer, model, len(time))

    return checked
