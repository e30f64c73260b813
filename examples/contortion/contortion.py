"""A rod whose ends come together and then turn buckles and winds up: after an example of Py-DiSMech's code.

The rod of 0.1 m sags and buckles as its left end comes closer by 15 mm, and coils as that end turns by one and a half
turns. Turns cannot get lost: the twist of the material and the writhe of the centre line add up to the link, which
the hands at the ends set (Calugareanu, White, Fuller). So what comes out for eight rods of unlike stiffness, whose
shapes and twists differ, is

    twist / (2 pi) + writhe = -1.5,

turns of the left end counting negative. The writhe is that of the rod closed far away along the line of its ends. As
long as the centre line does not pass through itself (nothing keeps it from that here: contact is not in the scene)
this holds at every time.

`python -m examples.contortion.contortion` prints twist, writhe and their sum and draws contortion.png; `--geometry`
writes rod.txt anew.
"""

from __future__ import annotations

from pathlib import Path

from examples.running import run, start, straight_rod
from torchdismech import Trajectory, write_dismech
from torchdismech.geometry.curves import polygon_writhe
from torchdismech.io.scene import load_scene
from torchdismech.view import pictured

import numpy as np
import torch

FOLDER = Path(__file__).parent


def write_geometry(path: Path = FOLDER / "rod.txt", nodes: int = 41) -> None:
    """Write a straight rod along x."""
    write_dismech(path, straight_rod(0.1, nodes))


def turns(trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Return twist / (2 pi) and writhe at all stored times, (T, B) each.

    The twist between two edges is that of their material frames beyond parallel transport from one to the other, so it
    follows from positions and angles up to whole turns; it is small at every spring here.
    """
    setup = load_scene(FOLDER / "scene.toml").build()
    model = setup.model
    twist, writhe = [], []
    state = model.initial_state(batch=trajectory.batch)
    for x, theta in zip(trajectory.positions, trajectory.twist, strict=True):
        state = model.frames.moved(state, torch.cat([x.flatten(1), theta], dim=1))
        twist.append(model.strains(state)["tau"].sum(1).numpy() / (2 * np.pi))
        writhe.append([polygon_writhe(line) for line in x.numpy()])
    return np.array(twist), np.array(writhe)


def main() -> None:
    """Print the turns and draw the stiffest rod."""
    trajectory = run(FOLDER / "scene.toml")
    twist, writhe = turns(trajectory)
    youngs = trajectory.randomized["rod.youngs"].tolist()
    print(f"{'E [MPa]':>8}{'twist':>10}{'writhe':>10}{'sum':>10}   turns, at the end")
    for e, tw, wr in zip(youngs, twist[-1], writhe[-1], strict=True):
        print(f"{1e-6 * e:8.2f}{tw:10.4f}{wr:10.4f}{tw + wr:10.4f}")
    pictured(trajectory, Path("contortion.png"), robot=len(youngs) - 1, node=20)


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
