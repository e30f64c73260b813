"""Runs of many steps: `rollout` and `frames` store a trajectory, `unroll` can be differentiated."""

from torchdismech.runs.rollout import frames, rollout
from torchdismech.runs.unroll import unroll

__all__ = ["frames", "rollout", "unroll"]
