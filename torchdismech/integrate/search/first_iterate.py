"""Where the search for the root of a step begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdismech.integrate.scheme import Scheme
from torchdismech.model import Model

if TYPE_CHECKING:
    from torchdismech.integrate.equations import StepEquations

__all__ = ["first_iterate", "smooth_change"]

# Change of the velocity in a step, relative to it, up to which first iterates count on acceleration. Beyond, it tells
# nothing of the next step: at 0.1 a plate that folds takes up to 12 iterations instead of 5, at 0.6 a helix that is let
# go 56 instead of 8. With smaller limits more swinging rods do without: steps of 2 ms take 1.5 iterations with it, 2
# without.
SMOOTH = 0.06
# By schemes that damp, rods do not snap like that: swinging ones take 2.0 iterations instead of 2.2 in steps of 10 ms,
# and a helix that is let go no more than with a smaller limit.
SMOOTH_RODS = 0.2
# Change up to which they count on the whole of it, in place of half, by schemes that damp: steps of 1 ms take 1.1
# iterations then, 2 with half of it. Beyond, it goes too far where a load ends (7 iterations instead of 3); with 0.04
# a helix that is let go takes 2.8 iterations in steps of 5 ms, 2.7 with this.
VERY_SMOOTH = 0.03

# times that what is pushed across a barrier goes along, and then what that pushes in turn
CARRYING_ROUNDS = 8


def smooth_change(model: Model, scheme: Scheme) -> float:
    """Return the largest relative change of the velocity in a step that counts as smooth motion."""
    return SMOOTH_RODS if scheme.damps_strongly and not len(model.triangles) else SMOOTH


def first_iterate(equations: StepEquations, ahead: bool) -> Tensor:
    """Return a first iterate (B, n_free): where the robots are, or `ahead` where their motion leads.

    Clamped dofs are at their targets.
    """
    model, state = equations.model, equations.start.state
    step = equations.base - state.q
    if ahead:
        velocity = state.velocity + _gained_velocity(equations)
        step = model.unknowns.with_held(equations.dt * velocity, step)
    there = equations.moved(state.q, step)
    for obstacle in model.obstacles:
        if obstacle.law.response.feasible_only:
            after = state.time + equations.dt
            there = obstacle.without_overlap(there, state, after)
            if model.unknowns.some_in_part or (model.unknowns.planar and obstacle.path is not None):
                reached = model.unknowns.with_held(there, equations.base)
                there = there + obstacle.step_aside(reached, state, after, model.unknowns)
    return model.unknowns.of_dofs(there if ahead else _carried_along(equations, there))


def _carried_along(equations: StepEquations, there: Tensor) -> Tensor:
    """Return q (B, n) without overlap across barriers between parts: what is in the way of a clamp goes along with it.

    So does what is in the way of nodes that an obstacle, or such a part, moved, up to `CARRYING_ROUNDS` times.
    """
    model, pairs, start = equations.model, equations.start.pairs, equations.start.state.q
    if pairs is None or not model.contact.self_contacts.barrier_numbers:
        return there
    there = model.unknowns.with_held(there, equations.base)  # `without_overlap` moves clamped nodes, too
    nodes = 3 * model.body.n_nodes
    carried = torch.zeros_like(there[:, :nodes:3], dtype=torch.bool)
    for _ in range(CARRYING_ROUNDS):
        way, pushed = model.contact.self_contacts.ways_of_others(pairs.listed, there, start)
        pushed = pushed & ~carried
        if not bool(pushed.any()):
            break
        carried = carried | pushed
        moved = there[:, :nodes] + torch.where(pushed.unsqueeze(2), way, 0.0).flatten(1)
        there = model.unknowns.with_held(torch.cat([moved, there[:, nodes:]], dim=1), there)
    return there


def _gained_velocity(equations: StepEquations) -> Tensor | float:
    """Return the velocity (B, n) that the present acceleration adds in the step; zero where motion is not smooth.

    A robot that gains much of its velocity in a step vibrates too fast for the steps, was let go, or hits something.
    """
    model, state, scheme = equations.model, equations.start.state, equations.scheme
    if not scheme.inertial:
        return 0.0
    nodes = 3 * model.body.n_nodes
    acceleration, speed = (x[:, :nodes].abs().amax(1, keepdim=True) for x in (state.acceleration, state.velocity))
    change, whole = equations.dt * acceleration, equations.dt
    # their mean velocity in the step: other schemes' is half of it, to second order
    part = 0.5 * whole
    if scheme.damps_strongly:
        part = torch.where(change <= VERY_SMOOTH * speed, whole, part)
    return torch.where(change <= equations.smooth_change * speed, part, 0.0) * state.acceleration
