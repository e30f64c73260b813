"""Pictures of trajectories (matplotlib, imported where it is used)."""

from torchdismech.view.figure import draw_trajectory, save_picture

__all__ = ["draw_trajectory", "save_picture"]
