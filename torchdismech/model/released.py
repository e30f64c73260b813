"""Conversion of a state to a model of the same robot with fewer clamps that hold rods in a direction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.elastic import BendTwistStencil, ElasticTerm
from torchdismech.elastic.inelastic import internal_variables
from torchdismech.errors import InputError
from torchdismech.robot.body import Body
from torchdismech.robot.state import State

__all__ = ["released", "without_held"]


def released(
    state: State, before: Body, before_terms: Sequence[ElasticTerm], body: Body, terms: Sequence[ElasticTerm]
) -> State:
    """Return a robot's state as a state of the same robot with fewer held directions, with accelerations set to zero.

    Nodes, edges and springs keep their places, velocities, frames and internal variables.
    """
    _refuse_another_robot(before, body)
    _refuse_other_laws(before_terms, terms)
    kept = _kept_directions(before, body)
    state_without_held = without_held(state.replace(internal=None), kept)
    if state.internal is None:
        return state_without_held
    springs = _without(len(before.springs.nodes) - before.n_held, kept)
    of_springs = {term.name for term in before_terms if isinstance(term.stencil, BendTwistStencil)}
    remembered = [
        value[:, springs] if name.partition(".")[0] in of_springs else value
        for name, value in internal_variables(before_terms, state).items()
    ]
    return state_without_held.replace(internal=torch.cat(remembered, dim=1))


def without_held(state: State, kept: Sequence[int]) -> State:
    """Return a state with only the held tangents in `kept`, without internal variables and with zero acceleration."""
    nodes, edges = 3 * state.n_nodes, state.director.shape[1] - state.n_held
    framed = _without(edges, kept)
    springs = _without(state.reference_twist.shape[1] - state.n_held, kept)
    components = (
        (nodes + edges + state.n_held)
        + 3 * torch.tensor(kept, dtype=torch.long, device="cpu")[:, None]
        + torch.arange(3, device="cpu")
    )
    dofs = torch.cat([torch.arange(nodes, device="cpu"), nodes + framed, components.flatten()])
    return State(
        q=state.q[:, dofs],
        velocity=state.velocity[:, dofs],
        acceleration=torch.zeros_like(state.q[:, dofs]),
        director=state.director[:, framed],
        tangent=state.tangent[:, framed],
        reference_twist=state.reference_twist[:, springs],
        time=state.time,
        n_held=len(kept),
    )


def _without(count: int, kept: Sequence[int]) -> Tensor:
    """Return the indices of `count` elements, and of the `kept` held ones, which are numbered after them."""
    return torch.cat([torch.arange(count, device="cpu"), count + torch.tensor(kept, dtype=torch.long, device="cpu")])


def _refuse_another_robot(before: Body, body: Body) -> None:
    """Refuse bodies that differ in nodes, edges, triangles or joints."""
    pairs = {
        "nodes": (np.arange(before.n_nodes), np.arange(body.n_nodes)),
        "rod edges": (before.rod_edges, body.rod_edges),
        "triangles": (before.triangles, body.triangles),
        "edges at joints": (before.joint_edges, body.joint_edges),
        "mid-edge normals": (before.normal_edges, body.normal_edges),
        "springs": (before.springs.nodes[: before.n_springs], body.springs.nodes[: body.n_springs]),
    }
    for name, (theirs, ours) in pairs.items():
        if not np.array_equal(theirs, ours):
            raise InputError(
                f"released: before: has other {name} than this model: expected the same robot, built with more clamps"
            )


def _refuse_other_laws(before: Sequence[ElasticTerm], terms: Sequence[ElasticTerm]) -> None:
    """Refuse terms that have other laws of materials with memory."""
    theirs, ours = ([(term.name, [*term.inelastic]) for term in of if term.inelastic] for of in (before, terms))
    if theirs != ours:
        raise InputError(f"released: before: its materials remember by other laws: expected {ours}, got {theirs}")


def _kept_directions(before: Body, body: Body) -> list[int]:
    """Return the indices in `before` of the held directions of `body`, in its order; refuse new directions."""
    theirs, ours = ([*zip(of.held.nodes.tolist(), of.held.edges.tolist(), strict=True)] for of in (before, body))
    for node, edge in ours:
        if (node, edge) not in theirs:
            raise InputError(
                f"released: this model holds rod edge {edge} at node {node} in a direction, and before did not: "
                "expected the same clamps with a direction, or fewer; hold its nodes without a direction"
            )
    return [theirs.index(pair) for pair in ours]
