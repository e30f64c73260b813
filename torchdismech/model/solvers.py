"""The linear solvers of a model: one for each pattern, device and number of robots, made at its first use."""

from __future__ import annotations

import math
from itertools import chain

import torch

from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.robot.body import Body
from torchdismech.solve import linear
from torchdismech.sparse import Pattern

__all__ = ["Solvers"]

# Number of factorizations for which the pattern of a step with contact is expected to last: a knot and folded sheets
# that move needed a new pattern every 1 to 5 steps of 2 to 5 iterations.
COUPLING_SERVES = 30


class Solvers:
    """The linear solvers for the matrices of a robot's steps.

    Parameters
    ----------
    setting : name of a linear solver, or "auto"; with options a mapping, see `solve.linear.named`.
    body : of the robot; solvers are for its device.
    pattern : of the matrix without contact between the robot's parts.

    Attributes
    ----------
    name, options : of the solver, from the setting.
    """

    def __init__(self, setting: linear.Setting, body: Body, pattern: Pattern):
        self.name, self.options = linear.named(setting)
        self._body, self._pattern = body, pattern
        self._solvers: dict[tuple[torch.device, int], linear.Solver] = {}
        if self.name != "auto":
            self.of(1)  # raises now if the solver does not fit the matrix

    def of(self, batch: int, pairs: StepPairs | None = None) -> linear.Solver:
        """Return the solver for so many robots; with `pairs`, for the larger pattern of contact between parts."""
        if self.name != "auto":
            batch = 1  # a named solver is the same for all
        device = self._body.nodes.device
        pattern, solvers, previous = self._pattern, self._solvers, {}
        if pairs is not None:
            pattern, solvers, previous = pairs.coupling.pattern, pairs.coupling.solvers, pairs.coupling.solvers_before
        if (device, batch) not in solvers:
            if self.name == "auto":
                served = math.inf if pairs is None else COUPLING_SERVES
                candidates = chain(solvers.items(), previous.items())
                like = next((solver for (where, _), solver in candidates if where == device), None)
                solvers[device, batch] = linear.choose(pattern, batch, device, served, like)
            else:
                solvers[device, batch] = linear.make(self.name, pattern, **self.options)
        return solvers[device, batch]
