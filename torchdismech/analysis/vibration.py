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

__all__ = ["Modes", "modes"]

INSTANT = 1e-9  # s, in which dissipation is measured: as C / INSTANT beside K, so that K's rounding does not count
SKEW = 1e-6  # of the largest eigenvalue found: beyond, forces that follow the robot couple the modes


@dataclass(frozen=True, repr=False)
class Modes:
    """The lowest modes of each robot of a batch, by rising eigenvalue.

    A mode i moves a robot by a(t) * shape[i], with a'' + damping[i] a' + eigenvalue[i] a = 0.

    Attributes
    ----------
    eigenvalue : (B, count) square of the angular frequency [1/s^2]; negative where the state is unstable, exactly 0
        where rounding leaves nothing to tell, as for the motions of a rigid body that nothing holds.
    shape : (B, count, n) what each dof moves [m, rad], the generalised mass shape^T M shape being 1 kg. The
        sign is such that the largest entry is positive. Modes of one frequency may come in any mixture.
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
        """Which robots (B,) have no mode that grows."""
        return ~(self.eigenvalue < 0).any(1)

    def __repr__(self) -> str:
        """Return the frequencies of the first robot, and what else there is."""
        robots, count = self.eigenvalue.shape
        shown = ", ".join(f"{value:.4g}" for value in self.frequency[0, :6].tolist()) + ", ..." * (count > 6)
        unstable = int((~self.stable).sum())
        return (
            f"Modes({count} of {robots} robot{'s' * (robots > 1)}; robot 0: {shown} Hz"
            + f"; {unstable} unstable" * bool(unstable)
            + ")"
        )


@torch.no_grad()
def modes(model: Model, state: State, count: int, control: Control | None = None) -> Modes:
    """Return the lowest modes of small vibrations about a state, at rest there.

    The eigenvalues of K shape = eigenvalue * M shape: K are the derivatives of all forces (elastic, contact, loads) by
    the free dofs, M the masses, lumped or consistent. Angles without inertia follow the others at once. Damping is that
    of forces that change with velocity and of dissipation, shape^T C shape. A state that is no equilibrium has modes,
    too: those of the forces' derivatives there; `Modes.imbalance` tells.

    Matrices are made where the model is; the eigenvalues are found on the CPU, robot by robot, whatever the device.
    Nothing is recorded for gradients.

    Parameters
    ----------
    state : of any number of robots; its velocity does not count. A warning names loads whose start and stop are not
        around its time: they do not act.
    count : how many modes, at most as many as there are free dofs with a mass.
    control : what acts at the state (natural strains, forces, values); None for the model's own.

    Raises
    ------
    InputError
        A count that there is not; a state, a control or forces that are not finite; contacts that are constraints (they
        have no stiffness); an angle without inertia that nothing holds; forces whose derivatives are not symmetric in
        these modes (loads without a potential, such as those that follow the robot and moments in space, may make it
        flutter, which modes do not tell).
    """
    refuse_other_model("modes", model, Model, "; chains have rigid.natural_frequencies")
    control = control_of(control)
    refuse_other_kind("modes: state", state, State, STATES)
    model.check_batch(state, control)
    most = int((model.free & ~model.unknowns.algebraic).sum()) - model.unknowns.slides.n_across
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
    """Yield each robot alone, the model holding its values."""
    for robot, (values, alone, acting) in enumerate(model.parts(state, control, 1)):
        with values.in_place():
            yield robot, alone, acting


def _modes_of_robot(model: Model, robot: int, state: State, control: Control, count: int) -> tuple[Tensor, ...]:
    """Return eigenvalues, shapes, damping (1, ..) and imbalance (1,) of one robot."""
    start, elapsing = model.start_step(state, control), model.start_step(state, control, INSTANT)
    at = (state.q, state.velocity, state.time)
    force, values = model.mechanics.force_and_stiffness(start, *at)
    if not bool(torch.isfinite(force).all()):
        raise InputError(
            f"modes of robot {robot}: forces at the state are not finite numbers: look at the model's forces"
        )
    _, damped = model.mechanics.force_and_stiffness(elapsing, *at, Gains(velocity=1 / INSTANT))
    pattern = model.solvers.of(1, start.pairs).pattern
    # of motions: one for each unknown, of nodes that slide those along their lines
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
    whole = model.unknowns.expand(free, state.q.new_zeros(count, model.n_dofs))
    imbalance = torch.linalg.vector_norm(model.unknowns.on_unknowns(force) * model.unknowns.residual_weight(), dim=1)
    return (
        torch.as_tensor(eigenvalue, device="cpu")[None].to(state.q),
        whole[None],
        torch.as_tensor(by_mode, device="cpu")[None].to(state.q),
        imbalance,
    )


def _mass_matrix(model: Model, like: Tensor) -> Any:
    """Return the mass matrix of one robot; it is on the pattern of a robot whose parts do not touch each other."""
    pattern = model.layout.pattern
    values = like.new_zeros(pattern.nnz, 1)
    model.layout.add_mass(values, 1.0)
    return sparse_matrix(pattern, values[:, 0])


def _refuse_flutter(
    model: Model, robot: int, stiffness: Any, eigenvalue: np.ndarray, shape: np.ndarray, precision: float
) -> None:
    """Refuse a stiffness that is not symmetric as these modes see it, and name the loads whose derivatives are not."""
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
