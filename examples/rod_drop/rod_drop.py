"""A rod falls at a slant on a rough floor: after the rod drop of MAT-DiSMech.

A rod of 75 mm falls by 5 cm, lower end first. One of 2 MPa folds up on the floor, one of 2 GPa stays straight, turns
and falls over. Each drops on four floors, smooth to rough: eight robots in one batch.

The result is how far the centre of mass goes sideways. Only friction pushes that way, so on the smooth floor it
stays where it was; on a rough one the lower end is held back while the rod tips over, and the middle goes ahead of it.
In the end the floor carries the weight.

`python -m examples.rod_drop.rod_drop` prints ways, loads, the largest overlap and the floor's largest load, and draws
rod_drop.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from examples.running import start
from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    Model,
    RobotBuilder,
    Trajectory,
    forces,
    rollout,
    straight,
)
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty
from torchdismech.view import pictured

import torch
from torch import Tensor

END = (0.05, 0.025, 0.05)  # m: the other end is the origin
RADIUS, DENSITY, POISSON = 1e-3, 1500.0, 0.3
YOUNGS = [2e6] * 4 + [2e9] * 4
FRICTION = [0.0, 0.1, 0.25, 0.5] * 2
FLOOR = -0.05  # m
STIFFNESS, TOLERANCE, SLIP_VELOCITY = 300.0, 5e-4, 5e-3
GRAVITY = 9.81


@dataclass(frozen=True)
class Drop:
    """Results of a run.

    Attributes
    ----------
    ways : (B,) sideways displacement of the centre of mass [m].
    loads : (B,) load on the floor at the end, over the weight.
    overlaps : (B,) largest overlap of the rod with the floor [m].
    """

    ways: Tensor
    loads: Tensor
    overlaps: Tensor


def build(nodes: int) -> Model:
    """Return eight rods above their floors."""
    youngs, friction = (torch.tensor(x, dtype=torch.float64)[:, None] for x in (YOUNGS, FRICTION))
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), END, nodes), Circle(RADIUS), Material(youngs, DENSITY, POISSON))
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    floor = HalfSpace((0.0, 0.0, FLOOR), (0.0, 0.0, 1.0))
    law = Penalty(STIFFNESS, TOLERANCE), Friction(friction, SLIP_VELOCITY)
    builder.add_contact(Obstacle(floor, *law, name="floor"))
    return builder.finalize()


def simulated(nodes: int = 21, dt: float = 5e-4, duration: float = 0.5) -> tuple[Model, Trajectory]:
    """Return the model and the run; the rods start at rest."""
    model = build(nodes)
    steps = round(duration / dt)
    integrator = ImplicitEuler(dt, max_substeps=8)
    return model, rollout(model, model.initial_state(), integrator, steps, every=max(1, steps // 500), throw=True)


def measured(model: Model, trajectory: Trajectory) -> Drop:
    """Return the results of a run."""
    mass = model.body.mass[: 3 * len(model.nodes) : 3]
    middles = (trajectory.positions[[0, -1], :, :, :2] * mass[:, None]).sum(2) / mass.sum()  # (2, B, 2)
    contact = trajectory.contact
    loads = contact["force/floor"][-1, :, 2] / (GRAVITY * mass.sum())
    return Drop((middles[1] - middles[0]).norm(dim=1), loads, contact["penetration"].amax(0))


def main() -> None:
    """Print the numbers and draw the soft rod on the floor that is next to the roughest."""
    model, trajectory = simulated()
    drop = measured(model, trajectory)
    print(f"{'E [MPa]':>8}{'mu':>6}{'way [mm]':>10}{'load/weight':>13}{'overlap [mm]':>14}")
    for e, mu, way, load, overlap in zip(YOUNGS, FRICTION, drop.ways, drop.loads, drop.overlaps, strict=True):
        print(f"{1e-6 * e:8g}{mu:6.2f}{1e3 * way:10.3f}{load:13.4f}{1e3 * overlap:14.4f}")
    pictured(trajectory, Path("rod_drop.png"), robot=2, node=0)


if __name__ == "__main__":
    start(__doc__, main)
