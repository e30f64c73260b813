"""Whether equilibria are minima of the potential energy, and how to leave those that are not."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.integrate.candidates import constraints_at
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.equilibria.linearised import Linearised, with_contacts_closed
from torchdismech.integrate.equilibria.settling import settled_step
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.model import Model
from torchdismech.robot.state import State
from torchdismech.solve.eigen import lowest_modes, sparse_matrix

__all__ = ["no_saddles", "stability", "without_saddles"]

LEAVES = 10  # how many saddles a robot leaves in one search, at most
PUSH = 1e-2  # of the robot's extent: how far the first push along the lowest mode goes
CLEAR = 0.5  # of the smallest contact radius: no push goes further where something may touch
HALVINGS = 12  # how often a push is halved, at most, until it lowers the potential far enough
DROP = 0.1  # of the fall that the potential's curvature promises: as much is enough
BLOCKED = 4  # modes that unloaded contacts block, at most; then a robot stays
MODES_LOOKED_AT = 4  # modes that are computed: more than one, as the lowest may have several directions
ALIKE = 1e-3  # relative: eigenvalues this near to the lowest belong to one mode with several directions
TELLING_PART = 1e-3  # part of a mode along an axis: a larger one decides on the mode's sign


@torch.no_grad()
def stability(problem: StepProblem) -> Tensor | None:
    """Return which equilibria (B,) at the problem's state are minima of the potential energy; None if unknown."""
    return None if (linearised := Linearised.at(problem, problem.state.q)) is None else linearised.minima


@torch.no_grad()
def no_saddles(problem: StepProblem, rows: Tensor) -> Tensor:
    """Return which of some robots (B,) are at no saddle of the potential energy; none where that is unknown."""
    linearised = Linearised.at(problem, problem.state.q)
    return torch.zeros_like(rows) if linearised is None else linearised.not_at_saddle(rows)


def without_saddles(problem: StepProblem, at: State, info: StepInfo, reasons: list[str]) -> tuple[State, StepInfo]:
    """Return equilibria after saddles were left, and how they were found; `stable` says which are minima.

    A robot on a saddle is pushed along the lowest mode of its matrix, as far as that lowers its potential, and searches
    anew from there, or settles where the search fails: the potential falls every time, so that no saddle is met twice.
    Robots stay where no way leads down (a part is free to move without any force) and where settling fails, too.

    Parameters
    ----------
    problem : the step that led to the equilibria, whose control and loads hold.
    at, info : the equilibria, and how they were found.
    reasons : is appended to: why robots stay on a saddle, where a search down from it failed or its mode was not found.
    """
    moving = problem.running & info.converged
    stable: Tensor | None = None
    for saddles_left in range(LEAVES + 1):
        problem_here = problem.replace(state=at, running=moving)
        pushed, pushes, minima = _pushed(problem_here, info.tolerance, reasons)
        if minima is None:
            return at, info
        stable = minima if stable is None else torch.where(moving, minima, stable)
        if saddles_left == LEAVES or not bool(pushes.any()):
            break
        settled, settled_info = settled_step(problem_here.replace(state=pushed, running=pushes), touching=False)
        reasons += _failures(settled_info.status[pushes], reasons)
        moving = pushes & settled_info.converged
        at = at.merged(settled, moving)
        iterations = torch.where(pushes, info.iterations + settled_info.iterations, info.iterations)
        info = dataclasses.replace(info.merged(settled_info, moving), iterations=iterations)
    return at, dataclasses.replace(info, stable=stable)


def _failures(status: Tensor, known: list[str]) -> list[str]:
    """Return by which statuses searches from pushed states failed, as reasons that are not `known` already."""
    names = [Status(code).name.lower() for code in status.unique().tolist() if code != Status.CONVERGED]
    new_reasons = [f"a search down from it ended by {name}" for name in names]
    return [reason for reason in new_reasons if reason not in known]


