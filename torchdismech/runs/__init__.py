"""Many steps: to a trajectory, and with gradients."""

from torchdismech.runs.rollout import frames, rollout
from torchdismech.runs.unroll import unroll

__all__ = ["frames", "rollout", "unroll"]
