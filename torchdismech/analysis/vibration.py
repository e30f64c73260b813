"""Small vibrations about a state: frequencies, shapes and damping of the lowest modes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, refuse_other_kind, refuse_other_model
from torchdismech.integrate.idle_loads import warn_of_absent_loads
from torchdismech.model import Model
from torchdismech.model.mechanics import Gains
from torchdismech.robot.state import STATES, Control, State, control_of
from torchdismech.solve.eigen import ROUNDING, lowest_modes, sparse_matrix
from torchdismech.system.uncompiled import uncompiled

__all__ = ["Modes", "modes"]

INSTANT = 1e-9  # s: C is taken from C / INSTANT + K, in which the rounding of K does not count
SKEW = 1e-6  # a stiffness with a skew part above this part of the largest eigenvalue found is refused


@dataclass(frozen=True, repr=False, eq=False)
class Modes:
    """The lowest modes of each robot of a batch, in order of rising eigenvalue.

    Mode i is the motion a(t) * shape[i] of the dofs about the state, with a'' + damping[i] a' + eigenvalue[i] a = 0.

    Attributes
    ----------
    eigenvalue : (B, count) square of the angular frequency [1/s^2]; negative where the state is unstable, exactly 0
        where it is within rounding of zero, as for rigid-body motions of a robot that nothing holds.
    shape : (B, count, n) motion of each dof [m, rad], with the generalised mass shape^T M shape = 1 kg. The sign is
        such that the largest entry is positive. Modes of equal frequency may come in any mixture.
    damping : (B, count) generalised damping of each mode [1/s].
    imbalance : (B,) norm of the forces on free dofs at the state [N] (torques over the mean edge length): zero at an
        equilibrium.
    """

    eigenvalue: Tensor
    shape: Tensor
    damping: Tensor
    imbalance: Tensor

    @property
    def frequency(self) -> Tensor:
        """Frequencies (B, count) without damping [Hz]; 0 where a mode does not vibrate."""
        return self.eigenvalue.clamp_min(0).sqrt() / (2 * math.pi)

    @property
    def growth_rate(self) -> Tensor:
        """Rates (B, count) at which unstable modes grow without damping [1/s]; 0 for the others."""
        return (-self.eigenvalue).clamp_min(0).sqrt()

    @property
    def damping_ratio(self) -> Tensor:
        """Part (B, count) of the critical damping, to first order in the damping; 0 where a mode does not vibrate."""
        omega = 2 * math.pi * self.frequency
        return torch.where(omega > 0, self.damping / (2 * torch.where(omega > 0, omega, 1.0)), 0.0)

    @property
    def stable(self) -> Tensor:
        """Robots without a growing mode among these, bool (B,)."""
        return ~(self.eigenvalue < 0).any(1)

    def __repr__(self) -> str:
        """Return the frequencies of the first robot, and the number of unstable robots."""
        robots, count = self.eigenvalue.shape
        frequencies = ", ".join(f"{value:.4g}" for value in self.frequency[0, :6].tolist()) + ", ..." * (count > 6)
        unstable = int((~self.stable).sum())
        return (
            f"Modes({count} of {robots} robot{'s' * (robots > 1)}; robot 0: {frequencies} Hz"
            + f"; {unstable} unstable" * bool(unstable)
            + ")"
        )


@torch.no_grad()
@uncompiled
def modes(model: Model, state: State, count: int, control: Control | None = None) -> Modes:
    """Return the lowest modes of small vibrations about a state, at rest there.

    They solve K shape = eigenvalue * M shape, with the stiffness K of all forces (elastic, contact, loads) on the free
    dofs and the mass matrix M, lumped or consistent. Angles without inertia are in balance at any moment. Damping is
    shape^T C shape, with C of dissipation and of forces that depend on velocity. A state that is no equilibrium has
    modes, too, those of the forces' derivatives there; `Modes.imbalance` says how far from balance it is.

    Matrices are computed on the model's device; the eigenvalues always on the CPU, robot by robot. Nothing is recorded
    for gradients.

    Parameters
    ----------
    state : of any number of robots; its velocity does not count. A warning names loads that do not act because the
        state's time is outside of their start and stop.
    count : number of modes, at most that of free dofs with a mass.
    control : what acts at the state (natural strains, forces, values); None for the model's own.

    Raises
    ------
    InputError
        A count out of range; a state, a control or forces that are not finite; contacts that are constraints (they have
        no stiffness); an angle without inertia that nothing holds; forces whose derivatives are not symmetric in these
        modes (with loads without a potential, such as those that follow the robot and moments in space, it may flutter,
        which modes do not show).
    """
    refuse_other_model("modes", model, Model, "; chains have rigid.natural_frequencies")
    control = control_of(control)
    refuse_other_kind("modes: state", state, State, STATES)
    model.check_batch(state, control)
    most = int((model.free & ~model.unknowns.algebraic).sum()) - model.unknowns.slides.n_idle_unknowns
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count <= most:
        raise InputError(f"modes: count has to be a whole number from 1 to {most} (free dofs with mass), got {count!r}")
    if model.contact.constrained:
        raise InputError("modes: contact by Complementarity has no stiffness; take Penalty or Barrier")
    if not bool(state.finite().all()):
        raise InputError("modes: the state holds numbers that are not finite")
    every = torch.ones_like(state.time, dtype=torch.bool)
    if cause := control.not_finite(every, state.time, model.body.clamped.dofs):
        raise InputError(f"modes: {cause}")
    warn_of_absent_loads("modes", model, state)
    state = state.replace(velocity=torch.zeros_like(state.q))
    with model.lock, model.compilation.paused(), model.values_of(control).in_place():
        parts = [_modes_of_robot(model, *robot, int(count)) for robot in _robots(model, state, control)]
    return Modes(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _robots(model: Model, state: State, control: Control) -> Iterator[tuple[int, State, Control]]:
    """Yield index, state and control of each robot, while the model holds that robot's values."""
    for robot, (values, its_state, its_control) in enumerate(model.parts(state, control, 1)):
        with values.in_place():
            yield robot, its_state, its_control


