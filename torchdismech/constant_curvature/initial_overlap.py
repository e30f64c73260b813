"""Warning of arms that begin inside obstacles, which would throw them out."""

from __future__ import annotations

import torch

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.state import ArmState
from torchdismech.errors import warn

__all__ = ["warn_of_overlap"]

DEEP = 0.1  # part of a plate's radius: deeper than by rounding, or by the rocking of a plate that lies flat


@torch.no_grad()
def warn_of_overlap(arm: PneumaticArm, state: ArmState) -> None:
    """Warn where the middle of a plate lies inside an obstacle by more than `DEEP` times the plate's radius."""
    middles = state.positions[:, 1:]
    for obstacle in arm.obstacles:
        gap = obstacle.shape.distance(middles - obstacle.displacement(state.time)[:, None])
        if not bool((gap < -DEEP * arm.plate_radius).any()):
            continue
        robot, plate = divmod(int(gap.argmin()), arm.n_plates)
        warn(
            f"obstacle {obstacle.name!r} ({type(obstacle.shape).__name__}): plate {plate} of robot {robot} begins "
            f"inside of it, {-float(gap.min()):.3g} m deep; it will be thrown out, or its steps fail. Move the arm "
            "out, or look at where the obstacle is and which way it faces",
            RuntimeWarning,
            once=True,
        )
