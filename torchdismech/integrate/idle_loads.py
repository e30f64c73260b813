"""Warnings of loads that act for a time alone, and do not where they are looked at."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdismech.errors import warn
from torchdismech.forces.base import Timed
from torchdismech.model import Model
from torchdismech.robot.state import State, running_robots

__all__ = ["warn_of_absent_loads"]


@torch.no_grad()
def warn_of_absent_loads(caller: str, model: Model, state: State, running: Tensor | None = None) -> None:
    """Warn of loads that do not act at the times (B,) of the states that running robots have."""
    rows = running_robots(state, running)
    for load in _timed_loads(model):
        off = rows & ~load.on(state.time)
        if bool(off.any()):
            warn(
                f"{caller}: {_called(load)} does not act at {state.time[off][0]:g} s, the time of the state, and is "
                "left out; to have it, give the state a time at which it acts, state.replace(time=...)",
                RuntimeWarning,
            )


def _timed_loads(model: Model) -> list[Timed]:
    """Return the forces of a model that act for a time alone."""
    return [force for force in model.forces if isinstance(force, Timed)]


def _called(load: Timed) -> str:
    """Return a load as messages name it, by its kind and its times."""
    times = [f"{name}={time:g}" for name, time in (("start", load.start), ("stop", load.stop)) if math.isfinite(time)]
    return f"{type(load).__name__}({', '.join(times)})"
