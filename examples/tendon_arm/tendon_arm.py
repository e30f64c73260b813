"""An arm of four tendons, two antagonistic pairs, whose tip goes in a circle.

A motor that takes in the length s of a tendon at the distance d from the middle line bends the arm by s / d, whatever
its stiffness, as long as the tendon on the other side gives as much; the tip is then L (1 - cos a) / a, a = s / d, away
from where it hangs. What a simulation with gravity, stretch and friction finds is printed beside it.

`python -m examples.tendon_arm.tendon_arm` prints them; `--files` writes arm.txt and the four tables of lengths anew.
"""

from __future__ import annotations

import math
from pathlib import Path

from examples.running import run, start, straight_rod
from torchdismech import Trajectory, write_dismech
from torchdismech.view import pictured

import numpy as np

FOLDER = Path(__file__).parent
SCENE = FOLDER / "scene.toml"
LENGTH, OFFSET = 0.3, 0.02  # m
PULL, PERIOD = 0.012, 1.0  # m, s
SIDES = ("east", "north", "west", "south")


def write_files(folder: Path = FOLDER, nodes: int = 16) -> None:
    """Write a rod that hangs down, and for each tendon the length that its motor takes in: a sine that fades in."""
    write_dismech(folder / "arm.txt", straight_rod(LENGTH, nodes, (0.0, 0.0, -1.0)))
    time = np.linspace(0, 3 * PERIOD, 151)
    for k, side in enumerate(SIDES):
        faded = np.minimum(time / PERIOD, 1) * PULL
        pull = faded * np.cos(2 * math.pi * time / PERIOD - k * math.pi / 2)
        rows = [f"{t:.3f}, {p:.6e}\n" for t, p in zip(time, pull, strict=True)]
        (folder / f"{side}.csv").write_text("time, pull\n" + "".join(rows))


def radii(trajectory: Trajectory) -> np.ndarray:
    """Return the horizontal distances of the tip from where it hangs, in the last turn (frames,) [m]."""
    last = trajectory.time > 2 * PERIOD
    return np.linalg.norm(trajectory.positions[last, 0, -1, :2].numpy(), axis=1)


def radius_of_arc() -> float:
    """Return the radius of the circle if the arm were an arc that the tendons alone shape [m]."""
    angle = PULL / OFFSET
    return LENGTH * (1 - math.cos(angle)) / angle


def main() -> None:
    """Print the circle's radius beside that of an arc, and draw the arm."""
    trajectory = run(SCENE)
    found = radii(trajectory)
    arc = 1e3 * radius_of_arc()
    print(f"circle of the tip: {1e3 * found.min():.1f} to {1e3 * found.max():.1f} mm; an arc has {arc:.1f}")
    pictured(trajectory, Path("tendon_arm.png"))


if __name__ == "__main__":
    start(__doc__, main, files=write_files)
