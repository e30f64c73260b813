"""The linear solvers of a model: one for each pattern, device and number of robots, made when it is first needed."""

from __future__ import annotations

import math
from itertools import chain

import torch

from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.robot.body import Body
from torchdismech.solve import linear
from torchdismech.sparse import Pattern

__all__ = ["Solvers"]

# Factorisations that the pattern of a step with contact is expected to serve: a knot and folded sheets that move needed
# a new one every 1 to 5 steps of 2 to 5 iterations.
COUPLING_SERVES = 30


class Solvers:
    """The linear solvers for the matrices of a robot's steps.

    Parameters
    ----------
    setting : name of a linear solver, or "auto"; with options a mapping, see `solve.linear.named`.
    body : of the robot; solvers are for the device on which it is.
    pattern : of the matrix of a robot whose parts do not touch each other.

    Attributes
    ----------
    name, options : of the setting.
    """

    def __init__(self, setting: linear.Setting, body: Body, pattern: Pattern):
        self.name, self.options = linear.named(setting)
        self._body, self._pattern = body, pattern
        self._made: dict[tuple[torch.device, int], linear.Solver] = {}
        if self.name != "auto":
            self.of(1)  # refuse here what does not go with the matrix

    def of(self, batch: int, pairs: StepPairs | None = None) -> linear.Solver:
        """Return the solver for the matrices of so many robots; `pairs` is what may touch in the step."""
        if self.name != "auto":
            batch = 1  # a named solver is the same for all
        device = self._body.nodes.device
        pattern, made, before = self._pattern, self._made, {}
        if pairs is not None:
            pattern, made, before = pairs.coupling.pattern, pairs.coupling.solvers, pairs.coupling.before
        if (device, batch) not in made:
            if self.name == "auto":
                served = math.inf if pairs is None else COUPLING_SERVES
                known = chain(made.items(), before.items())
                like = next((solver for (where, _), solver in known if where == device), None)
                made[device, batch] = linear.choose(pattern, batch, device, served, like)
            else:
                made[device, batch] = linear.make(self.name, pattern, **self.options)
        return made[device, batch]
