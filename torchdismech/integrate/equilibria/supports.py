"""Refuses robots that nothing holds: they have no equilibrium under a load that pulls them away."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.geometry.graphs import connected_parts
from torchdismech.model import Model
from torchdismech.robot.state import Control, State

__all__ = ["refuse_unheld"]

ROUNDING = 1e-12  # relative, of sums of weights, which are about 1, and of sums of loads
# of sums of projections onto held directions: a larger eigenvalue means that the part is held along its axis
HOLDS = 1e-9


@torch.no_grad()
def refuse_unheld(model: Model, state: State, control: Control, rows: Tensor, tolerance: float) -> None:
    """Refuse robots (B,) with a part that nothing holds and whose loads do not cancel out.

    Some things may hold a part besides clamps, and robots that have them are not judged: contact, and forces that
    change with position or velocity. Directions in which an elastic term, or a magnet in a field, depends on where the
    part is count as held.

    Parameters
    ----------
    tolerance : of the sum of the loads on a part [N].
    """
    if model.mechanics.varying_forces or not model.contact.none:
        return
    parts = _parts(model)
    loose = np.stack(
        [_loose_directions(model, parts, projections) for projections in model.unknowns.slides.projections()]
    )
    if not loose.any():
        return
    mechanics = model.mechanics
    load = mechanics.constant_load(mechanics.start(state, control, None, None), state.time)
    nodes = load[:, : 3 * model.body.n_nodes].unflatten(1, (-1, 3))
    total = load.new_zeros(state.batch, loose.shape[1], 3).index_add(
        1, torch.as_tensor(parts, device=load.device), nodes
    )
    pull = (torch.as_tensor(loose, device="cpu").to(total) @ total.unsqueeze(-1)).squeeze(-1)
    rounding = ROUNDING * nodes.abs().sum((1, 2))
    falls = (pull.abs() > tolerance + rounding[:, None, None]) & rows[:, None, None]
    if bool(falls.any()):
        robot, part, way = falls.nonzero()[0].tolist()
        node = int(np.flatnonzero(parts == part)[0])
        direction = loose[robot % len(loose), part, way]
        axis = np.flatnonzero(np.abs(direction) == 1)
        along = "xyz"[axis[0]] if len(axis) else ", ".join(f"{x:.3g}" for x in direction).join("()")
        what = "the robot" if loose.shape[1] == 1 else f"the part of the robot that node {node} belongs to"
        raise InputError(
            f"static equilibrium: nothing holds {what} along {along}, where its loads pull with "
            f"{pull[robot, part, way].item():.3g} N: clamp a node, or take an integrator with inertia"
        )


def _parts(model: Model) -> np.ndarray:
    """Return for each node (N,) the number of its part: nodes that elastic terms connect are of one part."""
    count, pairs = model.body.n_nodes, []
    for term in model.terms:
        dofs = np.concatenate([d[None] for variable in term.stencil.variables for d, _ in variable])
        nodes = np.where(dofs < 3 * count, dofs // 3, -1)  # (reads, S)
        first = nodes.max(axis=0)
        linked = (nodes >= 0) & (nodes != first)
        pairs.append(np.stack([nodes[linked], np.broadcast_to(first, nodes.shape)[linked]], axis=1))
    return connected_parts(count, np.concatenate([np.zeros((0, 2), dtype=np.int64), *pairs]))


def _loose_directions(model: Model, parts: np.ndarray, projections: np.ndarray) -> np.ndarray:
    """Return for each part the directions (3, 3) in which nothing holds it: unit vectors in rows, padded with zeros.

    Parameters
    ----------
    parts : (N,) the part of each node.
    projections : (S, 3, 3) of a robot's sliding nodes, onto the directions in which they may move.
    """
    free = model.free.cpu().numpy()[: 3 * model.body.n_nodes].reshape(-1, 3)
    # for each part a sum of projections onto held directions
    held = (~_without_resistance(model, parts)).astype(float)[:, None] * np.eye(3)
    np.add.at(held, parts, (~free).astype(float)[:, None] * np.eye(3))
    for node, allowed in zip(model.unknowns.slides.nodes.tolist(), projections, strict=True):
        # held directions; axes that are clamped count already
        held[parts[node]] += np.diag(free[node].astype(float)) - allowed
    directions = np.zeros_like(held)
    for part, matrix in enumerate(held):
        along_axes = (np.diag(matrix.diagonal()) == matrix).all()
        sizes, axes = (matrix.diagonal(), np.eye(3)) if along_axes else np.linalg.eigh(matrix)
        loose = axes[:, sizes <= HOLDS].T
        directions[part, : len(loose)] = loose
    return directions


def _without_resistance(model: Model, parts: np.ndarray) -> np.ndarray:
    """Return for each part and axis whether no elastic term, nor magnet in a field, depends on its motion along it."""
    count = model.body.n_nodes
    unfelt = np.ones((parts.max() + 1, 3), dtype=bool)
    for term in [*model.terms, *(load.term for load in model.mechanics.loads_by_stencils)]:
        for variable in term.stencil.variables:
            total, part = np.zeros((term.stencil.count, 3)), np.zeros(term.stencil.count, dtype=np.int64)
            for dofs, weights in variable:
                at = np.flatnonzero(dofs < 3 * count)
                total[at, dofs[at] % 3] += weights[at]
                part[at] = parts[dofs[at] // 3]
            stencil, axis = np.nonzero(np.abs(total) > ROUNDING)
            unfelt[part[stencil], axis] = False
    return unfelt
