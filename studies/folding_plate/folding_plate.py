"""A plate folds onto itself under its weight: four moduli in one batch, after the folding plates of Py-DiSMech.

A strip, 2 m long, lies on a floor with its first half; the other half is bent over it in a half circle and let go.
It falls onto the lower half, and what stays open is a loop like a drop. Plate against plate and plate against floor
are contacts with friction; nothing else holds the plate.

The height of the loop is known. With w the weight per area and B = E h^3 / 12 (Poisson's ratio is 0, so that a
strip bends as a beam does, however wide it is), all lengths scale with l = (B / w)^(1/3). The strip leaves the floor,
and arrives on itself, without curvature: where it lies flat there is no moment. A planar elastica under its own weight
with these ends has one shape, integrated here by scipy: 0.907 l high. Friction does not enter: where the elastica's
"energy" B kappa^2 / 2 - w z + H cos(theta) is the same at both ends, the pull H along the strip has to vanish. So the
height grows with the cube root of the modulus, 2.15 times from 100 MPa to 1 GPa. Measured: 0.933, 0.921, 0.916 and
0.914 l; the excess falls with the size of the triangles over l.

`python -m studies.folding_plate.folding_plate` prints heights beside the elastica's, loads and overlaps and draws
folding_plate.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import root
from torch import Tensor

from torchdismech import ImplicitEuler, Material, Model, RobotBuilder, Trajectory, forces, meshes, rollout
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.view import pictured

LENGTH, WIDTH, THICKNESS = 2.0, 0.0866, 1e-3  # m
FLAT, RADIUS = 0.85, 0.1  # m: length of the part on the floor at the start, radius of the half circle that follows
YOUNGS = [1e8, 2.15e8, 4.64e8, 1e9]  # Pa
DENSITY, GRAVITY = 1200.0, 9.81
RELAXATION_TIME, DAMPING = 5e-3, 15.0  # s, 1/s
STIFFNESS, TOLERANCE = 1000.0, 1e-3  # N/m, m
FRICTION, SLIP_VELOCITY = 0.3, 0.1
NEAR_LOOP = (3.7, 0.0, 4.7)  # about the floor's reaction, the pull and the loop's length


@dataclass(frozen=True)
class Fold:
    """Results of a run.

    Attributes
    ----------
    heights : (B,) of the fold's middle surface above the part that lies on the floor [m].
    loads : (B,) that the floor carries at the end, over the weight.
    speeds : (B,) largest speed of a node at the end [m/s].
    overlaps : (B,) largest overlap of two surfaces in any step [m].
    """

    heights: Tensor
    loads: Tensor
    speeds: Tensor
    overlaps: Tensor


def build(spacing: float) -> Model:
    """Return the strip, bent over itself, with triangles of sides `spacing` [m]."""
    strip = meshes.rectangle(LENGTH, WIDTH, spacing)
    youngs = torch.tensor(YOUNGS, dtype=torch.float64)[:, None]
    material = Material(youngs, DENSITY, poisson=0.0, relaxation_time=RELAXATION_TIME)
    builder = RobotBuilder()
    # mid-edge normals have the bending stiffness of plate theory on every mesh, which the height depends on
    builder.add_shell(
        bent(strip.nodes), strip.triangles, THICKNESS, material, bending="midedge", natural="flat", membrane="springs"
    )
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    builder.add_force(forces.MassDamping(DAMPING))
    friction = FRICTION, SLIP_VELOCITY
    floor = HalfSpace((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    builder.add_contact(Obstacle(floor, Penalty(STIFFNESS, TOLERANCE), Friction(*friction), name="floor"))
    builder.add_contact(SelfContact(Penalty(STIFFNESS, TOLERANCE), Friction(*friction)))
    return builder.finalize()


def bent(nodes: np.ndarray) -> np.ndarray:
    """Return the nodes (N, 3) of a flat strip along x, laid on the floor, round the half circle and back."""
    x, y, _ = nodes.T
    turn = np.clip((x - FLAT) / RADIUS, 0, np.pi)
    back = np.clip(x - FLAT - np.pi * RADIUS, 0, None)
    along = np.minimum(x, FLAT) + RADIUS * np.sin(turn) - back
    return np.stack([along, y, 0.5 * (THICKNESS + TOLERANCE) + RADIUS * (1 - np.cos(turn))], axis=1)


def simulated(spacing: float = 0.025, dt: float = 2.5e-3, duration: float = 1.2) -> tuple[Trajectory, Fold]:
    """Return the run and its results; the strip starts at rest."""
    model = build(spacing)
    steps = round(duration / dt)
    integrator = ImplicitEuler(dt, max_substeps=16)
    trajectory = rollout(model, model.initial_state(), integrator, steps, every=max(1, steps // 100), throw=True)
    return trajectory, measured(model, trajectory)


def measured(model: Model, trajectory: Trajectory) -> Fold:
    """Return the results of a run."""
    contact, heights = trajectory.contact, trajectory.positions[-1, :, :, 2]
    weight = GRAVITY * model.body.node_mass().sum(-1)
    return Fold(
        heights=heights.amax(1) - heights.amin(1),
        loads=contact["force/floor"][-1, :, 2] / weight,
        speeds=trajectory.velocities[-1].norm(dim=-1).amax(1),
        overlaps=contact["penetration"].amax(0),
    )


def lengths() -> np.ndarray:
    """Return the lengths l (B,) that the shapes scale with [m]."""
    return (np.array(YOUNGS) * THICKNESS**2 / (12 * DENSITY * GRAVITY)) ** (1 / 3)


def elastica_height() -> float:
    """Return the height of the folded elastica, in l.

    In units of l and of the weight of a piece of that length: theta'' = (R - s) cos(theta) + H sin(theta) with the
    floor's reaction R where the strip leaves it and the pull H; from theta = theta' = 0 on the floor to theta = pi,
    theta' = 0 on it again (the strip's thickness, a hundredth of l, is left out).
    """

    def shape(unknowns: np.ndarray):
        reaction, pull, loop = unknowns

        def slopes(s: float, u: np.ndarray) -> list[float]:
            theta, bending = u[:2]
            return [bending, (reaction - s) * np.cos(theta) + pull * np.sin(theta), np.cos(theta), np.sin(theta)]

        return solve_ivp(slopes, (0, loop), np.zeros(4), rtol=1e-9, atol=1e-10, dense_output=True)

    def misses(unknowns: np.ndarray) -> np.ndarray:
        return shape(unknowns).y[[0, 1, 3], -1] - [np.pi, 0, 0]

    unknowns = root(misses, NEAR_LOOP).x
    return float(shape(unknowns).sol(np.linspace(0, unknowns[2], 1000))[3].max())


def main() -> None:
    """Print the numbers and draw the stiffest plate."""
    trajectory, fold = simulated()
    theory = elastica_height() * lengths()
    titles = ("E [MPa]", "height [mm]", "elastica [mm]", "load/weight", "overlap [mm]", "contacts")
    print("".join(f"{title:>15}" for title in titles))
    contacts = trajectory.contact["active"][-1]
    for row in zip(YOUNGS, fold.heights, theory, fold.loads, fold.overlaps, contacts, strict=True):
        youngs, height, elastica, load, overlap, count = map(float, row)
        print(
            f"{1e-6 * youngs:15g}{1e3 * height:15.2f}{1e3 * elastica:15.2f}{load:15.4f}{1e3 * overlap:15.4f}{count:15g}"
        )
    pictured(trajectory, Path("folding_plate.png"), robot=len(YOUNGS) - 1, snapshots=4)


if __name__ == "__main__":
    main()
