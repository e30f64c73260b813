"""Looking at trajectories: figures (matplotlib), movies, files for other programs, a page in the browser.

What needs a package of an extra imports it where it is used. Modules: `figure` and `curves` draw; `scenery` chooses
what is shown and makes surfaces of it, which `movie`, `export` and `page` all show.
"""

from torchdismech.view.curves import draw_curves, save_curves
from torchdismech.view.figure import draw_trajectory, pictured, save_picture

__all__ = ["draw_curves", "draw_trajectory", "pictured", "save_curves", "save_picture"]
