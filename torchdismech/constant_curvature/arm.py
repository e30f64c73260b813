r"""Pneumatic arms of constant-curvature sections: a model of B robots of the same build.

Each section is an arc that m chambers about its axis make longer and bend. With the elongations l of its chambers, at
the radius r and the angles 2 pi j / m,

    s = L + mean l,    u = -2 / (m r) sum l_j (cos a_j, sin a_j)

are its length and its bend (see `arcs`). The mass of a section is spread evenly over its length:

    M(l) l'' + C(l, l') l' + K l + B l' + G(l) = tau + J^T f

with the translational kinetic energy only. Sources: Azizkhani and Chen, "Unified Complementarity-Based Contact Modeling
and Planning for Soft Robots", section II-A; Godage et al., "Dynamics for variable length multisection continuum arms".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.constant_curvature.given import number_of_sections, touchable
from torchdismech.constant_curvature.posture import Posture
from torchdismech.constant_curvature.state import ArmState
from torchdismech.contact import Obstacle
from torchdismech.contact.obstacles.shape_parameters import refuse_other_rotation
from torchdismech.errors import InputError, refuse_trained, whole_number
from torchdismech.geometry.quaternions import rotation_of_vector
from torchdismech.model.appearance import Appearance
from torchdismech.model.constants import constants_of_obstacles
from torchdismech.model.reduced import ReducedModel, values_of, vector_of
from torchdismech.robot.materials import Number
from torchdismech.robot.state import BatchState, Control
from torchdismech.system.uncompiled import uncompiled
from torchdismech.values import Place, untrained

__all__ = ["ArmDynamics", "PneumaticArm"]

Values = Number | Sequence[float] | np.ndarray


@dataclass(frozen=True)
class ArmDynamics:
    """The terms of the equations of motion at one state.

    Attributes
    ----------
    posture : where the arms are; its points are the Gauss points, the disks and the ends of the sections.
    mass : (B, n, n) M [kg].
    bias : (B, n) C l' + G [N].
    """

    posture: Posture
    mass: Tensor
    bias: Tensor


class PneumaticArm(ReducedModel):
    """Arms of sections of constant curvature, each driven by the same number of chambers.

    Along the arm stand disks, which touch obstacles: `disks` of them inside each section, at equal distances, and an
    end plate at its end.

    Parameters
    ----------
    length : rest lengths of the S sections [m]; (S,) or (B, S).
    mass : of the sections [kg]; a number, (S,), (B, 1) or (B, S). A tensor (1,), as arms store a number, counts as a
        number.
    radius : of the circle on which the chambers stand [m]; shapes as of `mass`.
    stiffness, damping : of each chamber [N/m, N s/m]; a number, (n,), (B, 1) or (B, n), n = S chambers.
    chambers : number of chambers of a section, three or more.
    disks : number of disks inside a section.
    plate_radius : of disks and end plates [m]; () or (B, 1).
    obstacles : obstacles that disks and end plates may touch, with the response `Complementarity`; they are copied.
    base, orientation : start of the first section [m] and rotation vector of its first frame [rad]; the arm at rest
        points along z of that frame. (3,) or (B, 3).
    gravity : (3,) or (B, 3) [m/s^2].
    quadrature : number of Gauss points of a section, by which mass and weight are integrated. For three equal sections
        that bend by .75, 2 and 3 rad each, three points miss up to 1e-3, 2e-3 and 1.5e-2 of the kinetic energy of a
        motion, four 2.5e-6, 4.2e-5 and 6e-4; with four, steps take 4 % longer. Take four where sections bend by more
        than 1 rad.

    Raises
    ------
    InputError
        Fewer than three chambers, no section, lists of another length, a length, mass or radius that is not positive,
        a stiffness or damping below zero, an obstacle with another response, numbers that are not finite, tensors of
        another dtype than the rest (numbers and lists are float64), a rotation matrix for `orientation`.
    """

    one, called = "an arm", "pneumatic arms"
    driven_by = "forces on its chambers"
    state_kind = ArmState
    stepped_by = "constant_curvature.ArmIntegrator (and at rest: constant_curvature.equilibrium)"
    length: Tensor
    mass: Tensor
    radius: Tensor
    stiffness: Tensor
    damping: Tensor
    obstacles: Sequence[Obstacle]
    plate_radius: Tensor
    base: Tensor
    orientation: Tensor
    gravity: Tensor
    _share: Tensor
    _weights: Tensor
    _directions: Tensor

    per_robot = ("length", "mass", "radius", "stiffness", "damping", "plate_radius", "base", "orientation", "gravity")
    not_negative = ("length", "mass", "radius", "stiffness", "damping", "plate_radius")

    def __init__(
        self,
        length: Values,
        mass: Values,
        radius: Values,
        stiffness: Values,
        damping: Values = 0.0,
        *,
        chambers: int = 3,
        disks: int = 3,
        plate_radius: Number = 0.05,
        obstacles: Sequence[Obstacle] = (),
        base: Sequence[float] | Tensor = (0.0, 0.0, 0.0),
        orientation: Sequence[float] | Tensor = (0.0, 0.0, 0.0),
        gravity: Sequence[float] | Tensor = (0.0, 0.0, -9.81),
        quadrature: int = 3,
    ):
        super().__init__()
        for name, value, least in (("chambers", chambers, 3), ("disks", disks, 0), ("quadrature", quadrature, 1)):
            whole_number(value, name, least)
        self.sections, self.chambers, self.disks = number_of_sections(length), chambers, disks
        for name, values, size, above_zero in (
            ("length", length, self.sections, True),
            ("mass", mass, self.sections, True),
            ("radius", radius, self.sections, True),
            ("stiffness", stiffness, self.n_dofs, False),
            ("damping", damping, self.n_dofs, False),
            ("plate_radius", plate_radius, 1, True),
        ):
            constant = values_of(values, name, size, above_zero, from_zero=not above_zero)
            self._register(name, constant if constant.dim() else constant.expand(1))
        for name, components in (("base", base), ("orientation", orientation), ("gravity", gravity)):
            self._register(name, vector_of(components, name))
        refuse_other_rotation(self.orientation.detach(), "PneumaticArm.orientation")
        self.refuse_mixed_dtypes()
        # a list of modules, so that it moves and is saved with the arm
        self.obstacles = nn.ModuleList(touchable(obstacles))  # type: ignore[assignment]
        self._lay_out(quadrature)
        self.batch  # noqa: B018  (refuses tensors for different numbers of robots)
        self.warn_of_size()

    def _lay_out(self, quadrature: int) -> None:
        """Register where Gauss points, disks and end are along a section, and how elongations change its shape."""
        gauss, weights = np.polynomial.legendre.leggauss(quadrature)
        inside = np.arange(1, self.disks + 2) / (self.disks + 1)
        dtype = self.length.dtype
        self.register_buffer(
            "_share", torch.tensor(np.append((gauss + 1) / 2, inside), dtype=dtype, device="cpu"), persistent=False
        )
        self.register_buffer("_weights", torch.tensor(weights / 2, dtype=dtype, device="cpu"), persistent=False)
        angle = torch.arange(self.chambers, dtype=dtype, device="cpu") * (2 * math.pi / self.chambers)
        directions = torch.stack((torch.full_like(angle, 0.5), -angle.cos(), -angle.sin())) * (2 / self.chambers)
        self.register_buffer("_directions", directions, persistent=False)

    def _register(self, name: str, value: Tensor) -> None:
        if not isinstance(value, nn.Parameter):
            refuse_trained(value, f"PneumaticArm.{name}", "give an nn.Parameter, which an arm keeps")
            value = untrained(value.clone())
        self.register_parameter(name, value)

    # ---- sizes and constants ---------------------------------------------------------------------------------------

    @property
    def n_dofs(self) -> int:
        """Number of chambers of a robot."""
        return self.sections * self.chambers

    @property
    def n_plates(self) -> int:
        """Number of disks and end plates of a robot."""
        return self.sections * (self.disks + 1)

    @property
    def n_pieces(self) -> int:
        """Number of pieces between the arm's points (`points`)."""
        return self.n_plates

    def constants(self) -> dict[str, Place]:
        """Return the constants by name, those of obstacles by the obstacle's: "slope.friction", "ball.center", ..."""
        of_obstacles = constants_of_obstacles(self.obstacles)
        return super().constants() | {
            name: (m, a) for name, (m, a) in of_obstacles.items() if getattr(m, a) is not None
        }

    # ---- kinematics ------------------------------------------------------------------------------------------------

    def shape(self, q: Tensor) -> Tensor:
        """Return length and bend (B, S, 3) of the sections: s [m], ux and uy [rad]."""
        self.refuse_other_coordinates(q=q)
        return self.shape_rate(q) + torch.nn.functional.pad(self.length[..., None], (0, 2))

    def shape_rate(self, velocity: Tensor) -> Tensor:
        """Return the rates (B, S, 3) of length and bend for rates (B, n) of the elongations."""
        return (velocity.unflatten(1, (self.sections, -1)) @ self._directions.t()) * self._direction_scale()

    def to_shapes(self) -> Tensor:
        """Return the derivatives of all shapes (s, ux, uy) by the elongations, (3 S, n) or (B, 3 S, n)."""
        blocks = self._direction_scale()[..., None] * self._directions  # (.., S, 3, m) or (1, 3, m)
        blocks = blocks.expand(*blocks.shape[:-3], self.sections, 3, self.chambers)
        unit = torch.eye(self.sections, dtype=blocks.dtype, device=blocks.device)
        return (blocks[..., None, :] * unit[:, None, :, None]).flatten(-4, -3).flatten(-2)

    def _direction_scale(self) -> Tensor:
        """Return the factors (1, 1 / r, 1 / r) of `_directions`, which are for the radius 1, (.., 3)."""
        inverse = self.radius.reciprocal()[..., None]
        return torch.cat([torch.ones_like(inverse), inverse, inverse], -1)

    def base_frame(self) -> Tensor:
        """Return the frame at the start of the first section, (3, 3) or (B, 3, 3)."""
        return rotation_of_vector(self.orientation)

    def posture(self, q: Tensor) -> Posture:
        """Return the posture at elongations (B, n), with Gauss points, disks and ends of the sections as its points."""
        turn = self.base_frame()
        turn = turn[..., None] if turn.dim() == 2 else turn.permute(1, 2, 0)
        base = self.base[:, None] if self.base.dim() == 1 else self.base.t()
        shape = self.shape(q).permute(2, 1, 0).contiguous()
        return Posture(shape, self._share, base, turn, len(self._weights))

    def plates(self, posture: Posture) -> tuple[Tensor, Tensor]:
        """Return the middles (B, P, 3) [m] and frames (B, P, 3, 3) of disks and end plates; z is along the arm."""
        middles = posture.points[:, :, posture.first :].flatten(1, 2).permute(2, 1, 0)
        return middles, posture.frames.flatten(2, 3).permute(3, 2, 0, 1)

    def points(self, q: Tensor) -> Tensor:
        """Return the base and the middles of disks and end plates (B, N, 3) [m]."""
        self.refuse_other_coordinates(q=q)
        return self._from_base(self.plates(self.posture(q))[0])

    def _from_base(self, middles: Tensor) -> Tensor:
        start = self.base.expand(len(middles), 3)[:, None]
        return torch.cat([start, middles], 1)

    # ---- dynamics --------------------------------------------------------------------------------------------------

    def dynamics(self, q: Tensor, velocity: Tensor) -> ArmDynamics:
        """Return the equations of motion at these elongations and rates (B, n)."""
        posture = self.posture(q)
        rate = self.shape_rate(velocity).permute(2, 1, 0).contiguous()
        felt = posture.felt_acceleration(rate, _column(self.gravity), len(self._weights))
        mass, bias = posture.inertia(self.point_masses(), felt)
        to_shapes = self.to_shapes()
        return ArmDynamics(posture, to_shapes.mT @ (mass @ to_shapes), (bias[:, None] @ to_shapes)[:, 0])

    def point_masses(self) -> Tensor:
        """Return the point masses (S, G, B or 1) at the Gauss points that stand for the sections [kg]."""
        mass = self.mass.expand(*self.mass.shape[:-1], self.sections)
        return _column(mass)[:, None] * self._weights[:, None]

    def mass_shares(self) -> Tensor:
        """Return the positions (G,) of the point masses on each section, from 0 at its start to 1 at its end."""
        return self._share[: len(self._weights)]

    def springs(self, q: Tensor, velocity: Tensor) -> Tensor:
        """Return K q + B v (B, n), the forces that it takes to move springs and dampers [N]."""
        return self.stiffness * q + self.damping * velocity

    def mass_matrix(self, q: Tensor) -> Tensor:
        """Return M (B, n, n) [kg]."""
        self.refuse_other_coordinates(q=q)
        return self.dynamics(q, torch.zeros_like(q)).mass

    def inverse_dynamics(self, q: Tensor, velocity: Tensor, acceleration: Tensor) -> Tensor:
        """Return the forces on the chambers (B, n) that give these accelerations without contact [N]."""
        self.refuse_other_coordinates(q=q, velocity=velocity, acceleration=acceleration)
        dynamics = self.dynamics(q, velocity)
        inertia = (dynamics.mass @ acceleration[..., None])[..., 0]
        return inertia + dynamics.bias + self.springs(q, velocity)

    def potential(self, q: Tensor) -> dict[str, Tensor]:
        """Return the energies of gravity and of the springs (B,) [J]."""
        points = self.posture(q).points[:, :, : len(self._weights)]
        weight = self.point_masses() * _column(self.gravity)[:, None, None]
        gravity = -(weight * points).sum((0, 1, 2))
        return {"gravity": gravity, "elastic": 0.5 * (self.stiffness * q * q).sum(1)}

    @uncompiled
    def energies(self, state: ArmState, control: Control | None = None) -> dict[str, Tensor]:
        """Return the energies by name, each (B,) [J]."""
        mass = self.mass_matrix(state.q)
        kinetic = 0.5 * ((mass @ state.velocity[..., None])[..., 0] * state.velocity).sum(1)
        return {"kinetic": kinetic, **self.potential(state.q)}

    # ---- states ----------------------------------------------------------------------------------------------------

    @uncompiled
    def initial_state(
        self,
        batch: int | None = None,
        q: Tensor | Sequence[float] | None = None,
        velocity: Tensor | Sequence[float] | None = None,
    ) -> ArmState:
        """Return a state with the given q and velocity, each (n,) or (B, n); both are zero by default.

        The batch defaults to that of q, velocity, the arm's constants or its obstacles. Other shapes, numbers that are
        not finite, and elongations that leave a section no length raise an `InputError`.
        """
        q, velocity = self.initial_motion(batch, q, velocity)
        self._refuse_no_length(q)
        impulses = q.new_zeros(len(q), len(self.obstacles) * self.n_plates, 3)
        return self.state(q, velocity, impulses, q.new_zeros(len(q)))

    def _refuse_no_length(self, q: Tensor) -> None:
        """Refuse elongations (B, n) that leave a section no length."""
        length = self.shape(q.detach())[..., 0]
        if bool((length <= 0).any()):
            robot, section = divmod(int((length <= 0).flatten().long().argmax()), self.sections)
            raise InputError(
                "initial_state: q: expected elongations that leave each section a length above 0, but section "
                f"{section} of robot {robot} is {float(length[robot, section]):g} m long; the mean of its chambers' "
                "elongations has to be above minus its length at rest"
            )

    def state(
        self, q: Tensor, velocity: Tensor, impulses: Tensor, time: Tensor, posture: Posture | None = None
    ) -> ArmState:
        """Return the state at elongations and rates (B, n) and times (B,); `posture`, if given, is that at q."""
        posture = self.posture(q) if posture is None else posture
        of_plates = posture.motion(self.shape_rate(velocity).permute(2, 1, 0))[0].flatten(1, 2).permute(2, 1, 0)
        velocities = torch.cat([torch.zeros_like(of_plates[:, :1]), of_plates], 1)
        return ArmState(q, velocity, impulses, self._from_base(self.plates(posture)[0]), velocities, time)

    def appearance(self) -> Appearance:
        """Return what figures show beside the robots' points: the obstacles."""
        return Appearance.of(None, list(self.obstacles))

    def contact_report(self, state: ArmState) -> dict[str, Tensor]:
        """Return the contact report of a state before any step: all zeros; {} for an arm without obstacles."""
        if not len(self.obstacles):
            return {}
        zero = torch.zeros_like(state.time)
        count = torch.zeros(state.batch, dtype=torch.long, device=zero.device)
        counts = {"active": count, "sticking": count, "sliding": count, "penetration": zero}
        return counts | self.reported_forces(zero.new_zeros(state.batch, len(self.obstacles) * self.n_plates, 3))

    def reported_forces(self, force: Tensor) -> dict[str, Tensor]:
        """Return the entries of a report on forces, from the forces (B, C, 3) of contacts, obstacle by obstacle [N]."""
        on_plates = force.unflatten(1, (len(self.obstacles), self.n_plates))  # (B, O, P, 3)
        names = [obstacle.name for obstacle in self.obstacles]
        loads = torch.linalg.vector_norm(on_plates, dim=-1).sum(2)
        return {
            **{f"force/{name}": on_plates[:, k].sum(1) for k, name in enumerate(names)},
            **{f"load/{name}": loads[:, k] for k, name in enumerate(names)},
            "node_force": torch.nn.functional.pad(on_plates.sum(1), (0, 0, 1, 0)),  # nothing touches the base
        }

    def check_batch(self, state: BatchState, control: Control) -> None:
        """Refuse states and controls that do not fit the arm."""
        super().check_batch(state, control)
        assert isinstance(state, ArmState)  # else it was refused
        contacts = len(self.obstacles) * self.n_plates
        if state.impulses.shape[1:] != (contacts, 3):
            raise InputError(f"state.impulses: expected shape (B, {contacts}, 3), got {tuple(state.impulses.shape)}")


def _column(values: Tensor) -> Tensor:
    """Return values (k,) or (B, k) with the batch last, (k, 1) or (k, B)."""
    return values[:, None] if values.dim() == 1 else values.t()
