"""Runs: `rollout` and `frames` store steps, `unroll` differentiates them, `trajectory_of` keeps a loop of one's own."""

from torchdismech.runs.of_states import trajectory_of
from torchdismech.runs.rollout import frames, rollout
from torchdismech.runs.unroll import unroll

__all__ = ["frames", "rollout", "trajectory_of", "unroll"]
