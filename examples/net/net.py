"""A net of rods catches a falling shell: four weights in one batch.

Eight cords cross each other, four each way, knotted where they meet; their ends are held. A disc, 100 mm wide, falls
10 mm onto them, a little off the middle, and comes to rest in the sag that its weight makes. Disc and net are two parts
of one robot: all that holds the disc is contact, cords against its surface and its rim, with friction.

Two numbers come out. At rest the net's force on the disc, as the contact report gives it, has to be the disc's weight,
computed here from volume and density (measured: to 2e-6 of it after a second). And a heavier disc hangs lower, but by
less than its weight is larger, as cords that are pulled across their own direction stiffen: 7.5, 9.9, 11.8 and 13.4 mm
for one to four times 0.23 N. At the impact surfaces overlap by 0.22 mm at most, of the 1 mm that is the penalty's
tolerance.

`python -m examples.net.net` prints loads, sags and overlaps and draws net.png.
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
    meshes,
    rollout,
    straight,
)
from torchdismech.contact import Friction, Penalty, SelfContact
from torchdismech.view import pictured

import torch
from torch import Tensor

SPAN, LINES, EDGES = 0.2, (-0.06, -0.02, 0.02, 0.06), 10  # m; of a cord
CORD, CORD_MATERIAL = Circle(1.5e-3), {"youngs": 2e6, "density": 1100.0, "relaxation_time": 0.03}
RADIUS, THICKNESS = 0.05, 3e-3  # m, of the disc
BESIDE, DROP = (0.01, 0.004), 0.01  # m: its middle from that of the net, and above it
DENSITIES = [1000.0, 2000.0, 3000.0, 4000.0]
STIFFNESS, TOLERANCE = 1000.0, 1e-3  # N/m, m
FRICTION, SLIP_VELOCITY = 0.3, 5e-3
GRAVITY = 9.81


@dataclass(frozen=True)
class Catch:
    """Results of a run.

    Attributes
    ----------
    loads : (B,) upward force of the net on the disc at the end, over the disc's weight.
    asides : (B,) the sideways part of that force, over the disc's weight.
    sags : (B,) depth of the disc's middle below the net as built [m].
    overlaps : (B,) largest overlap of two surfaces in any step [m].
    """

    loads: Tensor
    asides: Tensor
    sags: Tensor
    overlaps: Tensor


def build(spacing: float) -> tuple[Model, list[int]]:
    """Return net and disc, with triangles of sides `spacing` [m], and the disc's nodes."""
    builder = RobotBuilder()
    end = SPAN / 2
    for place in LINES:
        for a, b in (((-end, place, 0), (end, place, 0)), ((place, -end, 0), (place, end, 0))):
            cord = builder.add_rod(straight(a, b, EDGES + 1), CORD, Material(**CORD_MATERIAL))
            builder.clamp(nodes=[cord[0], cord[-1]])
    disc = meshes.disc(RADIUS, spacing)
    above = (*BESIDE, CORD.radius + THICKNESS / 2 + DROP)
    density = torch.tensor(DENSITIES, dtype=torch.float64)[:, None]
    nodes = builder.add_shell(disc.nodes + above, disc.triangles, THICKNESS, Material(5e7, density, 0.4), "hinge")
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    builder.add_contact(SelfContact(Penalty(STIFFNESS, TOLERANCE), Friction(FRICTION, SLIP_VELOCITY)))
    return builder.finalize(), nodes.tolist()


def simulated(spacing: float = RADIUS / 4, dt: float = 2e-3, duration: float = 1.0) -> tuple[Trajectory, Catch]:
    """Return the run and its results; the disc starts at rest."""
    model, disc = build(spacing)
    steps = round(duration / dt)
    integrator = ImplicitEuler(dt, max_substeps=16)
    trajectory = rollout(model, model.initial_state(), integrator, steps, every=max(1, steps // 100), throw=True)
    weight = GRAVITY * model.body.node_mass()[..., disc].sum(-1)
    part = int(model.body.part_of_node[disc[0]])
    force = trajectory.contact[f"force/part{part}"][-1] / weight[:, None]
    catch = Catch(
        loads=force[:, 2],
        asides=force[:, :2].norm(dim=1),
        sags=-trajectory.positions[-1, :, disc[0], 2],
        overlaps=trajectory.contact["penetration"].amax(0),
    )
    return trajectory, catch


def main() -> None:
    """Print the numbers and draw the heaviest disc in its net."""
    trajectory, catch = simulated()
    print(f"{'density':>8}{'load/weight':>13}{'aside/weight':>14}{'sag [mm]':>10}{'overlap [mm]':>14}{'contacts':>10}")
    contacts = trajectory.contact["active"][-1]
    for row in zip(DENSITIES, catch.loads, catch.asides, catch.sags, catch.overlaps, contacts, strict=True):
        density, load, aside, sag, overlap, count = map(float, row)
        print(f"{density:8g}{load:13.5f}{aside:14.1e}{1e3 * sag:10.3f}{1e3 * overlap:14.4f}{count:10g}")
    pictured(trajectory, Path("net.png"), robot=len(DENSITIES) - 1, snapshots=3)


if __name__ == "__main__":
    start(__doc__, main)
