"""Which parts of the robots may touch in a step: guessed before it, checked after it."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.contact.passing import pairs_passed, passed_obstacle
from torchdismech.model import Model
from torchdismech.state import State

__all__ = ["Encounters"]

SEARCHES = 4  # how often a step is solved again with more pairs
MARGIN = 0.25  # of the largest motion that inertia leads to: how much further anything may get


class Encounters:
    """The pairs that a step takes into account, and whether they were enough.

    Parameters
    ----------
    state : at the start of the step.
    ahead : (B, n) where the step is expected to lead.
    """

    def __init__(self, model: Model, state: State, ahead: Tensor):
        self.model = model
        self.state = state
        self.pairs = None
        self.searches = 0
        contact = model.self_contact
        if contact is not None:
            way = (ahead - state.q)[:, : 3 * model.body.n_nodes].abs().amax(1)
            self.slack = (contact.law.response.tolerance.reshape(-1) + MARGIN * way).detach()
            self.pairs = model.may_touch(state.q, ahead, self.slack)

    def missed(self, q: Tensor) -> Tensor:
        """Return the robots (B,) that got, at q (B, n), to where pairs may touch that were not looked at."""
        if self.pairs is None:
            return torch.zeros(len(q), dtype=torch.bool, device=q.device)
        return ~self.pairs.pairs.cover(q[:, : 3 * self.model.body.n_nodes].unflatten(1, (-1, 3)))

    def widen(self, q: Tensor) -> bool:
        """Look further, to where q (B, n) led and beyond; return whether it did: there is an end to it."""
        if self.searches == SEARCHES:
            return False
        self.searches += 1
        self.slack = 2 * self.slack
        self.pairs = self.model.may_touch(self.state.q, q, self.slack)
        return True

    def passed(self, after: State) -> Tensor:
        """Return the robots (B,) in which something passed through something else."""
        passed = self.missed(after.q)
        if self.pairs is not None:
            passed = passed | pairs_passed(self.pairs.pairs, self.state.q, after.q)
        for obstacle in self.model.obstacles:
            passed = passed | passed_obstacle(obstacle, self.state, after)
        return passed
