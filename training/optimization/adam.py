"""Adam: steps along the mean gradient of a batch of windows, over all processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchdismech.system.processes import Processes
from training.config import Stage
from training.config.stages import Group
from training.loss import WindowLosses
from training.optimization.batches import Batch, decay_at
from training.optimization.residuals import stays_in_bounds
from training.robots.physics import PhysicsSystem
from training.system import Prediction, System

__all__ = ["kept_in_bounds", "mean_gradient", "new_optimizer", "set_rates", "step_by_adam"]

HALVINGS = 60  # of a move that leads out of bounds; after these the number stays where it was


def new_optimizer(stage: Stage, groups: Mapping[Group, Iterable[nn.Parameter]]) -> torch.optim.Optimizer:
    """Return the optimiser of a stage, for parameters by the names of their groups."""
    return torch.optim.Adam([{"params": [*own], "lr": stage.rates[name], "name": name} for name, own in groups.items()])


def set_rates(optimizer: torch.optim.Optimizer, stage: Stage, iteration: int) -> None:
    """Set the learning rates of a stage's iteration."""
    for group in optimizer.param_groups:
        group["lr"] = stage.rates[group["name"]] * decay_at(stage, iteration)


def step_by_adam(
    optimizer: torch.optim.Optimizer,
    stage: Stage,
    prediction: Prediction,
    losses: WindowLosses,
    trained: Sequence[nn.Parameter],
    processes: Processes,
) -> Batch:
    """Move the trained parameters by one step of Adam, and return how the batch went.

    They stay as they are if the loss or a gradient is not finite, or if all windows failed.
    """
    loss, good = mean_gradient(losses, prediction.good, trained, processes)
    groups = {group["name"]: group for group in optimizer.param_groups}
    norms = {name: float(nn.utils.clip_grad_norm_(group["params"], stage.clip)) for name, group in groups.items()}
    moved = math.isfinite(loss) and all(map(math.isfinite, norms.values())) and good > 0
    if moved:
        optimizer.step()
    rates = {name: group["lr"] for name, group in groups.items()}
    failed, found = stage.batch - good, (prediction.status, prediction.iterations)
    return Batch(loss, stage.batch, failed, *found, norms, rates, skipped=not moved)


def mean_gradient(
    losses: WindowLosses, good: Tensor, trained: Sequence[nn.Parameter], processes: Processes
) -> tuple[float, int]:
    """Set `.grad` of the parameters to the mean gradient over all processes; return the mean loss and the good windows.

    Windows are weighted by their numbers of measured coordinates, as in Gauss-Newton steps and error bars. A single sum
    over the processes carries all numbers, so that every process sees the same ones, NaN included.
    """
    summed = (losses.loss * losses.count).sum()
    if summed.requires_grad:
        summed.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    numbers = torch.stack([summed.detach(), losses.count.sum(), good.sum().to(summed)])
    total = processes.summed(torch.cat([*(g.flatten() for g in gradients), numbers]))
    count = total[-2].clamp_min(1)
    parts = (total[:-3] / count).split([p.numel() for p in trained])
    for parameter, part in zip(trained, parts, strict=True):
        parameter.grad = part.view_as(parameter).clone()
    return float(total[-3] / count), int(total[-1])


@contextmanager
def kept_in_bounds(system: System) -> Iterator[None]:
    """Halve, until they stay in bounds, those moves in the block that lead a constant of a robot out of its bounds."""
    if not isinstance(system, PhysicsSystem):
        yield
        return
    flats = [entry.parameter.data.view(-1) for entry in system.entries.values()]
    before = [flat.clone() for flat in flats]
    yield
    if stays_in_bounds(system, [], []):
        return
    moves = [flat - old for flat, old in zip(flats, before, strict=True)]
    for flat, old in zip(flats, before, strict=True):
        flat.copy_(old)
    for flat, old, move in zip(flats, before, moves, strict=True):
        for k in move.nonzero().flatten().tolist():
            for halvings in range(HALVINGS):
                flat[k] = old[k] + 0.5**halvings * move[k]
                if stays_in_bounds(system, [], []):
                    break
            else:
                flat[k] = old[k]
