"""Readies forces for checks, and checks that robots of a batch do not influence each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, refuse_other_kind
from torchdismech.forces import Force
from torchdismech.model import Model
from torchdismech.model.dependence import settle_dependence
from torchdismech.robot.state import Control, State
from torchdismech.testing.report import SAME, Check, comparison, fixed_generator
from torchdismech.values import places_by_batch_size, with_rows

__all__ = ["alone_check", "prepare_check", "refuse_other_robots"]

APART = 1e-4  # size of the changes that make identical robots different, times their extent, or 1 in SI units


def alone_check(
    module: nn.Module, value: Callable[[State, Control], Tensor], state: State, control: Control, dim: int = 0
) -> Check:
    """Check that each robot alone has the same value as in the batch; `dim` is the robots' dimension in the value.

    Identical robots are made different first, as e.g. a mean over them would equal the value of each. A single robot is
    repeated to make a batch of two.
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
    """Return a state in which no two robots have the same q, velocity or acceleration, slightly changed if need be."""
    x, generator = state.positions, fixed_generator()
    extent = float((x.amax(1) - x.amin(1)).max())
    moved = {}
    for name, size in (("q", extent), ("velocity", 1.0), ("acceleration", 1.0)):
        at = getattr(state, name)
        noise = torch.randn(at.shape, dtype=torch.float64, generator=generator, device="cpu").to(at)
        if len(torch.unique(at.detach(), dim=0)) < len(at):
            moved[name] = at + APART * size * noise
    return state.replace(**moved)


def prepare_check(where: str, force: Force, model: Model, state: State, control: Control) -> None:
    """Refuse what does not fit together, and bind a force that belongs to no robot yet to the model's."""
    for name, given, kind in (("force", force, Force), ("model", model, Model), ("state", state, State)):
        refuse_other_kind(f"{where}(force, model, state): {name}", given, kind, f"a {kind.__name__}")
    refuse_other_robots(where, force, state.batch, "take a state of COUNT: model.initial_state(batch=COUNT)")
    model.check_batch(state, control)
    if hasattr(force, "body"):
        return
    force.bind(model.body)
    force.to(state.q)
    force.learn_free(model.free.cpu().numpy())
    settle_dependence(force, model.batch, state, control)


def refuse_other_robots(where: str, module: nn.Module, robots: int, cure: str) -> None:
    """Refuse a module with tensors for another number of robots; `cure` says what to do, with COUNT for that number."""
    for count, (part, name) in places_by_batch_size(module).items():
        if count != robots:
            raise InputError(
                f"{where}: {type(part).__name__}.{name} is given for {count} robots, expected {robots}, as many as are "
                f"tried; {cure.replace('COUNT', str(count))}"
            )
