"""Many steps: from a state to a trajectory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, SimulationError, Status
from torchdismech.integrate import Integrator, StepInfo
from torchdismech.integrate.base import Schedule
from torchdismech.model import Model
from torchdismech.state import Control, State
from torchdismech.trajectory import Frame, Recorder, Trajectory

__all__ = ["Writer", "frames", "rollout"]


class Writer(Protocol):
    """Takes the frames of a run: `Recorder` keeps them in memory, `TrajectoryWriter` in a file."""

    def start(self, rows: int, rod_edges: np.ndarray, triangles: np.ndarray) -> None:
        """Learn how many frames will come and the topology."""
        ...

    def append(self, frame: Frame) -> None:
        """Keep a frame."""
        ...

    def close(self) -> None:
        """Finish, also after an error."""
        ...

    def trajectory(self) -> Trajectory:
        """Return what was kept."""
        ...


def rollout(
    model: Model,
    state: State,
    integrator: Integrator,
    steps: int,
    schedule: Schedule | None = None,
    every: int = 1,
    writer: Writer | None = None,
    progress: bool = False,
    throw: bool = False,
    running: Tensor | None = None,
) -> Trajectory:
    """Return the trajectory of `steps` steps from `state`.

    A robot whose step fails stays at its last good state, its failure stands in the trajectory's status from then on;
    the others go on.

    Parameters
    ----------
    schedule : function of (time (B,), model) that returns the `Control` for that time.
    every : store each so many steps (and the last one).
    writer : where frames go; in memory by default.
    progress : show a progress bar with the number of robots that still run.
    throw : raise a `SimulationError` at the first failure instead.
    running : (B,) robots to step, e.g. those that did not fail in an earlier run.
    """
    if steps < 1 or every < 1:
        raise InputError(f"rollout: steps and every have to be at least 1, got steps={steps}, every={every}")
    writer = Recorder() if writer is None else writer
    writer.start(1 + -(-steps // every), model.rod_edges, np.zeros((0, 3), dtype=np.int64))
    bar = _progress_bar(steps, state.batch) if progress else None
    try:
        for frame in frames(model, state, integrator, steps, schedule, every, throw, running, bar):
            writer.append(frame)
    finally:
        if bar is not None:
            bar.close()
        writer.close()
    return writer.trajectory()


def frames(
    model: Model,
    state: State,
    integrator: Integrator,
    steps: int,
    schedule: Schedule | None = None,
    every: int = 1,
    throw: bool = False,
    running: Tensor | None = None,
    bar=None,
) -> Iterator[Frame]:
    """Yield the initial frame, then one each `every` steps and at the last; arguments as for `rollout`."""
    running = torch.ones(state.batch, dtype=torch.bool, device=state.q.device) if running is None else running
    zero = torch.zeros(state.batch, dtype=torch.long, device=state.q.device)
    status = torch.where(running, zero, int(Status.STOPPED))
    yield dataclasses.replace(Frame.initial(state, model.energies(state)), status=status)
    total, most, residual = zero, zero, zero.to(state.q.dtype)
    for step in range(1, steps + 1):
        control = Control() if schedule is None else integrator.sample(schedule, state, model)
        state, info = integrator.step(model, state, control, running)
        status = torch.where(running, info.status, status)
        if throw and not bool(info.converged.all()):
            raise SimulationError.from_status(info.status, f"step {step}")
        total, most = total + info.iterations, torch.maximum(most, info.iterations)
        residual = torch.maximum(residual, torch.where(running, info.residual, 0.0))
        running = running & info.converged
        _advance(bar, running, info)
        if step % every == 0 or step == steps:
            yield Frame(step, state, total, most, residual, status, model.energies(state, control))
            total, most, residual = zero, zero, zero.to(state.q.dtype)


def _progress_bar(steps: int, batch: int):
    from tqdm import tqdm

    return tqdm(total=steps, unit="step", desc=f"{batch} robots" if batch > 1 else "1 robot")


def _advance(bar, running: Tensor, info: StepInfo) -> None:
    if bar is None:
        return
    bar.update(1)
    if bar.n % 10 == 0 or bar.n == bar.total:
        iterations = info.iterations[running].double().mean().item() if bool(running.any()) else 0.0
        bar.set_postfix(running=int(running.sum()), iterations=f"{iterations:.1f}", refresh=False)
