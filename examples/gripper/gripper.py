"""A gripper: four fingers on a palm close by their natural curvature, eight grips in one batch.

The fingers stand 60 mm from the middle of a palm and point up, 11 edges of 8 mm each. Their natural curvature grows
for a second; damping brings them to rest. Nothing else acts on them, so each must take its natural shape: the part of
a regular polygon that bends inwards by its grip. What comes out is the opening between the tips of opposite fingers,
against that of the polygon.

`python -m examples.gripper.gripper` prints both and draws gripper.png; `--geometry` writes gripper.txt anew.
"""

from __future__ import annotations

from pathlib import Path

from examples.gripper.closing import EDGES, GRIPS
from examples.running import run, start
from torchdismech import Geometry, Trajectory, write_dismech
from torchdismech.view import pictured

import numpy as np

FOLDER = Path(__file__).parent
PALM, EDGE = 0.06, 8e-3  # m


def write_geometry(path: Path = FOLDER / "gripper.txt") -> None:
    """Write the palm's middle, and for each finger its root and the nodes above it."""
    nodes, edges = [(0.0, 0.0, 0.0)], []
    for direction in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        x, y = PALM * np.array(direction)
        first = len(nodes)
        nodes += [(x, y, k * EDGE) for k in range(EDGES)]
        edges += [(0, first), *((first + k, first + k + 1) for k in range(EDGES - 1))]
    write_dismech(path, Geometry(np.array(nodes), np.array(edges), np.zeros((0, 3), dtype=np.int64)))


def openings(trajectory: Trajectory) -> np.ndarray:
    """Return the distances (B, 2) between the tips of opposite fingers at the end [m]."""
    tips = trajectory.positions[-1][:, EDGES::EDGES]  # (B, 4, 3)
    return (tips[:, :2] - tips[:, 2:]).norm(dim=-1).numpy()


def polygon_opening(grip: float) -> float:
    """Return the distance [m] between tips of opposite fingers whose edges above the first turn inwards by `grip`."""
    edges = EDGES - 1  # the first one points up: the right angle at the palm is natural
    return 2 * abs(PALM - EDGE * np.sin(grip / (edges - 1) * np.arange(edges)).sum())


def main() -> None:
    """Print the openings and draw the strongest grip."""
    trajectory = run(FOLDER / "scene.toml", allow_code=True)
    print(f"{'grip [deg]':>10}{'opening [mm]':>14}{'of the polygon':>16}")
    for grip, opening in zip(GRIPS, openings(trajectory), strict=True):
        print(f"{np.degrees(grip):10.1f}{1e3 * opening[0]:14.4f}{1e3 * polygon_opening(grip):16.4f}")
    pictured(trajectory, Path("gripper.png"), robot=len(GRIPS) - 1)


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
