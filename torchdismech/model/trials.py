"""Trials of users' forces, energies and contact laws at a made-up state when a model is built."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import nn

from torchdismech.contact import SelfContact
from torchdismech.elastic import ElasticTerm
from torchdismech.elastic.inelastic import internal_at_rest
from torchdismech.elastic.natural import natural_strains
from torchdismech.forces import Force
from torchdismech.model.dependence import settle_dependence
from torchdismech.model.hooks import check_hooks
from torchdismech.model.initial import rest_state, trial_state
from torchdismech.model.law_trials import refuse_wrong_laws
from torchdismech.model.other_weights import unchanged_random_numbers, unchanged_statistics
from torchdismech.model.user_code import holds_users_code
from torchdismech.robot.body import Body
from torchdismech.robot.kinematics import Frames
from torchdismech.robot.state import State
from torchdismech.values import leading

__all__ = ["try_hooks"]

TRIALS = 3  # number of robots in a trial state


def try_hooks(
    model: nn.Module,
    body: Body,
    frames: Frames,
    terms: Sequence[ElasticTerm],
    forces: Sequence[Force],
    self_contacts: Sequence[SelfContact],
    robots: int | None,
) -> None:
    """Set the dependence of forces without written derivatives; refuse users' code that breaks its own claims.

    Parameters
    ----------
    model : the module that holds body, terms, forces and contacts between parts.
    robots : number of robots that the model's tensors are given for; None: any number.
    """
    # obstacles of the library are not tried: their paths, and what they touch at a trial state, tell nothing
    if all(f.closed_form or f.constant for f in forces) and not holds_users_code(model):
        return
    state = trial_state(body, frames, min(robots or TRIALS, TRIALS))
    state = state.replace(internal=internal_at_rest(terms, state.q))
    with leading(model, robots, TRIALS):
        natural = natural_strains(body, terms, state.batch)
        control = natural.replace(clamped_q=state.q, force=torch.zeros_like(state.q))
    at_rest = rest_state(body, frames, state.batch).replace(internal=state.internal)
    with unchanged_random_numbers(model), unchanged_statistics(model):
        refuse_wrong_laws(forces, self_contacts, robots)
        for force in forces:
            settle_dependence(force, robots, state, control)
        check_hooks(forces, terms, robots, state, control, [at_rest, *_far_away(body, state)])


def _far_away(body: Body, state: State) -> list[State]:
    """Return the state moved by ten times the robot's size into each octant, away from any obstacle at its place."""
    size = 10 * float((body.nodes.amax(0) - body.nodes.amin(0)).max())
    moved = []
    for signs in product((-size, size), repeat=3):
        aside = state.positions + state.q.new_tensor(signs)
        moved.append(state.replace(q=torch.cat([aside.flatten(1), state.q[:, 3 * body.n_nodes :]], dim=1)))
    return moved