def _modes_of_robot(model: Model, robot: int, state: State, control: Control, count: int) -> tuple[Tensor, ...]:
    """Return eigenvalues, shapes, damping (1, ..) and imbalance (1,) of one robot."""
    start, elapsing = model.start_step(state, control), model.start_step(state, control, INSTANT)
    motion = (state.q, state.velocity, state.time)
    force, values = model.mechanics.force_and_stiffness(start, *motion)
    if not bool(torch.isfinite(force).all()):
        raise InputError(
            f"modes of robot {robot}: forces at the state are not finite numbers: look at the model's forces"
        )
    _, damped = model.mechanics.force_and_stiffness(elapsing, *motion, Gains(velocity=1 / INSTANT))
    pattern = model.solvers.of(1, start.pairs).pattern
    # columns are the possible motions: each unknown, or for nodes that slide those along their lines
    motions = model.unknowns.slides.motions(model.unknowns.number)
    stiffness = motions.T @ sparse_matrix(pattern, values[:, 0]) @ motions
    damping = motions.T @ sparse_matrix(pattern, (damped - values)[:, 0] * INSTANT) @ motions
    mass = motions.T @ _mass_matrix(model, values) @ motions
    precision = torch.finfo(model.dtype).eps
    try:
        eigenvalue, shape = lowest_modes(0.5 * (stiffness + stiffness.T), mass, count, precision)
    except (ValueError, ArithmeticError) as error:
        raise InputError(f"modes of robot {robot}: {error}") from error
    _refuse_flutter(model, robot, stiffness, eigenvalue, shape, precision)
    by_mode = np.einsum("ik,ik->k", shape, damping @ shape)
    free = torch.as_tensor((motions @ shape).T.copy(), device="cpu").to(state.q)
    shapes = model.unknowns.into_dofs(free, state.q.new_zeros(count, model.n_dofs))
    imbalance = torch.linalg.vector_norm(model.unknowns.on_unknowns(force) * model.unknowns.residual_weight(), dim=1)
    return (
        torch.as_tensor(eigenvalue, device="cpu")[None].to(state.q),
        shapes[None],
        torch.as_tensor(by_mode, device="cpu")[None].to(state.q),
        imbalance,
    )


def _mass_matrix(model: Model, like: Tensor) -> Any:
    """Return the mass matrix of one robot, on the pattern without contact between its parts."""
    pattern = model.layout.pattern
    values = like.new_zeros(pattern.nnz, 1)
    model.layout.add_mass(values, 1.0)
    return sparse_matrix(pattern, values[:, 0])


def _refuse_flutter(
    model: Model, robot: int, stiffness: Any, eigenvalue: np.ndarray, shape: np.ndarray, precision: float
) -> None:
    """Refuse a stiffness whose projection on these modes is not symmetric, and name the loads that may be the cause."""
    coupled = shape.T @ (stiffness @ shape)
    skew, largest = np.abs(coupled - coupled.T).max(), np.abs(eigenvalue).max()
    rounding = ROUNDING * precision * (np.abs(shape).T @ (abs(stiffness) @ np.abs(shape))).max()
    if skew > SKEW * largest + rounding:
        felt = [force for force in model.forces if force.varies and not force.drag]
        loads = ", ".join(dict.fromkeys(type(force).__name__ for force in felt if not force.symmetric)) or "contact"
        raise InputError(
            f"modes of robot {robot}: the derivatives of the forces are not symmetric (by {skew:.2g} 1/s^2 between "
            f"modes of up to {largest:.2g}), and the robot may flutter. Here {loads} may have no potential: "
            "forces of a fixed direction have one, moments in space have none, also of a fixed direction. Take other "
            "loads, or watch the motion in time steps"
        )
