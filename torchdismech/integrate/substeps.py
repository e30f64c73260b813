"""Failed steps taken again, in equal parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from torchdismech.integrate.info import StepInfo
from torchdismech.integrate.problem import StepProblem, Take
from torchdismech.robot.state import State

__all__ = ["in_parts", "with_retries"]


def with_retries(take: Take, problem: StepProblem, most: int) -> tuple[State, StepInfo]:
    """Return the states after a step; robots whose step fails try again in 2, 4, ... up to `most` equal parts.

    Clamped dofs move evenly over the parts; the rest of the control stays the same.
    """
    start, target, parts = problem.state, problem.control.clamped_q, 1

    def take_part(state: State, running: Tensor, share: float) -> tuple[State, StepInfo]:
        clamped_q = None if target is None else start.q + (target - start.q) * share
        part = problem.replace(
            state=state,
            control=problem.control.replace(clamped_q=clamped_q),
            dt=problem.dt / parts,
            running=running,
            divisible=2 * parts <= most,
            following=(),
        ).with_fields()
        with part.values.in_place():
            return take(part)

    after, info = take(problem.replace(divisible=most > 1))
    while 2 * parts <= most and bool((failed := problem.running & ~info.converged).any()):
        parts *= 2
        after, info = in_parts(take_part, parts, start, failed, after, info)
    return after, info


def in_parts(
    take_part: Callable[[State, Tensor, float], tuple[State, StepInfo]],
    parts: int,
    start: State,
    rows: Tensor,
    after: State,
    info: StepInfo,
) -> tuple[State, StepInfo]:
    """Take a step in equal parts; return `after` and `info` with those of the `rows` (B,) replaced that made all parts.

    Parameters
    ----------
    take_part : takes the next part from a state, for the robots (B,) that run; it ends at a share of the whole step.
    start : the states before the step.
    after, info : the states after the step, and how it went, when it was taken before.
    """
    state, running, iterations = start, rows, info.iterations
    for part in range(1, parts + 1):
        state, part_info = take_part(state, running, part / parts)
        iterations = iterations + torch.where(running, part_info.iterations, 0)
        running = running & part_info.converged
        if not bool(running.any()):
            break
    substeps = torch.where(rows, parts, info.substeps)
    info = dataclasses.replace(info.merged(part_info, running), iterations=iterations, substeps=substeps)
    return after.merged(state, running), info