def _pushed(problem: StepProblem, tolerance: Tensor, reasons: list[str]) -> tuple[State, Tensor, Tensor | None]:
    """Return states pushed off their saddles, the robots (B,) that were pushed, and which robots (B,) are at minima.

    The last is None where it is unknown.

    Parameters
    ----------
    tolerance : (B,) residual that counts as balanced [N].
    reasons : is appended to: why modes were not found.
    """
    state = problem.state
    with torch.no_grad():
        linearised = Linearised.at(problem, problem.state.q)
        none_pushed = torch.zeros_like(problem.running)
        if linearised is None:
            return state, none_pushed, None
        saddles = problem.running & ~linearised.minima
        saddles = saddles & ~linearised.not_at_saddle(saddles) if bool(saddles.any()) else saddles
        if not bool(saddles.any()):
            return state, none_pushed, linearised.minima
        x_pushed, pushes = _pushed_along_modes(
            problem, linearised, *_unblocked_modes(linearised, saddles, reasons), tolerance
        )
        step = torch.where(pushes[:, None], linearised.equations.full(x_pushed) - state.q, 0.0)
    moved = problem.model.frames.moved(state, state.q + step)
    if state.internal is not None:  # materials remember a push like any other motion
        moved = moved.replace(internal=problem.equations().state_after(moved.q).internal)
    return state.merged(moved, pushes), pushes, linearised.minima


def _unblocked_modes(linearised: Linearised, saddles: Tensor, reasons: list[str]) -> tuple[Tensor, Tensor]:
    """Return for robots on saddles (B,) the lowest modes (B, n_free) that no contact blocks, and their eigenvalues.

    Contacts that bear a load are stiffened in the matrix. Contacts that touch without any may open. A mode that closes
    some of these whichever of its two directions it takes is blocked: those that it closes in one of them are
    stiffened, too, and the next mode is looked at.
    """
    equations, constraints, values = linearised.equations, linearised.equations.constraints, linearised.values
    modes, curvatures = _negative_modes(linearised, values, saddles, reasons)
    if constraints is None or not len(constraints):
        return modes, curvatures
    normals = constraints.jacobian(equations.contacts_at(linearised.x))[:, :1]
    for _ in range(BLOCKED):
        opening = constraints.motions_of(normals, equations.motion(modes)).squeeze(1)
        closes, opens = constraints.any(opening < -TELLING_PART), constraints.any(opening > TELLING_PART)
        blocked = closes & opens
        if not bool(blocked.any()):
            break
        to_hold = (opening < -TELLING_PART) & blocked[constraints.robot]
        values = with_contacts_closed(equations, linearised.x, values, to_hold)
        modes_when_held = _negative_modes(linearised, values, blocked, reasons)
        modes = torch.where(blocked[:, None], modes_when_held[0], modes)
        curvatures = torch.where(blocked, modes_when_held[1], curvatures)
    else:
        curvatures = torch.where(blocked, 0.0, curvatures)
    return modes, curvatures


def _negative_modes(
    linearised: Linearised, values: Tensor, saddles: Tensor, reasons: list[str]
) -> tuple[Tensor, Tensor]:
    """Return for robots on saddles (B,) the lowest modes (B, n_free) and their negative eigenvalues (B,).

    Modes are scaled so that the largest motion is 1 m (angles by their arc), and eigenvalues by the square of that
    scale, so that they are the curvatures of the potential along these modes [N/m]. Both are zero for robots without a
    way down, and where it cannot be found: these stay, and are reported as not stable.

    Parameters
    ----------
    values : (nnz, B) the matrix.
    reasons : is appended to: why a robot's modes were not found.
    """
    model, pattern = linearised.equations.model, linearised.equations.solver().pattern
    mass = model.body.mass[..., model.unknowns.index].expand(len(saddles), -1).double().cpu().numpy()
    count, precision = min(MODES_LOOKED_AT, int((mass[0] > 0).sum())), torch.finfo(values.dtype).eps
    modes, curvatures = torch.zeros_like(linearised.x), linearised.x.new_zeros(len(saddles))
    for robot in saddles.nonzero().flatten().tolist():
        matrix = sparse_matrix(pattern, values[:, robot])
        try:
            eigenvalues, shapes = lowest_modes(matrix, scipy.sparse.diags_array(mass[robot]), count, precision)
        # an angle without inertia is unstable, or the iteration does not converge
        except (ValueError, ArithmeticError) as error:
            reason = f"modes along which a robot could leave were not found: {error}"
            if reason not in reasons:
                reasons.append(reason)
            continue
        if eigenvalues[0] < 0:
            alike = eigenvalues <= (1 - ALIKE) * eigenvalues[0]
            mode = torch.as_tensor(_aligned(model, shapes[:, alike], mass[robot]), device="cpu").to(linearised.x)
            largest_motion = (mode / model.unknowns.residual_weight()).abs().max()
            modes[robot], curvatures[robot] = mode / largest_motion, eigenvalues[0] / largest_motion**2
    return modes, curvatures


