"""Planning through contact: an arm of constant-curvature sections turns a ball. Needs CasADi: the extra `plan`."""

from torchdismech.constant_curvature.planning.ball import Ball
from torchdismech.constant_curvature.planning.plan import Plan, Stage
from torchdismech.constant_curvature.planning.replay import Replay, angle_between, replay
from torchdismech.constant_curvature.planning.rotation import plan_rotation, rotation_about, touching_start

__all__ = [
    "Ball",
    "Plan",
    "Replay",
    "Stage",
    "angle_between",
    "plan_rotation",
    "replay",
    "rotation_about",
    "touching_start",
]
