"""Warnings of loads that do nothing: too small beside the tolerance, or not acting when forces are evaluated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdismech.errors import warn
from torchdismech.forces.base import Timed
from torchdismech.integrate.scheme import Scheme
from torchdismech.model import Model
from torchdismech.robot.state import Control, State, running_robots

__all__ = ["warn_of_absent_loads", "warn_of_missed_loads", "warn_of_small_loads"]

LEAST_LOAD = 100.0  # times the tolerance: smaller loads may be met with an error of more than a hundredth
# Of the sum of the loads' norms: where loads cancel, as weight and lift do, rounding leaves less than this. For magnets
# their energies over an edge stand in: along a field they bear no load but what rounding leaves.
ROUNDING = 1e-12


@torch.no_grad()
def warn_of_small_loads(model: Model, state: State, control: Control, running: Tensor | None, tolerance: float) -> None:
    """Warn of running robots whose loads are hardly above the tolerance [N], or below: steps could do without them."""
    mechanics, on_unknowns = model.mechanics, model.unknowns.on_unknowns
    start = mechanics.start(state, control, None, None)
    parts = mechanics.constant_loads(start, state.time)
    constant = torch.stack(parts).sum(0)
    load = on_unknowns(constant + mechanics.stencil_load(start, state.q)).norm(dim=1)
    small = (load < LEAST_LOAD * tolerance) & running_robots(state, running)
    if bool(small.any()):  # where natural strains drive a robot, only loads below the tolerance itself count
        one_by_one = torch.stack([on_unknowns(part).norm(dim=1) for part in parts]).sum(0)
        one_by_one += mechanics.stencil_load_energy(start, state.q) / model.body.typical_length()
        drive = on_unknowns(constant + mechanics.elastic_force(start, state.q)).norm(dim=1)
        small &= (load > ROUNDING * one_by_one) & ((load < tolerance) | (drive < LEAST_LOAD * tolerance))
    if not bool(small.any()):
        return
    robot = int(small.nonzero()[0])
    share = tolerance / float(load[robot])
    where, so = ("below", "they would not move it")
    if share <= 1:
        where, so = "not far above", f"what they do may be off by {100 * share:.2g} %"
    warn(
        f"robot {robot}: its loads are {float(load[robot]):.2g} N, {where} force_tolerance = {tolerance:g} N, at which "
        f"a step counts as solved: {so}; set force_tolerance a million times smaller than the loads",
        RuntimeWarning,
    )


@torch.no_grad()
def warn_of_absent_loads(caller: str, model: Model, state: State, running: Tensor | None = None) -> None:
    """Warn of loads that do not act at the times (B,) of the states of running robots."""
    rows = running_robots(state, running)
    for load in _timed_loads(model):
        off = rows & ~load.on(state.time)
        if bool(off.any()):
            warn(
                f"{caller}: {_called(load)} does not act at {state.time[off][0]:g} s, the time of the state, and is "
                "left out; to have it, give the state a time at which it acts: state.replace(time=...), or --time of "
                "torchdismech follow",
                RuntimeWarning,
            )


@torch.no_grad()
def warn_of_missed_loads(model: Model, state: State, dt: float, scheme: Scheme, steps: int) -> None:
    """Warn of loads that begin and end between two evaluations of the forces, so that the steps never meet them.

    Parameters
    ----------
    state : in which the steps begin.
    dt, steps : length [s] and number of the steps.
    scheme : of the steps.
    """
    begin, end, share = state.time, state.time + steps * dt, scheme.time
    for load in _timed_loads(model):
        step = ((begin.clamp_min(load.start) - begin) / dt).floor()  # number of the step in which the load begins
        met = load.on(begin + (step + share) * dt) | load.on(begin + (step + 1 + share) * dt)
        if scheme.reads_acceleration:
            met = met | load.on(begin)
        if bool((~met & (load.start < end) & (begin < load.stop)).any()):
            when = "end" if share == 1 else "middle"
            warn(
                f"{_called(load)} never acts in steps of {dt:g} s: forces are evaluated at the {when} of each step, "
                "and none is between its start and stop; take a smaller dt, or a load of one step or more",
                RuntimeWarning,
            )


def _timed_loads(model: Model) -> list[Timed]:
    """Return the forces of a model that have a start and a stop."""
    return [force for force in model.forces if isinstance(force, Timed)]


def _called(load: Timed) -> str:
    """Return a load as messages name it, by its kind and its times."""
    times = [f"{name}={time:g}" for name, time in (("start", load.start), ("stop", load.stop)) if math.isfinite(time)]
    return f"{type(load).__name__}({', '.join(times)})"
