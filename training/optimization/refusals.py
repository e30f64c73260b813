"""Checks that refuse a fit which cannot work: before its first batch, or after batches of which none was usable."""

from __future__ import annotations

import math

from torch import Tensor

from torchdismech import InputError, Status
from torchdismech.system.memory import available_bytes, size_of
from torchdismech.system.processes import Processes
from training.config import Config, Noise, Stage
from training.data import Recordings
from training.optimization.batches import windows_of
from training.optimization.residuals import fitted_numbers
from training.optimization.resuming import Progress
from training.robots.physics import PhysicsSystem
from training.system import Prediction, System

__all__ = ["refuse_hopeless", "refuse_unfitting", "refuse_without_gradient"]

NUMBER = 8  # bytes of a float64
COPIES = 4  # of the derivatives in memory while the equations of a Gauss-Newton step are made
BYTES_A_NODE = 173  # that a backward pass keeps for each node and step: see docs/gradients.md


def refuse_unfitting(config: Config, system: System, recordings: Recordings, processes: Processes) -> None:
    """Refuse stages and noise that do not suit the system, the recordings that are trained on, or the memory."""
    _refuse_noise(config.noise, system)
    for stage in config.stages:
        longest = max(stage.horizon) + system.given
        if longest > recordings.frames:
            raise InputError(
                f"stage {stage.name!r}: a horizon of {max(stage.horizon)} needs {longest} frames, not "
                f"{recordings.frames}"
            )
        if min(stage.horizon) <= system.warm_up:
            raise InputError(
                f"stage {stage.name!r}: of the {min(stage.horizon)} frames of a horizon none counts, as the first "
                f"{system.warm_up} are a warm-up: expected longer horizons, or a shorter warm_up"
            )
        if "starts" in stage.train and not system.start_size:
            raise InputError(f"stage {stage.name!r} trains starts, and the system fits none")
        frozen = [group for group in stage.train if group != "starts" and system.is_frozen(group)]
        if frozen:
            raise InputError(
                f"stage {stage.name!r} trains {frozen[0]}, whose parameters all are frozen: expected one with "
                "requires_grad=True"
            )
        if stage.batch % processes.world:
            raise InputError(
                f"stage {stage.name!r}: batch {stage.batch} does not divide among {processes.world} processes"
            )
        if stage.method == "gauss_newton":
            _refuse_odd_equations(stage, system, processes)
            _refuse_oversized_equations(stage, system, recordings)
        else:
            _refuse_oversized(stage, system, recordings, processes)


def _refuse_noise(noise: Noise, system: System) -> None:
    """Refuse noise where starts are not measured, and noise on velocities where windows start from one frame."""
    if (noise.position or noise.velocity) and not (system.measured and system.given):
        raise InputError("noise: it is added to measured starts, and these are not measured: leave it out")
    if noise.velocity and system.given < 2:
        raise InputError(
            "noise.velocity: it is that between two given frames; expected a system with given = 2 or more, got "
            f"{system.given}: leave it out, or take noise.position"
        )


def refuse_hopeless(progress: Progress, status: Tensor) -> None:
    """Refuse to go on where all batches so far were skipped; the last one's `status` (B,) tells why."""
    if progress.skipped < progress.total:
        return
    failed = status[status != Status.CONVERGED].tolist()
    why = Status(max(set(failed), key=failed.count)).explanation if failed else "its gradient is not finite"
    raise InputError(
        f"none of the {progress.total} batches so far could be learnt from: {why}; look at [robot], [simulation] and "
        "the rates in the config"
    )


def refuse_without_gradient(prediction: Prediction, stage: Stage) -> None:
    """Refuse a prediction from which no gradient leads to what a stage trains, so that nothing could be learnt."""
    if bool(prediction.good.all()) and not prediction.positions.requires_grad:
        raise InputError(
            f"stage {stage.name!r}: the predicted positions do not depend on what it trains "
            f"({', '.join(stage.train)}), or their gradient is lost on the way: look for detach(), no_grad, numpy and "
            "torch.tensor(...) in predict"
        )


def _refuse_odd_equations(stage: Stage, system: System, processes: Processes) -> None:
    """Refuse Gauss-Newton steps without constants, in several processes, or of fitted starts that are not trained."""
    name = f'stage {stage.name!r}: "gauss_newton"'
    if not isinstance(system, PhysicsSystem) or not fitted_numbers(system):
        raise InputError(f"{name} is for the constants of a simulated robot, and there are none")
    if processes.world > 1:
        raise InputError(f"{name} runs in one process, not in {processes.world}")
    if system.start_size and "starts" not in stage.train:
        raise InputError(f'{name} finds starts along with constants: add "starts" to train')


def _refuse_oversized(stage: Stage, system: System, recordings: Recordings, processes: Processes) -> None:
    """Refuse a batch whose backward pass does not fit into memory."""
    steps = max(stage.horizon) * system.substeps
    kept = steps if stage.checkpoint_every is None else steps / stage.checkpoint_every + stage.checkpoint_every
    nodes = max(recordings.nodes, system.n_nodes)
    needed = BYTES_A_NODE * nodes * kept * stage.batch / processes.world
    free = available_bytes(system.device)
    if needed > free:
        raise InputError(
            f"stage {stage.name!r}: a batch of {stage.batch} windows of {steps} steps keeps about {size_of(needed)}, "
            f"and {size_of(free)} are free: take a smaller batch or horizon, or set checkpoint_every = "
            f"{max(1, math.isqrt(steps))}"
        )


def _refuse_oversized_equations(stage: Stage, system: System, recordings: Recordings) -> None:
    """Refuse a Gauss-Newton stage whose derivatives do not fit into memory."""
    assert isinstance(system, PhysicsSystem)  # else the stage was refused
    count, longest = len(fitted_numbers(system)) + system.start_size, max(stage.horizon)
    batch = min(stage.batch, len(windows_of(recordings, system, longest)))
    needed = COPIES * NUMBER * batch * longest * 3 * recordings.nodes * count
    free = available_bytes(system.device)
    if needed > free:
        raise InputError(
            f"stage {stage.name!r}: the derivatives of {batch} windows by {count} numbers take about "
            f"{size_of(needed)}, and {size_of(free)} are free: take a smaller batch or horizon"
        )
