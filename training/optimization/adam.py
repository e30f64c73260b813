"""Adam: steps along the mean gradient of a batch of windows, over all processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from torchdismech.system.processes import Processes
from training.config import Loss, Stage
from training.config.stages import Group
from training.data import Window
from training.optimization.batches import Batch, decay_at
from training.reports.metrics import robust_loss
from training.robots.starts import coordinates
from training.system import Prediction, System

__all__ = ["losses", "mean_gradient", "new_optimizer", "set_rates", "step_by_adam"]


def new_optimizer(stage: Stage, groups: Mapping[Group, Iterable[nn.Parameter]]) -> torch.optim.Optimizer:
    """Return the optimiser of a stage, for parameters by the names of their groups."""
    return torch.optim.Adam([{"params": [*own], "lr": stage.rates[name], "name": name} for name, own in groups.items()])


def set_rates(optimizer: torch.optim.Optimizer, stage: Stage, iteration: int) -> None:
    """Set the learning rates of a stage's iteration."""
    for group in optimizer.param_groups:
        group["lr"] = stage.rates[group["name"]] * decay_at(stage, iteration)


def losses(prediction: Prediction, window: Window, system: System, loss: Loss, measured: int) -> tuple[Tensor, Tensor]:
    """Return the losses (B,) of windows [m], with what priors say in the same unit, and what they count by (B,).

    They count by how many numbers were measured in them. A window of which a step failed says nothing: both are zero.
    Half the sum of squares in standard deviations of the noise, `loss.scale`, is the mean loss times the number of
    measurements over that scale: so priors count as much less as more is measured.

    Parameters
    ----------
    measured : how many numbers were measured in all recordings that are trained on.
    """
    positions, valid = window.positions[:, system.given :], _counting(window, system)
    rows = robust_loss(prediction.positions, positions, valid, loss)
    if (penalty := system.penalty()) is not None:
        rows = rows + loss.scale / measured * penalty
    if window.start is not None:
        rows = rows + 0.5 * window.start.square().sum(1) * loss.scale / coordinates(valid)
    rows = torch.where(prediction.good, rows, 0.0)
    return rows, torch.where(prediction.good, coordinates(valid), 0).to(rows)


def _counting(window: Window, system: System) -> Tensor:
    """Return which nodes (B, T, N) of the predicted frames of windows count."""
    valid = window.valid[:, system.given :].clone()
    valid[:, : system.warm_up] = False
    return valid


def step_by_adam(
    optimizer: torch.optim.Optimizer,
    stage: Stage,
    prediction: Prediction,
    rows: Tensor,
    seen: Tensor,
    trained: Sequence[nn.Parameter],
    processes: Processes,
) -> Batch:
    """Move the trained parameters by one step, unless a number is not finite or all windows failed.

    Parameters
    ----------
    rows, seen : (B,) what `losses` returns.
    """
    loss, good = mean_gradient(rows, seen, prediction.good, trained, processes)
    groups = {group["name"]: group for group in optimizer.param_groups}
    norms = {name: float(nn.utils.clip_grad_norm_(group["params"], stage.clip)) for name, group in groups.items()}
    moved = math.isfinite(loss) and all(map(math.isfinite, norms.values())) and good > 0
    if moved:
        optimizer.step()
    rates = {name: group["lr"] for name, group in groups.items()}
    failed, found = stage.batch - good, (prediction.status, prediction.iterations)
    return Batch(loss, stage.batch, failed, *found, norms, rates, skipped=not moved)


def mean_gradient(
    rows: Tensor, seen: Tensor, good: Tensor, trained: Sequence[nn.Parameter], processes: Processes
) -> tuple[float, int]:
    """Leave the mean gradient over all processes in the parameters; return the mean loss and how many windows are good.

    A window counts by the numbers `seen` (B,) of it, as in Gauss-Newton steps and error bars. One sum over the
    processes carries everything, so that all of them see the same numbers, also NaN.
    """
    rows = rows * seen
    if rows.requires_grad:
        rows.sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    numbers = torch.stack([rows.detach().sum(), seen.sum(), good.sum().to(rows)])
    total = processes.summed(torch.cat([*(g.flatten() for g in gradients), numbers]))
    count = total[-2].clamp_min(1)
    parts = (total[:-3] / count).split([p.numel() for p in trained])
    for parameter, part in zip(trained, parts, strict=True):
        parameter.grad = part.view_as(parameter).clone()
    return float(total[-3] / count), int(total[-1])
