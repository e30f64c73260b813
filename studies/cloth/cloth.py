"""A round cloth, held at its middle, falls into folds: four moduli in one batch, after the cloths of Py-DiSMech.

A disc, 0.36 m wide, lies flat, held at the node in its middle only. It is let go and hangs down in folds that touch
each other: contact of the cloth with itself, with friction. The mesh is irregular, and that decides where folds begin.

How soft a cloth is depends on its size over l = (B / w)^(1/3), with B its bending stiffness and w its weight per area:
the softest is 7 l in radius, the stiffest 3.2 l. A softer one comes down closer to the vertical line through its
middle, and its shadow at noon is smaller: 0.25, 0.35, 0.39 and 0.50 of the flat cloth's.
At rest the force that holds the middle is the cloth's weight. And the cloth bends, it hardly stretches: edges keep
their lengths to 2 %.

`python -m studies.cloth.cloth` prints shadows, heights, folds, forces and overlaps and draws cloth.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech import ImplicitEuler, Material, Model, RobotBuilder, Trajectory, forces, meshes, rollout
from torchdismech.contact import Friction, Penalty, SelfContact
from torchdismech.view import pictured

RADIUS, THICKNESS = 0.18, 1e-3  # m
YOUNGS = [2e6, 4.3e6, 9.3e6, 2e7]  # Pa
DENSITY, POISSON, GRAVITY = 1100.0, 0.3, 9.81
RELAXATION_TIME, DAMPING = 0.02, 10.0  # s, 1/s
STIFFNESS, TOLERANCE = 1000.0, 1e-3  # N/m, m
FRICTION, SLIP_VELOCITY = 0.2, 0.1
PIXELS = 200  # across the cloth, in which its shadow is measured


@dataclass(frozen=True)
class Drape:
    """Results of a run.

    Attributes
    ----------
    shadows : (B,) area seen from above at the end, over that of the flat cloth.
    depths : (B,) mean depth of the rim below the middle [m].
    folds : (B,) mean number of waves round the rim, weighted by the square of their heights.
    loads : (B,) upward force that holds the middle, over the weight.
    speeds : (B,) largest speed of a node at the end [m/s].
    stretches : (B,) largest change of an edge's length, over its length.
    overlaps : (B,) largest overlap of two surfaces in any step [m].
    """

    shadows: Tensor
    depths: Tensor
    folds: Tensor
    loads: Tensor
    speeds: Tensor
    stretches: Tensor
    overlaps: Tensor


def build(rings: int) -> Model:
    """Return the cloth with so many edges from its middle to its rim."""
    disc = meshes.disc(RADIUS, RADIUS / rings, pattern="random", seed=1)
    youngs = torch.tensor(YOUNGS, dtype=torch.float64)[:, None]
    builder = RobotBuilder()
    # hinges are cheaper than mid-edge normals, and nothing here is compared with plate theory
    builder.add_shell(
        disc.nodes, disc.triangles, THICKNESS, Material(youngs, DENSITY, POISSON, RELAXATION_TIME), "hinge"
    )
    builder.clamp(nodes=[middle(disc.nodes)])
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    builder.add_force(forces.MassDamping(DAMPING))
    builder.add_contact(SelfContact(Penalty(STIFFNESS, TOLERANCE), Friction(FRICTION, SLIP_VELOCITY)))
    return builder.finalize()


def middle(nodes: np.ndarray) -> int:
    """Return the node next to the disc's middle."""
    return int(np.linalg.norm(nodes, axis=1).argmin())


def simulated(rings: int = 9, dt: float = 4e-3, duration: float = 2.5) -> tuple[Trajectory, Drape]:
    """Return the run and its results; the cloth starts flat and at rest."""
    model = build(rings)
    steps = round(duration / dt)
    integrator = ImplicitEuler(dt, max_substeps=16)
    trajectory = rollout(model, model.initial_state(), integrator, steps, every=max(1, steps // 100), throw=True)
    return trajectory, measured(model, trajectory)


def measured(model: Model, trajectory: Trajectory) -> Drape:
    """Return the results of a run."""
    state, end = trajectory.state, trajectory.positions[-1]
    held, rest = middle(model.nodes.numpy()), model.nodes.numpy()
    outline = np.flatnonzero(np.linalg.norm(rest, axis=1) > RADIUS * (1 - 1e-6))
    outline = outline[np.argsort(np.arctan2(rest[outline, 1], rest[outline, 0]))]
    waves = torch.fft.rfft(end[:, outline, 2]).abs()[:, 1:] ** 2
    mass = model.body.node_mass()
    start, mechanics = model.start_step(state), model.mechanics
    internal = mechanics.elastic_force(start, state.q)
    if start.pairs is not None:
        internal = internal + mechanics.self_contacts.force(start.pairs.listed, state.q, state.velocity)
    return Drape(
        shadows=torch.stack([shadow(x, model.triangles) for x in end]),
        depths=end[:, held, 2] - end[:, outline, 2].mean(1),
        folds=(waves * torch.arange(1, waves.shape[1] + 1)).sum(1) / waves.sum(1),
        # the cloth pulls at the held node, and the node's own weight comes on top
        loads=mass[..., held] / mass.sum(-1) - internal[:, 3 * held + 2] / (GRAVITY * mass.sum(-1)),
        speeds=trajectory.velocities[-1].norm(dim=-1).amax(1),
        stretches=model.strains(state)["membrane_stretch"].abs().amax(1),
        overlaps=trajectory.contact["penetration"].amax(0),
    )


def shadow(nodes: Tensor, triangles: np.ndarray) -> Tensor:
    """Return the area () that triangles of nodes (N, 3) cover seen from above, over that of the flat disc."""
    line = torch.linspace(-RADIUS, RADIUS, PIXELS, dtype=nodes.dtype)
    points = torch.cartesian_prod(line, line)
    covered = torch.zeros(len(points), dtype=torch.bool)
    for a, b, c in nodes[torch.as_tensor(triangles), :2]:
        sides = [
            (v[0] - u[0]) * (points[:, 1] - u[1]) - (v[1] - u[1]) * (points[:, 0] - u[0])
            for u, v in ((a, b), (b, c), (c, a))
        ]
        left = torch.stack(sides) > 0
        covered |= left.all(0) | (~left).all(0)
    return covered.sum() * (line[1] - line[0]) ** 2 / (torch.pi * RADIUS**2)


def main() -> None:
    """Print the numbers and draw the softest cloth."""
    trajectory, drape = simulated()
    titles = ("E [MPa]", "shadow", "depth [mm]", "folds", "load/weight", "stretch", "overlap [mm]", "contacts")
    print("".join(f"{title:>14}" for title in titles))
    contacts = trajectory.contact["active"][-1]
    columns = (drape.shadows, drape.depths, drape.folds, drape.loads, drape.stretches, drape.overlaps, contacts)
    for row in zip(YOUNGS, *columns, strict=True):
        youngs, area, depth, folds, load, stretch, overlap, count = map(float, row)
        print(
            f"{1e-6 * youngs:14g}{area:14.3f}{1e3 * depth:14.2f}{folds:14.2f}"
            f"{load:14.5f}{stretch:14.4f}{1e3 * overlap:14.4f}{count:14g}"
        )
    pictured(trajectory, Path("cloth.png"), snapshots=2)


if __name__ == "__main__":
    main()
