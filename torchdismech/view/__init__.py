"""Looking at trajectories: figures (matplotlib), movies, files for other programs, a page in the browser.

Optional packages are imported where they are used. `figure` and `curves` draw with matplotlib; `scenery` chooses the
robots and frames of a run and makes surfaces of them, which `movie`, `export` and `page` show.
"""

from torchdismech.view.curves import draw_curves, save_curves
from torchdismech.view.figure import draw_trajectory, pictured, save_picture

__all__ = ["draw_curves", "draw_trajectory", "pictured", "save_curves", "save_picture"]
