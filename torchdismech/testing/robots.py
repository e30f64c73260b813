"""Robots that checks tell apart, and how many of them there have to be."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.robot.state import Control, State
from torchdismech.testing.report import SAME, Check, comparison, fixed_generator
from torchdismech.values import places_by_batch_size, with_rows

__all__ = ["alone_check", "refuse_other_robots"]

APART = 1e-4  # of a robot's extent, or of 1 in SI units: by how much robots are told apart that are alike


def alone_check(
    module: nn.Module, value: Callable[[State, Control], Tensor], state: State, control: Control, dim: int = 0
) -> Check:
    """Compare each robot alone with the same robot among others that are not like it; `dim` is that of the robots.

    Robots that are alike are told apart first: a mean over them would be each one's own. One robot is taken twice.
    """
    if state.batch == 1:
        state, control = state.rows([0, 0]), control.rows([0, 0])
    state = _told_apart(state)
    given = state.batch if places_by_batch_size(module) else None
    alone = []
    for robot in range(state.batch):
        rows = slice(robot, robot + 1)
        with with_rows(module, given, rows):
            alone.append(value(state.rows(rows), control.rows(rows)).detach())
    return comparison("each robot as if alone", torch.cat(alone, dim=dim), value(state, control).detach(), SAME)


def _told_apart(state: State) -> State:
    """Return robots of which no two have the same positions, velocities or accelerations: moved a little if need be."""
    x, generator = state.positions, fixed_generator()
    extent = float((x.amax(1) - x.amin(1)).max())
    moved = {}
    for name, size in (("q", extent), ("velocity", 1.0), ("acceleration", 1.0)):
        at = getattr(state, name)
        noise = torch.randn(at.shape, dtype=torch.float64, generator=generator, device="cpu").to(at)
        if len(torch.unique(at.detach(), dim=0)) < len(at):
            moved[name] = at + APART * size * noise
    return state.replace(**moved)


def refuse_other_robots(where: str, module: nn.Module, robots: int, cure: str) -> None:
    """Refuse a module with tensors of another number of robots than it is tried for; `cure` is what to do for COUNT."""
    for count, (part, name) in places_by_batch_size(module).items():
        if count != robots:
            raise InputError(
                f"{where}: {type(part).__name__}.{name} is given for {count} robots, expected {robots}, as many as are "
                f"tried; {cure.replace('COUNT', str(count))}"
            )
