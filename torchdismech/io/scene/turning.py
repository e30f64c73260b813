"""Refusals of rotations by half a turn or more: poses of clamps do not count turns, so they turn the shorter way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.io.scene.refusals import SceneError
from torchdismech.io.scene.schedule import Rotation, Schedule
from torchdismech.model import Model

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["refuse_half_turns", "refuse_half_turns_in_a_step"]

HALF_TURN = math.pi * (1 - 1e-9)  # rad, with room for rounding: at half a turn both ways are as near


def refuse_half_turns_in_a_step(scene: Scene, rotations: dict[int, Rotation]) -> None:
    """Refuse rotations by half a turn or more in a step, which clamps would make the other way round, or not at all.

    Parameters
    ----------
    rotations : the rotations of [[move]] tables, by their numbers, in a scene where clamps move by poses.
    """
    dt = scene.document.simulation.dt
    for k, rotation in rotations.items():
        assert dt is not None  # static scenes have no [[move]]
        rates = rotation.rate.abs().flatten()
        turn = float(rates.max()) * min(dt, rotation.stop - rotation.start)
        if turn >= HALF_TURN:
            of = f" (robot {int(rates.argmax())})" if len(rates) > 1 else ""
            problem = (
                f"turns a clamp by {turn:.4g} rad in a step of {dt:g} s{of}: expected less than half a turn, as clamps "
                "turn the nearest way to where they are to be; take a smaller rate, which is in rad/s, or a smaller "
                "simulation.dt"
            )
            raise SceneError(scene.path, ("move", k, "rotation", "rate"), problem)


def refuse_half_turns(schedule: Schedule, model: Model, time: Tensor) -> None:
    """Refuse times (B,) at which a clamp has turned by half a turn or more, for paths of equilibria (`follow`).

    On such a path clamps turn evenly to their poses at these times, by the shorter way.
    """
    if not schedule.poses:
        return
    for number, clamp in enumerate(model.body.clamps):
        turns = [
            motion.turn(time)
            for motion in schedule.node_motions
            if isinstance(motion, Rotation) and not set(motion.index).isdisjoint(clamp.nodes.tolist())
        ]
        angle = torch.linalg.vector_norm(sum(turns, torch.zeros(len(time), 3, device="cpu").to(time)), dim=1)
        if bool((angle >= HALF_TURN).any()):
            robot = int(angle.argmax())
            raise InputError(
                f"follow: clamp.{number} of robot {robot} has turned by {angle[robot]:.4g} rad at {time[robot]:g} s: "
                "expected less than half a turn, as a path turns clamps the nearest way; take an earlier time, --time"
            )
