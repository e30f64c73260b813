"""A buckled strip snaps as one of its ends is turned: the angle at which it does.

A strip of 0.1 m is held at both ends, which come closer by a part e of its length: it buckles up. Then its left end
turns until it points down. Beyond some angle there is no arch any more, and the strip snaps to the other side. Eight
strips are in one batch, from e = 0.5 % to 20 %.

Shallow arches snap at 1.7818 sqrt(e), whatever they are made of (Gomez, Moulton and Vella, "Critical slowing down in
purely elastic snap-through instabilities", Nature Physics 2017). `theory` finds the number from a linear beam of length
1, compressed by t^2 EI, held at both ends and level at the right one. If it is longer by e than the way between them,
it begins with the slope m(t) sqrt(e); no arch begins with more than the largest m. `follow` walks along the equilibria
to where the angle turns back: within 0.3 % of that, also for arches that are not shallow at all.

`python -m examples.snap.snap` prints the angles, and where the middles end, and draws snap.png.
"""

from __future__ import annotations

import math
from pathlib import Path

from examples.running import start
from torchdismech import (
    Control,
    ImplicitEuler,
    Material,
    Model,
    Rectangle,
    RobotBuilder,
    State,
    Static,
    Trajectory,
    follow,
    forces,
    rollout,
    straight,
)
from torchdismech.view import pictured

import numpy as np
import torch
from torch import Tensor

LENGTH, NODES = 0.1, 61  # m
SECTION, MATERIAL = Rectangle(width=0.01, height=1e-4), Material(youngs=2e9, density=1200.0)
SHORTER = torch.tensor([0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2], dtype=torch.float64)  # e
FURTHEST = 1.9  # sqrt(e) rad, to which the ends are turned
TURNING, DURATION, STEP = 1.5, 2.0, 4e-3  # s
DAMPING = 10.0  # 1/s


def build() -> Model:
    """Return the straight strip, held at both ends in their directions."""
    builder = RobotBuilder(planar=True)
    line = builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), NODES), SECTION, MATERIAL)
    builder.clamp(nodes=[line[0]], direction="rest")
    builder.clamp(nodes=[line[-1]], direction="rest")
    builder.add_force(forces.MassDamping(DAMPING))
    return builder.finalize()


def turned(model: Model, angle: Tensor) -> Control:
    """Return the left ends moved to the right and turned downwards by angles (B,) [rad]."""
    pose = model.rest_poses.repeat(len(angle), 1, 1)
    pose[:, 0, 0] += SHORTER * LENGTH
    pose[:, 0, 3], pose[:, 0, 5] = torch.cos(angle / 2), torch.sin(angle / 2)  # about y
    return Control(pose=pose)


def buckled(model: Model) -> State:
    """Return the arches at rest, found from half waves of a cosine."""
    nodes, e, s = model.nodes.repeat(len(SHORTER), 1, 1), SHORTER[:, None], model.nodes[:, 0] / LENGTH
    nodes[:, :, 0] += LENGTH * e * (1 - s)
    nodes[:, :, 2] = LENGTH * e.sqrt() / math.pi * (1 - torch.cos(2 * math.pi * s))
    guess = model.initial_state(q=model.posture(nodes))
    return Static().step(model, guess, turned(model, torch.zeros_like(SHORTER)), throw=True)[0]


def snapping_angles(model: Model, arches: State) -> Tensor:
    """Return the angles (B,) [rad] beyond which there is no arch."""
    furthest = FURTHEST * SHORTER.sqrt()
    path = follow(model, arches, turned(model, furthest), steps=25, length=0.1)
    return furthest * torch.stack([path.limits(robot)[0] for robot in range(len(SHORTER))])


def theory() -> float:
    """Return the angle over sqrt(e) at which a shallow arch snaps: the largest m(t) between two buckling loads."""
    s, found = np.linspace(0, 1, 1001), []
    for t in np.linspace(2 * math.pi + 0.1, 8.9, 300):
        # w = a + b s + c cos(t s) + d sin(t s)
        ends = [[1, 0, 1, 0], [1, 1, math.cos(t), math.sin(t)], [0, 1, 0, t], [0, 1, -t * math.sin(t), t * math.cos(t)]]
        _, b, c, d = np.linalg.solve(ends, [0, 0, 1, 0])
        slope = b - c * t * np.sin(t * s) + d * t * np.cos(t * s)
        found.append(1 / math.sqrt(np.trapezoid(slope**2, s) / 2))
    return max(found)


def snapped(model: Model, arches: State) -> Trajectory:
    """Return the motion of the strips as their ends are turned, and then held."""
    furthest = FURTHEST * SHORTER.sqrt()

    def schedule(time: Tensor, model: Model) -> Control:
        return turned(model, furthest * (time / TURNING).clamp(max=1))

    return rollout(model, arches, ImplicitEuler(STEP, max_substeps=8), round(DURATION / STEP), schedule, throw=True)


def main() -> None:
    """Print the angles and draw the deepest arch."""
    arches = buckled(model := build())
    run, shallow = snapped(model, arches), theory()
    print(f"{'shorter':>8}{'snaps at [deg]':>16}{'over theory':>13}{'middle, then [mm]':>19}{'at the end':>12}")
    for robot, angle in enumerate(snapping_angles(model, arches)):
        e, (before, after) = SHORTER[robot], 1e3 * run.positions[[0, -1], robot, NODES // 2, 2]
        print(f"{e:8.3f}{math.degrees(angle):16.3f}{angle / (shallow * e.sqrt()):13.4f}{before:19.2f}{after:12.2f}")
    pictured(run, Path("snap.png"), robot=len(SHORTER) - 1, node=NODES // 2)


if __name__ == "__main__":
    start(__doc__, main)
