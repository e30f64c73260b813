"""Failed steps taken again, in equal parts."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem, Take
from torchdismech.robot.state import State

__all__ = ["with_retries"]


def with_retries(take: Take, problem: StepProblem, most: int) -> tuple[State, StepInfo]:
    """Return the states after a step; robots whose step fails try again in 2, 4, ... up to `most` equal parts."""
    after, info = take(problem.replace(divisible=most > 1))
    parts = 2
    while parts <= most and bool((failed := problem.running & ~info.converged).any()):
        after, info = _in_parts(take, problem.replace(divisible=2 * parts <= most), parts, failed, after, info)
        parts *= 2
    return after, info


def _in_parts(
    take: Take, problem: StepProblem, parts: int, rows: Tensor, after: State, info: StepInfo
) -> tuple[State, StepInfo]:
    """Take the step of `rows` (B,) in equal parts; return `after` and `info` with rows replaced that made all parts.

    Clamped dofs move evenly over the parts; the rest of the control stays the same.
    """
    start, control, target = problem.state, problem.control, problem.control.clamped_q
    state, running, iterations = start, rows, info.iterations
    for part in range(1, parts + 1):
        if target is not None:
            control = control.replace(clamped_q=start.q + (target - start.q) * (part / parts))
        part_problem = problem.replace(
            state=state, control=control, dt=problem.dt / parts, running=running, following=()
        )
        part_problem = part_problem.with_fields()
        with part_problem.values.in_place():
            state, part_info = take(part_problem)
        iterations = iterations + torch.where(running, part_info.iterations, 0)
        running = running & part_info.converged
        if not bool(running.any()):
            break
    substeps = torch.where(rows, parts, info.substeps)
    info = dataclasses.replace(info.merged(part_info, running), iterations=iterations, substeps=substeps)
    return after.merged(state, running), info
