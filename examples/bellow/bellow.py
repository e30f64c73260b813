"""A bellow of three pressure chambers, which hangs down and bends away from the chamber with most pressure in it.

Chambers push their ends apart with p A. Without other loads the bellow is an arc: its angle at the tip is
L sum_k p_k A d_k / EI, d_k along the direction in which it bends, and its length L (1 + sum_k p_k A / EA). Both are
printed beside the simulation, for five pressures in one chamber.

`python -m examples.bellow.bellow` prints the table; `--geometry` writes bellow.txt anew.
"""

from __future__ import annotations

from pathlib import Path

from examples.running import run, start, straight_rod
from torchdismech import Trajectory, write_dismech
from torchdismech.io.scene import load_scene
from torchdismech.view import pictured

import numpy as np

FOLDER = Path(__file__).parent
SCENE = FOLDER / "scene.toml"
LENGTH = 0.1


def write_geometry(path: Path = FOLDER / "bellow.txt", nodes: int = 21) -> None:
    """Write a straight rod that hangs down."""
    write_dismech(path, straight_rod(LENGTH, nodes, (0.0, 0.0, -1.0)))


def angles_and_lengths(trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Return the angles (B,) at the tips [rad], towards -x, and the lengths (B,) [m]."""
    edges = trajectory.positions[-1].diff(dim=1).numpy()
    last = 1.5 * edges[:, -1] - 0.5 * edges[:, -2]  # at the tip, not in the middle of the last edge
    return np.arctan2(-last[:, 0], -last[:, 2]), np.linalg.norm(edges, axis=2).sum(1)


def expected() -> tuple[np.ndarray, np.ndarray]:
    """Return the angles (B,) [rad] and lengths (B,) [m] by the closed forms."""
    document = load_scene(SCENE).document
    first, *others = document.chamber
    pressures = np.array(document.batch.randomize["chamber.0.pressure"].values)
    stiffness = document.rod[0].stiffness
    force = pressures * first.area + sum(c.pressure * c.area for c in others)
    moment = pressures * first.area * first.offset[0] + sum(c.pressure * c.area * c.offset[0] for c in others)
    return LENGTH * moment / stiffness.EI1, LENGTH * (1 + force / stiffness.EA)


def main() -> None:
    """Print angles and lengths beside the closed forms, and draw the bellow at the highest pressure."""
    trajectory = run(SCENE, progress=False)
    columns = zip(*angles_and_lengths(trajectory), *expected(), strict=True)
    for angle, length, angle_of_arc, length_of_arc in columns:
        degrees = f"{np.degrees(angle):8.3f} deg ({np.degrees(angle_of_arc):8.3f})"
        print(f"angle {degrees}, length {1e3 * length:.3f} mm ({1e3 * length_of_arc:.3f})")
    pictured(trajectory, Path("bellow.png"), robot=4)


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
