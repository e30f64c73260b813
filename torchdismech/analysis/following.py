"""`follow`: paths of equilibria under a growing load, past the limit points where the load turns."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.analysis.path import EquilibriumPath
from torchdismech.analysis.walk import Walk
from torchdismech.errors import (
    FailureWarning,
    InputError,
    Status,
    finite_number,
    real_number,
    refuse_other_kind,
    refuse_other_model,
    warn,
    whole_number,
)
from torchdismech.integrate.equilibria.supports import refuse_unheld
from torchdismech.integrate.idle_friction import refuse_driven_tangents, warn_of_idle_friction
from torchdismech.integrate.idle_loads import warn_of_absent_loads, warn_of_small_loads
from torchdismech.integrate.integrator import FORCE_TOLERANCE, RELATIVE_TOLERANCE
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.static import Static
from torchdismech.model import Model
from torchdismech.model.clamps import RigidWays, posed
from torchdismech.robot.state import STATES, Control, State, control_of
from torchdismech.solve.linear.base import DirectSolver
from torchdismech.system.uncompiled import uncompiled

__all__ = ["EquilibriumPath", "follow"]

NAMED = 3  # most robots that a warning names


@uncompiled
def follow(
    model: Model,
    state: State,
    control: Control | None = None,
    last: float = 1.0,
    steps: int = 100,
    length: float = 0.05,
    max_iterations: int = 10,
    force_tolerance: float = FORCE_TOLERANCE,
    relative_tolerance: float = RELATIVE_TOLERANCE,
) -> EquilibriumPath:
    """Return the path of equilibria of each robot from no load towards `last` times its loads.

    The load factor multiplies external forces. In proportion to it, natural strains go from the model's to the
    control's, and clamped dofs from the state's to the control's; a clamp with a pose moves as a rigid body, its point
    along a straight line and its rotation evenly, by half a turn at most. `Control.values` act in full from the
    beginning. Beyond a limit point the load falls (or rises again), and the path goes on, through unstable equilibria,
    too; at a branch point it goes straight on. A robot's path ends at the load factor `last`, after `steps` steps, or
    where it cannot be continued.

    Contact by `Penalty` and `Barrier` acts in full from the beginning, and without friction. Contact candidates are
    found before each step, and a step in which anything passes through anything is repeated with half the length.

    Each robot takes steps of its own length, all at once. Nothing is recorded for gradients.

    A warning names the robots whose paths could not be continued, with the reason.

    A robot that is free to move without any resistance has no path: its status is SINGULAR. An example is a rod whose
    clamps hold nodes only, as hinges do, so that it may turn about its own axis; `direction="rest"` in a clamp prevents
    that. In single precision, rods of more than 100 edges may be so soft that they count as free: take a model in
    torch.float64.

    Parameters
    ----------
    state : near the equilibrium without loads, which is the first point. A warning names loads whose start and stop
        are not around its time: they do not act. Another names friction of contacts that bear a load at the end of a
        path: it does not act either.
    control : what acts at the load factor 1; forces of the model act in any case.
    last : load factor at which paths end; negative ones go the other way.
    steps : points after the first, at most.
    length : largest step: neither does the load factor change by more than this, nor do nodes move by more than this
        part of the robot's extent (root of the mean square; angles in rad). A snap of a shallow arch may be far smaller
        than that. So each step is also at most 1.5 times the one before, and shorter where the path bends, where many
        iterations are needed, or where the load falls and rises again between two points.
    max_iterations : most Newton iterations of a step.
    force_tolerance, relative_tolerance : as for `Static`.

    Raises
    ------
    InputError
        Arguments out of range, materials that remember, contact by `Complementarity`, an iterative linear solver, a
        part that nothing holds against its loads.
    """
    refuse_other_model("follow", model, Model)
    refuse_other_kind("follow: state", state, State, STATES)
    control = control_of(control)
    _check(model, state, control, last, steps, length)
    method = Static(1, force_tolerance, relative_tolerance, max_iterations)
    running = torch.ones(state.batch, dtype=torch.bool, device=state.q.device)
    values = model.values_of(control)
    with torch.no_grad(), model.lock, model.compilation.paused(), values.in_place():
        control = control.without_values()
        posed_control = posed(model.body, state, control)
        refuse_unheld(model, state, posed_control, running, force_tolerance)
        warn_of_small_loads(model, state, posed_control, None, method.force_tolerance)
        warn_of_absent_loads("follow", model, state)
        refuse_driven_tangents("follow", model, state)
        start = method.scheme.started(state.detach(), 0.0)
        clamp_motions = None if control.pose is None else RigidWays(model.body, start, control.pose)
        problem = StepProblem(model, method, start, control.replace(pose=None), 0.0, running, values)
        path = Walk(problem, clamp_motions, float(last), float(length)).path(int(steps))
        if not model.contact.none:
            end = path.states[-1]
            warn_of_idle_friction("follow", model, end, model.contact.report(end), path.points > 0, force_tolerance)
    _warn_of_branches(path)
    _warn_of_failures(path, state, control, model.body.clamped.dofs)
    return path


def _warn_of_branches(path: EquilibriumPath) -> None:
    """Warn of the first robot whose path becomes unstable at a branch point."""
    for robot in range(len(path.points)):
        branches = path.branches(robot)
        if len(branches):
            warn(
                f"follow: the path of robot {robot} is stable no more beyond the load factor {branches[0].item():.6g}, "
                "though its load does not turn there: other paths branch off, and this one goes straight on, as a "
                "perfect column does; give the robot an imperfection (a small force across) to follow a branch, or, if "
                "it has one, a larger one or a smaller length",
                RuntimeWarning,
            )
            return


def _warn_of_failures(path: EquilibriumPath, state: State, control: Control, clamped: Tensor) -> None:
    """Warn of the robots whose paths could not be continued, and of numbers in the control that are not finite."""
    if failures := path.failures():
        sentences = [*failures[:NAMED], "..."] if len(failures) > NAMED else failures
        cause = control.not_finite(path.status != Status.CONVERGED, state.time, clamped)
        warn(f"follow: {'; '.join([*sentences, cause] if cause else sentences)}", FailureWarning)


def _check(model: Model, state: State, control: Control, last: object, steps: int, length: object) -> None:
    """Refuse arguments out of range, and models whose equilibria cannot be followed."""
    model.check_batch(state, control)
    expected = "a number other than 0"
    if finite_number(last, "follow.last", expected) == 0:
        raise InputError(f"follow.last: expected {expected}, got {last!r}")
    whole_number(steps, "follow.steps")
    expected = "a number above 0 and up to 1"
    if not 0 < real_number(length, "follow.length", expected) <= 1:
        raise InputError(f"follow.length: expected {expected}, got {length!r}")
    if state.internal is not None:
        raise InputError("follow: equilibria of materials that remember depend on the way; take Static with load_steps")
    if model.contact.constrained:
        raise InputError("follow: a path has a corner where a constraint closes or opens; take Penalty or Barrier")
    if not isinstance(model.solvers.of(state.batch), DirectSolver):
        raise InputError(
            f"follow: solver {model.solvers.name!r} is iterative and cannot tell which equilibria are stable; take a "
            "direct one"
        )
