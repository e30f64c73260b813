r"""A pneumatic arm of constant-curvature sections in contact: scenarios A, A', A'' and B of docs/pneumatic_arm.md.

A: a hanging arm bends onto an inclined box, sticks and slides with one plate. A': it falls onto a box and lies on it
with many plates at once, which slide. A'': these stick, then slide, as in the paper's scenario A. B: two balls, one
after the other. Each runs for 64 arms with other friction, stiffness and ramps.

`python -m studies.pneumatic_arm.pneumatic_arm` prints how many arms stick, slide and touch nothing at some times, and
draws one arm of each; `studies.pneumatic_arm.ablation` is scenario C, `studies.pneumatic_arm.against_rods` compares the
arm with discrete elastic rods.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from studies.pneumatic_arm.scenarios import Scene, draped, inclined_box, rough_incline, two_spheres
from torchdismech import Trajectory, rollout
from torchdismech.constant_curvature import ArmIntegrator
from torchdismech.view import pictured

SCENES: dict[str, tuple[Callable[..., Scene], float]] = {  # with mu of the first arm, which is not varied
    "A": (inclined_box, 0.5),
    "A'": (draped, 0.5),
    "A''": (rough_incline, 0.8),
    "B": (two_spheres, 0.5),
}


def varied(make: Callable[..., Scene], batch: int, seed: int = 0, friction: float = 0.5, **settings) -> Scene:
    """Return a scene of many arms: mu within 0.3, K within 20 %, ramps to 30 to 50 N; the first is not varied."""
    random = torch.rand(3, batch, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    random[:, 0] = 0.5
    mu, stiffness, peak = friction - 0.3 + 0.6 * random[0], 265.0 * (0.8 + 0.4 * random[1]), 30.0 + 20.0 * random[2]
    return make(batch=batch, friction=mu, stiffness=stiffness, peak=peak, **settings)


def run(
    scene: Scene, dt: float = 2e-3, duration: float = 2.0, every: float = 0.1, progress: bool = False
) -> Trajectory:
    """Return the trajectory of a scene."""
    return rollout(
        scene.arm,
        scene.start,
        ArmIntegrator(dt),
        round(duration / dt),
        scene.schedule,
        every=round(every / dt),
        progress=progress,
        throw=True,
    )


def counts(trajectory: Trajectory, time: float) -> tuple[int, int, int]:
    """Return the numbers of arms that stick with all touching plates, slide with some, and touch nothing, at a time."""
    frame = int((trajectory.time - time).abs().argmin())
    active, sliding = trajectory.contact["active"][frame], trajectory.contact["sliding"][frame]
    return int(((active > 0) & (sliding == 0)).sum()), int((sliding > 0).sum()), int((active == 0).sum())


def main() -> None:
    """Run the scenes, print what becomes of the arms and draw the first of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dt", type=float, default=2e-3)
    chosen = parser.parse_args()
    print("scene  time [s]  stick  slide  apart  deepest so far [m]")
    for name, (make, friction) in SCENES.items():
        scene = varied(make, chosen.batch, friction=friction)
        trajectory = run(scene, chosen.dt, progress=True)
        for time in (0.5, 1.0, 1.6, 2.0):
            stick, slide, apart = counts(trajectory, time)
            deepest = trajectory.contact["penetration"][trajectory.time <= time + 1e-9].max()
            print(f"{name:5}{time:10.1f}{stick:7}{slide:7}{apart:7}{deepest:12.1e}")
        pictured(trajectory, Path(f"pneumatic_arm_{make.__name__}.png"), snapshots=6)


if __name__ == "__main__":
    main()
