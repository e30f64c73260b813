r"""A magnetised beam in a field that turns, and in fields that stand still: robot 1 of DDG's page on soft robots.

A beam of 1 m, clamped on the left and magnetised along its axis, follows a field of 3 T that turns once in 6.28 s. Its
tip at 1, 2, 5, 10 and 20 s agrees with the page's public numbers. The page takes the field at the start of each step,
and this library at its end, so a field that is late by a step gives the same numbers, to rounding.

In a constant field across, the equilibrium follows from the elastica with a distributed couple,

    EI theta'' = - A M B sin(theta_B - theta),   theta = 0 at the clamp, theta' = 0 at the tip,

by shooting. Eight beams in one batch bend from 6 degrees in 0.5 T to 81 degrees in 20 T; their tips are within 1 mm of
it, 0.1 % of the length. (Two clamped nodes hold the direction of the first edge, thus of its middle: the free length is
half an edge shorter.)

`python -m studies.magnetic_beam.magnetic_beam` prints both and draws magnetic_beam.png.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from scipy.integrate import solve_bvp
from torch import Tensor

from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    Model,
    RobotBuilder,
    Static,
    Trajectory,
    forces,
    magnetics,
    rollout,
)
from torchdismech.view import pictured

NODES, RADIUS, YOUNGS, DENSITY, DAMPING = 40, 1e-2, 1e8, 10.0, 0.1  # m, Pa, kg/m^3, 1/s
MAGNETISATION = 1000.0  # A/m, along the beam
STRENGTHS = [0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0]  # T
STEP = 1e-2  # s
# the page's tip: time [s], x and z [m]
PUBLISHED = {1: (0.464067, 0.241309), 2: (0.413364, 0.367007), 5: (0.444392, -0.298016)}
PUBLISHED |= {10: (0.441937, -0.302187), 20: (0.454370, 0.270966)}


def nodes() -> np.ndarray:
    """Return the nodes (40, 3), rounded to 0.1 mm as in the page's files."""
    x = np.round(np.linspace(-0.5, 0.5, NODES), 4)
    return np.stack([x, np.zeros(NODES), np.zeros(NODES)], axis=1)


def build(field) -> Model:
    """Return the beam in a field."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(nodes(), Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.MassDamping(DAMPING))
    builder.add_force(magnetics.Magnetic((MAGNETISATION, 0.0, 0.0), field))
    return builder.finalize()


def late_field(time: Tensor) -> Tensor:
    """Return the turning field of the start of the step that ends at a time (B,)."""
    begun = time - STEP
    return 3 * torch.stack([torch.cos(begun), 0 * begun, torch.sin(begun)], dim=-1)


def turned(duration: float) -> Trajectory:
    """Return the beam's motion in the field that turns."""
    model = build(late_field)
    integrator = ImplicitEuler(STEP, force_tolerance=1e-10, relative_tolerance=0)
    return rollout(model, model.initial_state(), integrator, round(duration / STEP), every=10, throw=True)


def tip_at(trajectory: Trajectory, time: float) -> np.ndarray:
    """Return the tip's x and z at a time [m]."""
    frame = int((trajectory.time.flatten() - time).abs().argmin())
    return trajectory.positions[frame, 0, -1, [0, 2]].numpy()


def bent() -> np.ndarray:
    """Return the tips (8, 2), x and z, of beams at rest in constant fields across [m]."""
    strengths = torch.tensor(STRENGTHS, dtype=torch.float64)
    across = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    model = build(strengths[:, None] * across)
    state, _ = Static(force_tolerance=1e-10).step(model, model.initial_state(len(STRENGTHS)), throw=True)
    return state.positions[:, -1, [0, 2]].numpy()


def shot(strength: float) -> np.ndarray:
    """Return the tip by the elastica with a distributed couple [m]."""
    x = nodes()[:, 0]
    clamp = 0.5 * (x[0] + x[1])
    stiffness, couple = YOUNGS * math.pi * RADIUS**4 / 4, math.pi * RADIUS**2 * MAGNETISATION * strength
    s = np.linspace(0, x[-1] - clamp, 401)

    def rates(s: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.stack([y[1], -couple / stiffness * np.sin(math.pi / 2 - y[0])])

    guess = np.stack([np.pi / 2 * (1 - np.exp(-math.sqrt(couple / stiffness) * s)), np.zeros_like(s)])
    found = solve_bvp(rates, lambda a, b: np.array([a[0], b[1]]), s, guess, tol=1e-8, max_nodes=100_000)
    if not found.success:
        raise RuntimeError(f"no elastica at {strength} T: {found.message}")
    theta = found.sol(s)[0]
    return np.array([clamp + np.trapezoid(np.cos(theta), s), np.trapezoid(np.sin(theta), s)])


def main() -> None:
    """Print the numbers and draw the beam that follows the field."""
    print("tip at rest in a constant field across [m]: field [T], x, z; by shooting")
    for strength, tip in zip(STRENGTHS, bent(), strict=True):
        expected = shot(strength)
        print(f"{strength:6g}{tip[0]:11.6f}{tip[1]:11.6f}{expected[0]:14.6f}{expected[1]:11.6f}")
    trajectory = turned(20.0)
    print("tip in a field that turns [m]: time [s], x, z; published")
    for time, published in PUBLISHED.items():
        tip = tip_at(trajectory, time)
        print(f"{time:6g}{tip[0]:11.6f}{tip[1]:11.6f}{published[0]:14.6f}{published[1]:11.6f}")
    pictured(trajectory, Path("magnetic_beam.png"), snapshots=6)


if __name__ == "__main__":
    main()
