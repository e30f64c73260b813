"""The core of a step: the equations, Newton's method, and the contacts that it met on the way.

Everything else is built around it: `gradients.gradient` makes it differentiable; `forward` takes a batch some robots at
a time, as does `chunks` where each part of the batch is a step of its own to autograd; `substeps` takes failed steps
again in parts; `recorded.recording` replays it, on a CPU as tapes, on a GPU as CUDA graphs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.contact.passing import obstacles_suspected
from torchdismech.contact.report import ContactReport, contact_report, obstacle_report, obstacle_report_names
from torchdismech.errors import Status
from torchdismech.integrate.candidates import ContactCandidates, StepContacts
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.search.attempts import Attempt, Search, Start
from torchdismech.integrate.search.constrained import ConstrainedSearch
from torchdismech.integrate.search.descending import DescendingSearch
from torchdismech.integrate.search.easing import eased_newton
from torchdismech.integrate.search.first_iterate import first_iterate
from torchdismech.integrate.search.primal_dual import primal_dual_newton
from torchdismech.integrate.search.semismooth import semismooth_newton
from torchdismech.robot.state import State
from torchdismech.solve.newton import newton
from torchdismech.solve.relaxed import relaxed_newton
from torchdismech.solve.search import Iterate, NewtonOptions, Root
from torchdismech.values import where_rows

__all__ = [
    "further_attempts",
    "newton_options",
    "obstacles_reported",
    "solved_step",
    "step_contact",
    "step_info",
    "step_to",
]


def solved_step(problem: StepProblem, tried: Tensor | None = None) -> tuple[State, StepInfo, StepContacts | None]:
    """Return the states after a step, how it went, and the contact candidates that were looked at.

    This is a step without any policy: contact candidates, equations, Newton's method, the state at the root. Where a
    recording takes it on obstacles alone, it finds the loads of all their points without looking for candidates. There
    are no candidates (None) where none of them touched, and the step was solved without them.

    Parameters
    ----------
    tried : (B,) iterations of the first attempt, if a recording has made that without success.
    """
    candidates = ContactCandidates(problem)
    recorded = problem.recorded
    if (apart := _step_apart(problem, candidates)) is not None:
        if recorded is not None:
            recorded.watch_pairs(problem, *apart)
        return *apart, None
    parts_and_obstacles = candidates.pairs is not None and len(candidates.near) > 0
    if recorded is not None and parts_and_obstacles and candidates.parts_seem_apart(problem.running):
        taken = recorded.step_on_obstacles(problem)
        if taken is not None and taken.unsolved is None and candidates.parts_stay_apart(taken.after, problem.running):
            recorded.watch_pairs(problem, taken.after, taken.info)
            return taken.after, taken.info, taken.contacts
    equations = candidates.equations(problem)
    q, info = _root(problem, equations, problem.running, tried=tried)
    after, info = step_to(problem, equations, candidates, q, info)
    if recorded is not None and candidates.pairs is not None and bool(info.converged.all()):
        recorded.watch_pairs(problem, after, info)
    return after, info, candidates


def _step_apart(problem: StepProblem, candidates: ContactCandidates) -> tuple[State, StepInfo] | None:
    """Return the states after a step in which nothing that is searched for touches, and how it went.

    A root of the equations without these contacts is one of the equations with them where they bear no load. None where
    something touches, or the first attempt does not solve the step.
    """
    compiled = problem.model.compilation.runs_compiled(problem.state.batch, problem.state.q)
    if problem.recorded is not None and problem.recorded.parts_touch:
        return None  # they did a few steps ago
    if compiled or not (candidates.searches and problem.method.scheme.inertial):
        return None
    if not candidates.seem_apart(problem.running):
        return None
    found = _without_contact(problem) if problem.recorded is None else problem.recorded.step_apart(problem)
    return found if found is not None and candidates.stay_apart(found[0], problem.running) else None


def _without_contact(problem: StepProblem) -> tuple[State, StepInfo] | None:
    """Return the states after a step without contact that is searched for, and how it went.

    None where the first attempt fails, or something may have passed through an obstacle.
    """
    equations = problem.equations()
    q, info = _root(problem, equations, problem.running, most=1)
    after = _accepted(problem, equations, q, info)
    obstacles = problem.model.contact.obstacles
    if not bool(info.converged.all()) or bool(obstacles_suspected(obstacles, problem.state, after).any()):
        return None
    return after, dataclasses.replace(info, contact=step_contact(equations, q, problem.running))


def step_to(
    problem: StepProblem, equations: StepEquations, candidates: ContactCandidates, q: Tensor, info: StepInfo
) -> tuple[State, StepInfo]:
    """Return the states after a step whose roots are q (B, n), and how it went, with the contact report.

    A step that overlooked a contact, or led through something, is solved again. Robots that pass through something all
    the same have failed.
    """
    if candidates.none:
        return _accepted(problem, equations, q, info), info
    running = problem.running
    equations, q, info, missed = _with_all_candidates(problem, equations, candidates, q, info)
    after = _accepted(problem, equations, q, info)
    passed = missed | (running & info.converged & candidates.passed(after))
    if bool(passed.any()):
        equations, q, info, passed = _searched_from_start(problem, equations, candidates, q, info, passed)
        info = dataclasses.replace(info, status=torch.where(passed, int(Status.PASSED_THROUGH), info.status))
        after = _accepted(problem, equations, q, info)
    candidates.keep(equations.constraints)
    accepted = running & info.converged
    all_accepted = accepted.is_cpu and bool(accepted.all())  # not asked on a GPU, which the host would wait for
    contact = step_contact(equations, q, None if all_accepted else accepted)
    return after, dataclasses.replace(info, contact=contact)


def _accepted(problem: StepProblem, equations: StepEquations, q: Tensor, info: StepInfo) -> State:
    """Return the states after a step to q (B, n); robots that did not converge keep the state before it."""
    return equations.compiled(StepEquations.accepted_state)(equations, q, problem.running & info.converged)


def _root(
    problem: StepProblem,
    equations: StepEquations,
    running: Tensor,
    near: Tensor | None = None,
    most: int | None = None,
    tried: Tensor | None = None,
) -> tuple[Tensor, StepInfo]:
    """Return q (B, n) where the forces balance, and how it was found.

    Parameters
    ----------
    near : (B, n) a first iterate from which a line search is tried before the method's own attempts.
    most : number of these attempts that are made at most; None: all.
    tried : (B,) iterations of the first of them, if that was made already.
    """
    attempts = list(problem.method.attempts(equations, problem.divisible))[0 if tried is None else 1 : most]
    first = None
    if near is not None:
        attempts, first = [Attempt(Start.HERE, Search.LINE_SEARCH), *attempts], problem.model.unknowns.of_dofs(near)
    equations.prepare()
    starts_ahead = attempts[0].start is Start.AHEAD
    weight, scale, first = equations.compiled(StepEquations.setup)(equations, first, starts_ahead)
    options = newton_options(problem, equations, weight, problem.method.tolerance(scale))
    root = _attempted_root(equations, first, options, running, attempts[0])
    root = further_attempts(equations, root, attempts[1:], options, running)
    if tried is not None:
        root = dataclasses.replace(root, iterations=root.iterations + torch.where(running, tried, 0))
    q = equations.full(root.x)
    return q, step_info(equations, root, q, scale, running)


def newton_options(problem: StepProblem, equations: StepEquations, weight: Tensor, tolerance: Tensor) -> NewtonOptions:
    """Return the options of the searches for the root of a step: solver, weights, tolerance, iterations."""
    return NewtonOptions(
        equations.solver(),
        weight,
        tolerance,
        problem.method.max_iterations,
        problem.method.line_search,
        noise_at_each_iterate=problem.model.contact.needs_feasible_iterates,
    )


def further_attempts(
    equations: StepEquations,
    root: Root,
    attempts: Sequence[Attempt],
    options: NewtonOptions,
    running: Tensor,
) -> Root:
    """Return the root after further attempts, each in the running rows (B,) that are not solved yet."""
    failed = running & (root.status != Status.CONVERGED)
    for attempt in attempts:
        if not bool(failed.any()):
            break
        first, last = root.x, root.last
        if attempt.start is not Start.LAST:
            first, last = first_iterate(equations, attempt.start is Start.AHEAD), None
        later_root = _attempted_root(equations, first, options, failed, attempt, last)
        root = root.followed_by(later_root, failed)
        failed = running & (root.status != Status.CONVERGED)
    return root


def _attempted_root(
    equations: StepEquations,
    first: Tensor,
    options: NewtonOptions,
    running: Tensor,
    attempt: Attempt,
    last: Iterate | None = None,
) -> Root:
    """Return the root that an attempt finds from a first iterate (B, n_free).

    Parameters
    ----------
    last : the iterate at `first`, if a search before ended there.
    """
    search, options = attempt.search, attempt.options(options)
    match search:
        case Search.SEMISMOOTH:
            return semismooth_newton(equations, first, options, running)
        case Search.DESCENT if equations.constraints is not None:
            return DescendingSearch(equations, first, options, running).root()
        case _ if equations.constraints is not None:
            return ConstrainedSearch(equations, first, options, running).root()
        case Search.DESCENT:
            with equations.descended():
                return newton(equations, first, options, running)
        case Search.PRIMAL_DUAL:
            return primal_dual_newton(equations, first, options, running, last)
        case Search.EASED | Search.EASED_BRIEFLY:
            return eased_newton(equations, first, options, running, briefly=search is Search.EASED_BRIEFLY)
        case Search.RELAXED:
            return relaxed_newton(equations, first, options, equations.inertia(), running)
        case Search.LINE_SEARCH | Search.WHOLE:
            return newton(equations, first, options, running)


def step_info(equations: StepEquations, root: Root, q: Tensor, scale: Tensor, running: Tensor) -> StepInfo:
    """Return how a step to q (B, n) went; robots that failed with a folded edge have status FOLDED_EDGE."""
    status = root.status
    failed = running & (status != Status.CONVERGED)
    if bool(failed.any()):
        folded = failed & equations.model.frames.folded(equations.start.state, q)
        status = torch.where(folded, int(Status.FOLDED_EDGE), status)
    return StepInfo.of(root, status, scale)


def _with_all_candidates(
    problem: StepProblem, equations: StepEquations, candidates: ContactCandidates, q: Tensor, info: StepInfo
) -> tuple[StepEquations, Tensor, StepInfo, Tensor]:
    """Return equations with all contact candidates that their roots need, these roots (B, n), and how they were found.

    Last come the robots (B,) that still missed a contact when the search for candidates was given up.
    """
    running = problem.running
    missed = running & info.converged & candidates.missed(q)
    while bool(missed.any()) and candidates.widen(q):
        # loads belong to the old candidates: with constraints all robots are solved anew
        rows = missed if equations.constraints is None else running & info.converged
        equations = candidates.equations(problem)
        q_again, info_again = _root(problem, equations, rows, near=q)
        info_again = dataclasses.replace(info_again, iterations=info_again.iterations + info.iterations)
        q, info = torch.where(rows[:, None], q_again, q), info.merged(info_again, rows)
        missed = running & info.converged & candidates.missed(q)
    return equations, q, info, missed


def _searched_from_start(
    problem: StepProblem,
    equations: StepEquations,
    candidates: ContactCandidates,
    q: Tensor,
    info: StepInfo,
    passed: Tensor,
) -> tuple[StepEquations, Tensor, StepInfo, Tensor]:
    """Solve once more, from the start of the step, for robots that `passed` (B,) through something.

    The first iterate is where the robot is, as one ahead may lie beyond what is in the way. Returned are equations with
    all candidates that the roots need, these roots q (B, n), how they were found, and the robots (B,) for which this
    failed: no root was found, or at it a contact is missed, or they pass through something again. These keep their q
    and report; iterations are those of both searches.
    """
    q_again, info_again = _root(problem, equations, passed, near=problem.state.q)
    found = passed & info_again.converged
    again = dataclasses.replace(info.merged(info_again, found), iterations=info.iterations + info_again.iterations)
    q_again = torch.where(found[:, None], q_again, q)
    # robots that are stopped may end where nobody has looked for pairs: their parts do not move on together
    equations, q_again, again, missed = _with_all_candidates(problem, equations, candidates, q_again, again)
    passed_again = candidates.passed(equations.state_after(q_again))
    lost = missed | (passed & (~found | ~again.converged | passed_again))
    q = torch.where(lost[:, None], q, q_again)
    return equations, q, dataclasses.replace(again.merged(info, lost), iterations=again.iterations), lost


def step_contact(equations: StepEquations, q: Tensor, rows: Tensor | None) -> ContactReport:
    """Return the contact report of a step to q (B, n), zeros but in the rows (B,) that made it; None: all did."""
    contact, pairs = equations.model.contact, equations.start.pairs
    position, velocity, time, *of_obstacles = equations.compiled(obstacles_reported)(equations, q)
    state = equations.start.state.replace(q=position, velocity=velocity, time=time)
    report = contact_report(
        equations.model.body,
        contact.obstacles,
        contact.self_contacts,
        state,
        None if pairs is None else pairs.listed,
        equations.constraints,
        dict(zip(obstacle_report_names(contact.obstacles), of_obstacles, strict=True)),
    )
    if rows is None:
        return report
    return {name: where_rows(rows, value, torch.zeros_like(value)) for name, value in report.items()}


def obstacles_reported(equations: StepEquations, q: Tensor) -> list[Tensor]:
    """Return q, velocity (B, n) and time (B,) where forces of a step to q are evaluated, and the report of obstacles.

    The report is the tensors that `obstacle_report` returns, without their names.
    """
    state, model = equations.evaluated_state(q), equations.model
    report = obstacle_report(model.body, model.contact.obstacles, state)
    return [state.q, state.velocity, state.time, *report.values()]