def _aligned(model: Model, shapes: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Return the combination of shapes (n_free, k) that goes most towards +z, else +y, else +x, else positive angles.

    Nodes count the more the higher their number, so that one direction of a wave has more of it. So the choice does not
    change with rounding, as signs and combinations of eigenvectors would.
    """
    dof, nodes = model.unknowns.index.cpu().numpy(), 3 * model.body.n_nodes
    kind = np.where(dof < nodes, dof % 3, 3)
    for axis in (2, 1, 0, 3):
        field = mass * np.where(kind == axis, 1.0 + dof, 0.0)
        parts = shapes.T @ field
        size = np.linalg.norm(parts)
        if size > TELLING_PART * np.sqrt((field**2 / np.where(mass > 0, mass, 1.0)).sum()):
            return shapes @ (parts / size)
    return shapes[:, 0]


def _pushed_along_modes(
    problem: StepProblem, linearised: Linearised, modes: Tensor, curvatures: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor]:
    """Return unknowns (B, n_free) pushed along modes so little that the potential falls enough, and where (B,) it did.

    A push that unbalances forces by no more than the tolerance leads to an equilibrium just as good: that is a motion
    without any force, whose eigenvalue is not zero because the balance is not exact. With contacts that are constraints
    no push overlaps with anything new; where there is no room for one, the opposite direction is tried.

    Parameters
    ----------
    modes, curvatures : the modes (B, n_free) and their eigenvalues (B,), as of `_negative_modes`.
    tolerance : (B,) residual that counts as balanced [N].
    """
    equations, x = linearised.equations, linearised.x
    before = _lagrangian(equations, x)
    x_pushed, pushes = x.clone(), torch.zeros_like(linearised.minima)
    first_size = _first_push(equations.model)
    for sign in (1, -1) if equations.model.contact.constrained else (1,):
        size = first_size
        for _ in range(HALVINGS):
            waiting = (curvatures < 0) & ~pushes & (curvatures.abs() * size > tolerance)
            if not bool(waiting.any()):
                break
            tried = equations.advanced(x, sign * size * modes)
            drop = before - _lagrangian(equations, tried)
            good = waiting & (drop > DROP * 0.5 * curvatures.abs() * size**2)
            good = good & ~_overlaps_anew(problem, equations, tried)
            x_pushed, pushes = torch.where(good[:, None], tried, x_pushed), pushes | good
            size = 0.5 * size
    return x_pushed, pushes


def _lagrangian(equations: StepEquations, x: Tensor) -> Tensor:
    """Return the potential (B,) at x (B, n_free), less the loads of constraints times their gaps.

    Loaded contacts open or overlap along a push, by its square; this is the potential once they are closed.
    """
    potential = equations.potential_at(x)
    if (constraints := equations.constraints) is None:
        return potential
    return potential - constraints.sum(constraints.load[:, 0] * equations.contacts_at(x).gap)


def _overlaps_anew(problem: StepProblem, equations: StepEquations, x: Tensor) -> Tensor:
    """Return the robots (B,) in which something overlaps at x (B, n_free) by more than loaded contacts do."""
    constraints, there = equations.constraints, constraints_at(problem, equations.full(x))
    if constraints is None or there is None:
        return torch.zeros_like(problem.running)
    loaded = torch.where(constraints.load[:, 0] > 0, -equations.contacts_at(x).gap, 0.0)
    every = -there.at(equations.full(x), there.time).gap
    return there.largest(every) > torch.maximum(constraints.largest(loaded), there.tolerance)


def _first_push(model: Model) -> Tensor:
    """Return the length () of the first push [m]."""
    size = PUSH * model.body.extent()
    if model.contact.none:
        return size
    return torch.minimum(size, CLEAR * model.body.smallest_contact_radius())
