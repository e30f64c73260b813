"""Slender bodies as chains of rigid elements with spring-dampers between them: a model of B robots of one build.

A body of length L is divided into n segments, each with a spring-damper at its middle. The pieces between neighbouring
springs, and those at the ends, are rigid: n + 1 elements, n springs. The first joint has no spring: it is the active
joint, which a motor may turn.

    M(q) q'' + C(q, q') q' + g(q) + K q + D q' = tau
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, truth, warn, whole_number
from torchdismech.model.appearance import Appearance
from torchdismech.model.reduced import ReducedModel, values_of, vector_of
from torchdismech.rigid.cylinder import in_segments
from torchdismech.rigid.dynamics import Dynamics, accelerations
from torchdismech.rigid.planar import Planar
from torchdismech.rigid.spatial import Spatial
from torchdismech.rigid.state import ChainState
from torchdismech.robot.body import Sections
from torchdismech.robot.materials import Number
from torchdismech.robot.state import Control, control_of
from torchdismech.system.uncompiled import uncompiled
from torchdismech.values import Given, numbers

__all__ = ["RigidChain"]

AXES = "xyz"


class RigidChain(ReducedModel):
    """Chains of rigid elements, held at one end by a joint that may be driven; at q = 0 straight along x.

    In the plane (x-z) each joint is one angle, positive where it turns x to z. In space the first joint is the same,
    each of the others three angles, one after the other: about z of the body before it (which is -y of the world at
    q = 0), about y as the first angle has turned it, and about x as both have. Where a joint's angle about y is 90
    degrees the axes of the other two coincide (gimbal lock): the mass matrix is singular, and steps near by fail with
    the status GIMBAL_LOCK (docs/rigid_elements.md).

    Parameters
    ----------
    length, mass, centre : of each element, at least two [m, kg, m]: length from joint to joint, and distance of the
        centre of mass from the first of these joints. A number for all, (elements,), (B, 1) or (B, elements); lengths
        are given for each element, as they say how many there are.
    inertia : about the centre of mass [kg m^2]; in space three of these: about the body's x, y, z.
    stiffness, damping : of the springs, one fewer than elements [N m/rad, N m s/rad]; in space three of these: twist
        (about x), bending about y and z.
    space : whether the chain moves in space; else in the plane.
    base, gravity : position of the first joint [m], and acceleration [m/s^2]; (3,) or (B, 3).

    The chain's constants have these names, except that `inertia`, `stiffness` and `damping` have one constant for each
    axis, `stiffness_z` and so on; in the plane for z only.

    A given `nn.Parameter` becomes a constant itself, so that an optimiser can change it. Gradients reach other tensors
    that require them, too; if such a tensor was computed, build the chain anew for each backward pass.

    Raises
    ------
    InputError
        Fewer than two elements, lists of another length, numbers that have to be positive and are not, numbers that are
        not finite, tensors of another dtype than the rest (numbers and lists are float64), a `space` that is no bool.
    """

    one, called = "a chain of rigid elements", "chains of rigid elements"
    driven_by = "torques on joints"
    state_kind = ChainState
    stepped_by = "rigid.Radau or rigid.Sdirk2"
    sections: Sections | None = None  # how figures show the elements; None unless made by `cylinder`
    length: Tensor
    mass: Tensor
    centre: Tensor
    gravity: Tensor
    base: Tensor
    _sums: Tensor

    def __init__(
        self,
        length: Given,
        mass: Given,
        centre: Given,
        inertia: Given,
        stiffness: Given,
        damping: Given = 0.0,
        *,
        space: bool = False,
        base: Sequence[float] | Tensor = (0.0, 0.0, 0.0),
        gravity: Sequence[float] | Tensor = (0.0, 0.0, -9.81),
    ):
        super().__init__()
        lengths = numbers(length, "length")
        count = lengths.shape[-1] if lengths.dim() else 0
        if count < 2:
            raise InputError(f"length: expected those of two or more elements (a segment or more), got {length}")
        self.space = truth(space, "space")
        self.axes = AXES if space else "z"
        self.n_bodies = count
        self._register("length", values_of(length, "length", count, above_zero=True))
        self._register("mass", values_of(mass, "mass", count, above_zero=True))
        self._register("centre", values_of(centre, "centre", count))
        for axis, value in self._by_axis(inertia, "inertia"):
            self._register(f"inertia_{axis}", values_of(value, f"inertia about {axis}", count, above_zero=True))
        for name, values in (("stiffness", stiffness), ("damping", damping)):
            for axis, value in self._by_axis(values, name):
                self._register(f"{name}_{axis}", values_of(value, f"{name} about {axis}", count - 1, from_zero=True))
        self._register("base", vector_of(base, "base"))
        self._register("gravity", vector_of(gravity, "gravity"))
        for name in () if space else ("base", "gravity"):
            if bool((getattr(self, name)[..., 1] != 0).any()):
                raise InputError(f"{name}: a chain in the plane (x-z) takes none along y; set space=True")
        self.register_buffer(
            "_sums", torch.ones(self.n_dofs, self.n_dofs, dtype=self.dtype, device="cpu").tril(), persistent=False
        )
        self.batch  # noqa: B018  (refuses tensors for different numbers of robots)
        self._warn_of_odd_elements()
        self.refuse_mixed_dtypes()
        self.warn_of_size()

    @classmethod
    def cylinder(
        cls,
        segments: int,
        length: Number,
        diameter: Given,
        density: Given,
        youngs: Given,
        viscosity: Given = 0.0,
        shear: Given | None = None,
        *,
        space: bool = False,
        base: Sequence[float] | Tensor = (0.0, 0.0, 0.0),
        gravity: Sequence[float] | Tensor = (0.0, 0.0, -9.81),
    ) -> RigidChain:
        """Return the chain of a round, slender body, divided into equal segments.

        Parameters
        ----------
        segments : number of segments; the chain has one element more.
        length : of the whole body [m]; a number or (B, 1).
        diameter, density, youngs, viscosity, shear : [m, kg/m^3, Pa, Pa s, Pa]; a number, (elements,), (B, 1) or
            (B, elements). Springs bend by Young's modulus and twist by the shear modulus, which a chain in space needs;
            dampers have the viscosity in place of both. A spring between different elements stands for half a segment
            of either.

        The chain's constants are computed from these numbers once. So an `nn.Parameter` is refused: an optimiser would
        change it without changing the chain. Train the chain's constants (`trainable.scaled(chain, ["stiffness_z"])`),
        or build the chain anew for each backward pass from tensors that require gradients.

        In space the springs act on the successive angles about z, y and x, not on the rotation vector. So a joint is
        stiffer when it bends about an axis between y and z than about y or z: half-way between them the energy is
        larger by .5 % at .2 rad, 3.3 % at .5 rad and 15.7 % at 1 rad (shear = youngs / 3). Take enough segments to keep
        the angles small.
        """
        constants, sections = in_segments(segments, length, diameter, density, youngs, viscosity, shear, space)
        chain = cls(*constants, space=space, base=base, gravity=gravity)
        chain.sections = sections
        return chain

    # ---- sizes and constants ---------------------------------------------------------------------------------------

    @property
    def per_robot(self) -> tuple[str, ...]:
        """Names of the constants that may be given per robot."""
        about = tuple(f"{name}_{axis}" for name in ("inertia", "stiffness", "damping") for axis in self.axes)
        return ("length", "mass", "centre", *about, "base", "gravity")

    @property
    def not_negative(self) -> tuple[str, ...]:
        """Names of the constants that are never below zero."""
        return tuple(name for name in self.per_robot if name not in ("centre", "base", "gravity"))

    @property
    def n_dofs(self) -> int:
        """Number of joint angles of a robot."""
        return 1 + len(self.axes) * (self.n_bodies - 1)

    @property
    def n_pieces(self) -> int:
        """Number of pieces between the chain's points (`points`)."""
        return self.n_bodies

    # ---- states and dynamics ---------------------------------------------------------------------------------------

    @uncompiled
    def initial_state(
        self,
        batch: int | None = None,
        q: Tensor | Sequence[float] | None = None,
        velocity: Tensor | Sequence[float] | None = None,
        control: Control | None = None,
    ) -> ChainState:
        """Return a state at rest and straight, or at the given q and velocity, each (J,) or (B, J).

        The batch defaults to that of q, velocity or the model's constants. Other shapes and numbers that are not finite
        raise an `InputError`.
        """
        q, velocity = self.initial_motion(batch, q, velocity)
        state = self.state(q, velocity, torch.zeros_like(q), q.new_zeros(len(q)))
        return state.replace(acceleration=self.forward_dynamics(state, control))

    def state(self, q: Tensor, velocity: Tensor, acceleration: Tensor, time: Tensor) -> ChainState:
        """Return the state at angles, rates and accelerations (B, J) of the joints and times (B,)."""
        positions, velocities = self.dynamics().chain.at(_stage(q)).places(_stage(velocity))
        return ChainState(q, velocity, acceleration, _rows(positions), _rows(velocities), time)

    def drive(self, torque: Tensor | float, batch: int | None = None) -> Control:
        """Return the control that drives the active joint by a torque, (B,) or one number for all robots [N m].

        The batch defaults to that of the torque or the model's constants.
        """
        torque = numbers(torque, "drive: torque").to(dtype=self.dtype, device=self.device)
        if batch is None:
            batch = 1 if torque.numel() > 1 else self.batch or 1
        batch = whole_number(batch, "drive: batch")
        if torque.dim() > 1 or (batch > 1 and torque.numel() not in (1, batch)):
            robots = f"({batch},)" if batch > 1 else "(B,) of B robots"
            raise InputError(f"drive: torque: expected one number, or {robots}, got shape {tuple(torque.shape)}")
        torque = torque.reshape(-1)
        torque = torque.expand(batch) if len(torque) == 1 else torque
        return Control(force=torch.nn.functional.pad(torque[:, None], (0, self.n_dofs - 1)))

    def dynamics(self) -> Dynamics:
        """Return the equations of motion with the present constants, batch last."""
        count, axes = self.n_bodies, self.axes
        column = lambda name, rows=count: _batch_last(getattr(self, name), rows)  # noqa: E731
        length, mass, centre = column("length"), column("mass"), column("centre")
        gravity, base = column("gravity", 3), column("base", 3)
        chain: Planar | Spatial
        if self.space:
            inertia = torch.stack(torch.broadcast_tensors(*(column(f"inertia_{axis}") for axis in axes)), 1)
            chain = Spatial(length, mass, centre, inertia, gravity, base, self._sums)
        else:
            chain = Planar(length, mass, centre, column("inertia_z"), gravity[::2], base[::2], self._sums)
        return Dynamics(chain, self._of_joints("stiffness"), self._of_joints("damping"))

    def forward_dynamics(self, state: ChainState, control: Control | None = None) -> Tensor:
        """Return the accelerations (B, J) of the joints by springs, dampers, gravity and the control's torques."""
        control = control_of(control)
        self.check_batch(state, control)
        force = state.q.new_zeros(()).expand_as(state.q) if control.force is None else control.force
        return accelerations(self.dynamics(), *map(_stage, (state.q, state.velocity, force)))[:, 0].t()

    def inverse_dynamics(self, q: Tensor, velocity: Tensor, acceleration: Tensor) -> Tensor:
        """Return the torques M q'' + C q' + g (B, J) that the motion takes, without springs and dampers [N m]."""
        self.refuse_other_coordinates(q=q, velocity=velocity, acceleration=acceleration)
        torque = self.dynamics().chain.at(_stage(q)).torque(_stage(velocity), _stage(acceleration))
        return torque[:, 0].t()

    def mass_matrix(self, q: Tensor) -> Tensor:
        """Return M (B, J, J)."""
        self.refuse_other_coordinates(q=q)
        chain = self.dynamics().chain
        chain = dataclasses.replace(chain, gravity=torch.zeros_like(chain.gravity))
        repeated_q = _stage(q).expand(-1, self.n_dofs, -1).contiguous()
        units = torch.eye(self.n_dofs, dtype=q.dtype, device=q.device)[..., None].expand_as(repeated_q).contiguous()
        return chain.at(repeated_q).torque(torch.zeros_like(repeated_q), units).permute(2, 0, 1)

    def points(self, q: Tensor) -> Tensor:
        """Return the positions (B, K + 1, 3) of the joints and the tip [m]."""
        self.refuse_other_coordinates(q=q)
        return _rows(self.dynamics().chain.at(_stage(q)).places(_stage(torch.zeros_like(q)))[0])

    def tip_spin(self, q: Tensor, velocity: Tensor) -> Tensor:
        """Return the angular velocity of the last element (B, 3) [rad/s]."""
        self.refuse_other_coordinates(q=q, velocity=velocity)
        return self.dynamics().chain.at(_stage(q)).tip_spin(_stage(velocity))[:, 0].t()

    @uncompiled
    def energies(self, state: ChainState, control: Control | None = None) -> dict[str, Tensor]:
        """Return "kinetic", "gravity" and "elastic" energy, each (B,) [J]; without damping their sum is conserved."""
        self.refuse_other_coordinates(q=state.q)
        dynamics, q = self.dynamics(), _stage(state.q)
        kinetic, gravity = dynamics.chain.at(q).energies(_stage(state.velocity))
        elastic = 0.5 * (dynamics.stiffness * q.square()).sum(0)
        return {"kinetic": kinetic[0], "gravity": gravity[0], "elastic": elastic[0]}

    def appearance(self) -> Appearance:
        """Return what figures show beside the robots' points: the sections of a cylinder."""
        return Appearance(self.sections, [])

    def contact_report(self, state: ChainState) -> dict[str, Tensor]:
        """Return the contact report, which is empty: chains touch nothing."""
        return {}

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _warn_of_odd_elements(self) -> None:
        """Warn of centres of mass far outside their elements, and of inertias that no rigid body can have."""
        centre, length = torch.broadcast_tensors(self.centre.detach(), self.length.detach())
        if bool(((centre < -length) | (centre > 2 * length)).any()):
            warn(
                "RigidChain: a centre of mass lies farther outside of its element than that is long; centres are "
                "measured from the element's first joint, in m",
                UserWarning,
            )
        if self.space:
            about = torch.stack(torch.broadcast_tensors(*(getattr(self, f"inertia_{axis}").detach() for axis in AXES)))
            if bool((about > (1 + 1e-6) * (about.sum(0) - about)).any()):
                warn(
                    "RigidChain: inertias about x, y and z, of which one is more than the other two together, are of "
                    "no body; they are about the centre of mass, in kg m^2",
                    UserWarning,
                )

    def _register(self, name: str, value: Tensor) -> None:
        if isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        else:
            self.register_buffer(name, value if value.requires_grad else value.clone())

    def _by_axis(self, value, name: str) -> list[tuple[str, Given]]:
        """Return (axis, value) for each axis; one number counts for all axes."""
        if not self.space:
            return [("z", value)]
        if isinstance(value, (int, float, np.number)):
            return [(axis, value) for axis in AXES]
        if not isinstance(value, list | tuple) or len(value) != 3:
            raise InputError(f"{name}: in space expected three, about x, y and z, got {value}")
        return list(zip(AXES, value, strict=True))

    def _of_joints(self, name: str) -> Tensor:
        """Return a constant of the springs by joints (J, 1, B or 1): zero at the active one, then about z, y and x."""
        springs = self.n_bodies - 1
        columns = [_batch_last(getattr(self, f"{name}_{axis}"), springs) for axis in reversed(self.axes)]
        joints = columns[0] if len(columns) == 1 else torch.stack(torch.broadcast_tensors(*columns), 1).flatten(0, 1)
        return torch.nn.functional.pad(joints, (0, 0, 0, 0, 1, 0))


def _stage(x: Tensor) -> Tensor:
    """Return values (B, J) as one state of each robot with the batch last, (J, 1, B)."""
    return x.t()[:, None]


def _rows(points: Tensor) -> Tensor:
    """Return points (3, N, 1, B) of one state of each robot as (B, N, 3)."""
    return points[:, :, 0].permute(2, 1, 0).contiguous()


def _batch_last(value: Tensor, count: int) -> Tensor:
    """Return a constant (), (count,), (B, 1) or (B, count) as (count, 1, B or 1)."""
    if value.dim() < 2:
        return value.expand(count)[:, None, None]
    return value.expand(-1, count).t().contiguous()[:, None]
