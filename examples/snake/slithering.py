"""A snake that slithers on a floor: friction by the direction in which its skin slides, against theory.

Snakes' scales slide easily ahead, less easily back and worst to the sides. A body that bends in a travelling wave, so
that its direction is th cos(k s + w t) along its arc s, then slides nearly along itself and goes against the wave. Hu,
Nirody, Scott and Shelley (The mechanics of slithering locomotion, PNAS 106, 2009) balance the friction of a slow one:
each length feels mu_t of the direction in which it slides along its tangent, mu_n of that across. For a long body the
balance over one wave gives the speed, here found by halving an interval.

Five snakes of six waves: coefficients sideways of 1, 2, 5 and 10 times that along the body, and those that Hu et al.
measured on snakes' skins. The first, which rubs alike in all directions, goes backwards: with its wave.

`python -m examples.snake.slithering` prints the speeds and draws slithering.png.
"""

from __future__ import annotations

import math
from pathlib import Path

from examples.running import start
from torchdismech import Circle, Control, ImplicitEuler, Material, Model, RobotBuilder, Trajectory, rollout, straight
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty
from torchdismech.forces import Gravity
from torchdismech.view import pictured

import numpy as np
import torch
from torch import Tensor

LENGTH, RADIUS, DENSITY, NODES = 0.1, 1e-3, 1200.0, 121  # m, m, kg/m^3
WAVES, FREQUENCY, ANGLE = 6, 1.0, 0.6  # along the body; Hz; rad, th
START = 0.25  # s, over which the wave grows
DT, DURATION, SEEN = 5e-3, 3.0, 2.0  # s; the speed is that of the last two periods
FORWARD = [0.1, 0.1, 0.1, 0.1, 0.11]
BACKWARD = [0.1, 0.1, 0.1, 0.1, 0.14]
SIDEWAYS = [0.1, 0.2, 0.5, 1.0, 0.2]


def snakes() -> Model:
    """Return snakes along x that lie on a floor, each with coefficients of its own."""
    sideways, forward, backward = (torch.tensor(values)[:, None].double() for values in (SIDEWAYS, FORWARD, BACKWARD))
    friction = Friction(sideways, 2e-4, forward_coefficient=forward, backward_coefficient=backward)
    weight = math.pi * RADIUS**2 * DENSITY * 9.81 * LENGTH / (NODES - 1)  # of a node
    sunk = 0.02 * RADIUS
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, RADIUS), (LENGTH, 0, RADIUS), NODES), Circle(RADIUS), Material(2e7, DENSITY))
    builder.add_force(Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(weight / (2 * sunk), 5 * sunk), friction))
    return builder.finalize()


def wave(time: Tensor, model: Model) -> Control:
    """Return the natural curvatures of a body whose direction is th cos(k s + w t), from its last node to its first."""
    k, omega = 2 * math.pi * WAVES / LENGTH, 2 * math.pi * FREQUENCY
    s = model.nodes[torch.as_tensor(model.springs[:, 1]), 0]
    voronoi = model.body.edge_length[torch.as_tensor(model.body.springs.edges)].mean(-1)
    grown = (time / START).clamp(0, 1)[:, None]
    curvature = -ANGLE * k * torch.sin(k * s + omega * time[:, None]) * grown * voronoi
    # the rod is along x with d1 = z and d2 = -y: kappa2 bends it towards -y
    return Control(natural_curvature=torch.stack([torch.zeros_like(curvature), -curvature], dim=-1))


def run(progress: bool = True) -> Trajectory:
    """Return the motion of the snakes."""
    model, steps = snakes(), round(DURATION / DT)
    state = model.initial_state(len(SIDEWAYS))
    return rollout(model, state, ImplicitEuler(DT), steps, wave, every=10, progress=progress, throw=True)


def speeds(trajectory: Trajectory) -> np.ndarray:
    """Return the speed of each snake against its wave (B,), in parts of the wave's."""
    middle, time = trajectory.positions.mean(dim=2)[..., 0].numpy(), trajectory.time.numpy()
    first = np.argmin(np.abs(time - (time[-1] - SEEN)))
    wavelength = LENGTH / WAVES * np.cos(directions()).mean()
    return (middle[-1] - middle[first]) / (time[-1] - time[first]) / (FREQUENCY * wavelength)


def directions() -> np.ndarray:
    """Return the direction of the body at many places of one wave [rad]."""
    return ANGLE * np.cos(2 * np.pi * (np.arange(1000) + 0.5) / 1000)


def theory(sideways: float, forward: float, backward: float) -> float:
    """Return the speed of an endless body, in parts of the wave's."""
    tangent = np.stack([np.cos(directions()), np.sin(directions())])
    normal = np.stack([-tangent[1], tangent[0]])

    def pushed(speed: float) -> float:
        """Return the mean force of friction ahead on a body at this speed, over its weight."""
        velocity = tangent / tangent[0].mean() + np.array([[speed - 1], [0]])  # along the wave, which runs back
        velocity /= np.linalg.norm(velocity, axis=0)
        along, across = (velocity * tangent).sum(0), (velocity * normal).sum(0)
        return -float(
            (np.where(along > 0, forward, backward) * along * tangent[0] + sideways * across * normal[0]).mean()
        )

    slow, fast = -0.5, 1.0
    for _ in range(40):
        middle = 0.5 * (slow + fast)
        slow, fast = (middle, fast) if pushed(middle) > 0 else (slow, middle)
    return 0.5 * (slow + fast)


def main() -> None:
    """Print the speeds and draw the snake that Hu et al. measured."""
    trajectory = run()
    print(f"{'sideways':>10}{'forward':>10}{'backward':>10}{'speed / wave':>14}{'theory':>10}")
    for *coefficients, speed in zip(SIDEWAYS, FORWARD, BACKWARD, speeds(trajectory), strict=True):
        print("".join(f"{mu:10.2f}" for mu in coefficients) + f"{speed:14.4f}{theory(*coefficients):10.4f}")
    pictured(trajectory, Path("slithering.png"), robot=len(SIDEWAYS) - 1, node=0)


if __name__ == "__main__":
    start(__doc__, main)
