"""A worm of two joints swims in a viscous fluid: Purcell's swimmer, without magnets and without a ground.

Where viscosity rules, only the order of shapes counts, not how fast they follow: a stroke that looks the same
backwards in time goes nowhere (Purcell, Life at low Reynolds number, 1977). Nine worms swing two joints alike, the
second one later by phases from 0 to 180 degrees. In the plane of the two angles a stroke is an ellipse whose area
goes with the sine of the phase; for small swings the way that a stroke makes goes with that area. So what comes out
is the way per stroke

- zero at 0 and at 180 degrees, where the ellipse is a line,
- the sine of the phase times that at 90 degrees in between.

`python -m examples.worm.worm` prints it and draws worm.png; `--geometry` writes worm.txt anew.
"""

from __future__ import annotations

from pathlib import Path

from examples.running import run, start, straight_rod
from examples.worm.joints import FREQUENCY, PHASES
from torchdismech import Trajectory, write_dismech
from torchdismech.view import pictured

import numpy as np

FOLDER = Path(__file__).parent
LENGTH = 0.1  # m


def write_geometry(path: Path = FOLDER / "worm.txt", nodes: int = 38) -> None:
    """Write a straight rod along x."""
    write_dismech(path, straight_rod(LENGTH, nodes))


def ways(trajectory: Trajectory) -> np.ndarray:
    """Return the way of each worm's middle in its last two strokes along the body (B,), in body lengths a stroke."""
    time = trajectory.time.numpy()
    first = np.argmin(np.abs(time - (time[-1] - 2 / FREQUENCY)))
    middle = trajectory.positions.mean(dim=2)[..., 0].numpy()
    return (middle[-1] - middle[first]) / 2 / LENGTH


def main() -> None:
    """Print the ways and draw the worm that swims best."""
    trajectory = run(FOLDER / "scene.toml", allow_code=True)
    found = ways(trajectory)
    best = len(PHASES) // 2
    print(f"{'phase [deg]':>11}{'way / length':>14}{'over that at 90':>17}{'sine':>8}")
    for phase, way in zip(PHASES, found, strict=True):
        print(f"{np.degrees(phase):11.1f}{way:14.6f}{way / found[best]:17.4f}{np.sin(phase):8.4f}")
    pictured(trajectory, Path("worm.png"), robot=best)


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
