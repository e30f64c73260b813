"""A warning of loads so small, beside the tolerance, that steps would count as solved without them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.model import Model
from torchdismech.robot.state import Control, State, running_robots

__all__ = ["warning_of_small_loads"]

LEAST_LOAD = 100.0  # times the tolerance: smaller loads may be met with an error of more than a hundredth
# Of the sum of the loads' norms: where loads cancel, as weight and lift do, rounding leaves less than this.
ROUNDING = 1e-12


@torch.no_grad()
def warning_of_small_loads(
    model: Model, state: State, control: Control, running: Tensor | None, tolerance: float
) -> str | None:
    """Return a warning of running robots whose loads are hardly above the tolerance [N]; None if there are none."""
    mechanics, on_unknowns = model.mechanics, model.unknowns.on_unknowns
    start = mechanics.start(state, control, None, None)
    parts = mechanics.constant_loads(start, state.time)
    constant, one_by_one = torch.stack(parts).sum(0), torch.stack([on_unknowns(p).norm(dim=1) for p in parts]).sum(0)
    load = on_unknowns(constant + mechanics.stencil_load(start, state.q)).norm(dim=1)
    small = (load > ROUNDING * one_by_one) & (load < LEAST_LOAD * tolerance) & running_robots(state, running)
    if bool(small.any()):  # where natural strains drive a robot, only loads below the tolerance itself count
        drive = on_unknowns(constant + mechanics.elastic_force(start, state.q)).norm(dim=1)
        small &= (load < tolerance) | (drive < LEAST_LOAD * tolerance)
    if not bool(small.any()):
        return None
    robot = int(small.nonzero()[0])
    share = tolerance / float(load[robot])
    where, so = ("below", "they would not move it")
    if share <= 1:
        where, so = "not far above", f"what they do may be off by {100 * share:.2g} %"
    return (
        f"robot {robot}: its loads are {float(load[robot]):.2g} N, {where} force_tolerance = {tolerance:g} N, at which "
        f"a step counts as solved: {so}; set force_tolerance a million times smaller than the loads"
    )
