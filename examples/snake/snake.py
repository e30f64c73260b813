"""A snake that swims by a travelling wave of natural curvature, against the theory of Gray and Hancock.

A thin rod in a viscous fluid feels twice the resistance across its axis that it feels along it. A wave y = b sin(k x
- w t) that runs backwards then pushes it forward at

    U / (w/k) = (b k)^2 / 2 (c_n/c_t - 1) / (1 + (b k)^2 / 2 c_n/c_t)

(Gray and Hancock, The propulsion of sea-urchin spermatozoa, J. Exp. Biol. 1955, for long and slender bodies). Nine
snakes of 0.1 m with three waves along the body swim for three periods: eight amplitudes, and once more the largest in
a fluid that resists alike in all directions, where theory says that there is no way at all. What comes out is the
speed over the last two periods against that of the theory. The body is not infinitely long: it pitches a little,
which costs some speed, and the more the smaller the number of waves.

`python -m examples.snake.snake` prints the speeds and draws snake.png; `--geometry` writes snake.txt anew.
"""

from __future__ import annotations

from pathlib import Path

from examples.running import run, start, straight_rod
from examples.snake.waves import FREQUENCY, LENGTH, SLOPES, WAVES
from torchdismech import Trajectory, write_dismech
from torchdismech.view import pictured

import numpy as np

FOLDER = Path(__file__).parent
RATIO = 2.0  # c_n / c_t


def write_geometry(path: Path = FOLDER / "snake.txt", nodes: int = 61) -> None:
    """Write a straight rod along x."""
    write_dismech(path, straight_rod(LENGTH, nodes))


def speeds(trajectory: Trajectory) -> np.ndarray:
    """Return the speed of each snake against its wave (B,), over the last two periods, in parts of the wave's."""
    time = trajectory.time.numpy()
    middle = trajectory.positions.mean(dim=2)[..., 0].numpy()  # (T, B)
    first = np.argmin(np.abs(time - (time[-1] - 2 / FREQUENCY)))
    wave = FREQUENCY * LENGTH / WAVES
    return -(middle[-1] - middle[first]) / (time[-1] - time[first]) / wave


def theory(slope: float, ratio: float = RATIO) -> float:
    """Return Gray and Hancock's speed in parts of the wave's."""
    return 0.5 * slope**2 * (ratio - 1) / (1 + 0.5 * slope**2 * ratio)


def main() -> None:
    """Print the speeds and draw the fastest snake."""
    trajectory = run(FOLDER / "scene.toml", allow_code=True)
    found = speeds(trajectory)
    print(f"{'slope b k':>10}{'speed / wave':>14}{'theory':>10}{'ratio':>8}")
    for slope, speed in zip(SLOPES[:-1], found, strict=False):
        print(f"{slope:10.2f}{speed:14.5f}{theory(slope):10.5f}{speed / theory(slope):8.3f}")
    print(f"{SLOPES[-1]:10.2f}{found[-1]:14.5f}{0.0:10.5f}   alike in all directions")
    pictured(trajectory, Path("snake.png"), robot=len(SLOPES) - 2, node=0)


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
