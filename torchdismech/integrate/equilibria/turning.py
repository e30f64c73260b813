"""Torques on angles in equilibria: they are measured from frames that have to follow the edges as these turn.

The angle of an edge is measured from its reference frame, which is transported from where the search began. A torque
that turns the edge about itself does the work torque * (d angle + turn . d edge), where `turn` is how the transported
frame turns about the edge. A search leaves the second part out: it is zero where the edge is as it was at the start.
So the equilibrium under such a torque is that from which a further search does not turn the edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.integrate.problem import StepProblem
from torchdismech.robot.state import State

__all__ = ["free_torques", "left_out", "torques_as_cause"]

ROUNDING = 1e4  # times the resolution of a number: turns of edges [rad] that count as none


@torch.no_grad()
def free_torques(problem: StepProblem) -> Tensor | None:
    """Return the torques (B, A) [N m] that do not change in a search on the angles of framed edges; None without any.

    Those on angles that are clamped do no work, and are zero here.
    """
    model, state, control = problem.model, problem.state, problem.control
    load = model.mechanics.held_force(state, control)
    for force in model.forces:
        if force.constant and not force.explicit:
            load = load + force(state, control)
    load = torch.where(model.free, load, 0.0)
    torques = load[:, 3 * model.body.n_nodes :][:, : len(model.body.framed_edges)]
    return torques if bool(torques.any()) else None


@torch.no_grad()
def left_out(problem: StepProblem, before: State, after: State, torques: Tensor) -> Tensor:
    """Return the largest force (B,) [N] on a node that a search from one state to the other left out for torques."""
    start, end = problem.model.body.framed_edges.T
    tangents, starts = (state.tangent[:, : len(start)] for state in (after, before))
    x = after.positions
    length = torch.linalg.vector_norm(x[:, end] - x[:, start], dim=-1)
    turned = torch.linalg.vector_norm(tangents - starts, dim=-1)
    turned = torch.where(turned > ROUNDING * torch.finfo(turned.dtype).eps, turned, 0.0)
    return (0.5 * torques.abs() * turned / length).amax(1)


def torques_as_cause(problem: StepProblem, failed: Tensor) -> str | None:
    """Return that equilibria of robots (B,) may not be found as torques turn with edges; None where none does."""
    torques = free_torques(problem) if bool(failed.any()) else None
    if torques is None or not bool((failed[:, None] & (torques != 0)).any()):
        return None
    return (
        "torques on angles (Control.force) turn with their edges, and repeated searches may find no rest under large "
        "ones: on rods take forces.PointMoment(..., frame='material') in their place, else smaller torques"
    )
