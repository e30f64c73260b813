"""Finds at a trial state which dofs a user's force depends on, where it has no derivatives in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.autograd import AutogradOn
from torchdismech.errors import warn
from torchdismech.forces import Force
from torchdismech.forces.dependence import Dependence, Evaluation, products
from torchdismech.model.differences import rounding, trial_numbers, without_held_tangents
from torchdismech.model.odd_batches import refuse_odd_force
from torchdismech.model.other_weights import with_other_weights
from torchdismech.model.user_code import by_autograd, force_label
from torchdismech.origin import class_name
from torchdismech.robot.state import Control, State
from torchdismech.values import leading

__all__ = ["settle_dependence"]

REACHES = (0, 1, 2)  # reaches [edges] that are tried; if none covers a force, every dof may depend on every other
DENSE = 200  # number of dofs above which a warning says that every dof may depend on every other


def settle_dependence(force: Force, robots: int | None, state: State, control: Control) -> None:
    """Set `force.dependence` of a force without written derivatives; refuse a force that cannot be evaluated.

    Parameters
    ----------
    robots : number of robots that the model's parameters are given for; None: any number.
    state, control : of some trial robots.
    """
    if not force.varies or force.closed_form or force.dependence is not None:
        return
    with leading(force, robots, state.batch):
        refuse_odd_force(force, robots, state, control)
        with by_autograd(force_label(force)):
            force.dependence = _smallest_dependence(force, state, control)
    if force.dependence.reach is None and state.q.shape[1] > DENSE:
        warn(
            f"{class_name(force)}: its force may depend on every dof, so each evaluation of its derivative takes "
            f"{state.q.shape[1]} backward passes, and the matrix of each robot is full; a LocalForce says how far it "
            "reaches, blocks() and derivatives() in closed form are faster still",
            RuntimeWarning,
        )


def _smallest_dependence(force: Force, state: State, control: Control) -> Dependence:
    """Return the smallest dependence that covers the force's derivatives, both with its own weights and with others."""
    tried = [_Slopes(evaluation, state, control) for evaluation in (force, _reweighted(force))]
    slopes = [slopes for slopes in tried if slopes.finite]
    for reach in REACHES:
        for torques in (False, True):
            dependence = Dependence(force.body, reach, torques)
            if slopes and all(s.covered_by(dependence) for s in slopes) and _are_credible(slopes):
                return dependence
    return Dependence(force.body, None)


def _are_credible(slopes: Sequence[_Slopes]) -> bool:
    """Return whether derivatives that are all zero are to be believed: only if autograd has no path to them at all."""
    return any(s.size() > 0 for s in slopes) or not any(s.recorded for s in slopes)


def _reweighted(force: Force) -> Evaluation:
    """Return the force with other weights: a network whose last layer starts from zero depends on nothing yet."""

    def value(state: State, control: Control) -> Tensor:
        with with_other_weights(force):
            return force(state, control)

    return value


class _Slopes:
    """Derivatives of a randomly weighted sum of a force's components, at a trial state.

    Attributes
    ----------
    recorded : whether autograd has a path from position or velocity to the force.
    sums : the derivatives (B, n) by q and by velocity.
    """

    def __init__(self, force: Evaluation, state: State, control: Control):
        self.force, self.state, self.control = force, state, control
        self.weights = without_held_tangents(state, trial_numbers(state.q, 2))
        with AutogradOn():
            variables = [state.q.detach().requires_grad_(), state.velocity.detach().requires_grad_()]
            value = force(state.replace(q=variables[0], velocity=variables[1]), control)
            self.recorded = value.requires_grad
            none = (None, None)
            slopes = torch.autograd.grad(value, variables, self.weights, allow_unused=True) if self.recorded else none
        self.sums = [torch.zeros_like(state.q) if g is None else without_held_tangents(state, g) for g in slopes]
        self.finite = bool(torch.isfinite(value).all()) and all(bool(torch.isfinite(s).all()) for s in self.sums)

    def size(self) -> float:
        """Return the largest absolute derivative."""
        return max(float(s.abs().max()) for s in self.sums)

    def covered_by(self, dependence: Dependence) -> bool:
        """Return whether the blocks of a dependence contain all of the derivatives."""
        derivatives = dependence.derivatives(self.force, self.state, self.control)
        found = products(dependence.blocks(), derivatives, self.weights)
        return all(_close(sums, expected) for sums, expected in zip(found, self.sums, strict=True))


def _close(value: Tensor, expected: Tensor) -> bool:
    return bool((value - expected).abs().max() <= rounding(expected) * expected.abs().max())
