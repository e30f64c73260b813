r"""A crawler with fifteen magnetised legs walks on a floor in a field that turns: robot 3 of DDG's page on soft robots.

The trunk is fifty times as stiff as the legs and not magnetised; the magnetisation of the legs turns from leg to leg,
twice along the trunk, as M = 1000 (cos, sin)(4 pi (x - 0.005) / 0.07) A/m. The field B = (cos 10 pi t, sin 10 pi t) T
turns once in 0.2 s, so that each leg is bent to and fro, one after the other: a wave of feet. The legs end on a floor
with a barrier of 1 mm and friction.

Why it walks, and which way: a leg whose magnetisation has the angle beta feels the couple A M B sin(omega t - beta) a
length. beta = kappa x grows along the trunk, so the feet swing as a sin(omega t - kappa x), and each leg turns the
trunk where it is joined by A M B L sin(omega t - kappa x). Couples q that vary along a beam bend it up and down:
EI d4w/dx4 = - dq/dx gives w ~ cos(omega t - kappa x). So the trunk is lowest where feet swing backward, these feet bear
the weight, and friction on them pushes the robot forward, along the wave. Reversing the wave of the legs reverses the
motion.

How far: if each foot bears load for the half of the period in which it swings backward, and slips as much forward as
backward meanwhile, the robot moves at the mean speed of these swings, by 4 a a period. a is the deflection of a leg
that is clamped at the trunk, in a field across, by the elastica with a distributed couple (`swing`). Feet that leave
the floor for a while, or slip, spoil the figure: it only gives the order of magnitude.

Two facts hold in any case: without friction nothing pushes along the floor (a uniform field has no net force), so the
centre of mass keeps its x; and with the wave reversed the robot goes the other way.

Friction with a slip velocity of 1e-6 m/s chatters: feet stick and slip at the scale of the step, so distances depend on
the step and do not converge as it gets smaller. With a friction of 0.3 the robot goes -2.21, 6.53, 9.61, 10.34 mm in
its first four periods in steps of 1 ms, -0.21, 4.89, 6.31, 8.30 mm in half of these, 1.66, 9.77, 7.08, 1.94 mm in a
quarter.

`python -m studies.magnetic_crawler.magnetic_crawler` prints the distances a period, of 8 friction coefficients in one
batch and of smaller steps, and draws magnetic_crawler.png. It takes some minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    Trajectory,
    forces,
    magnetics,
    rollout,
)
from torchdismech.contact import Barrier, Friction, HalfSpace, Obstacle
from torchdismech.view import pictured

RADIUS, YOUNGS, DENSITY, DAMPING = 1e-3, 1e6, 1e3, 0.1  # m, Pa, kg/m^3, 1/s
TRUNK_NODES, TRUNK_LENGTH, TRUNK_HEIGHT, STIFFENED = 49, 0.08, 0.0144, 50.0
LEGS, LEG_NODES = 15, 8
LEG_HEIGHTS = [0.0127, 0.011, 0.0093, 0.0077, 0.006, 0.0043, 0.0027, 0.001]  # m
MAGNETISATION, FIELD, FREQUENCY = 1000.0, 1.0, 5.0  # A/m, T, 1/s
GRAVITY, GAP, STIFFNESS, SLIP_VELOCITY = 10.0, 1e-3, 1e3, 1e-6  # m/s^2, m, N/m, m/s
FRICTION = 0.3
FRICTIONS = [0.0, 0.05, 0.1, 0.2, FRICTION, 0.5, 0.7, 1.0]
FRAME = 1e-2  # s
FEET = [TRUNK_NODES + LEG_NODES * (leg + 1) - 1 for leg in range(LEGS)]


def geometry() -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (169, 3) and edges (168, 2); the trunk's come first, coordinates are rounded to 0.1 mm."""
    trunk = [(round(i * TRUNK_LENGTH / (TRUNK_NODES - 1), 4), 0.0, TRUNK_HEIGHT) for i in range(TRUNK_NODES)]
    edges = [(i, i + 1) for i in range(TRUNK_NODES - 1)]
    nodes = list(trunk)
    for leg in range(LEGS):
        first = TRUNK_NODES + LEG_NODES * leg
        nodes += [(round(0.005 + 0.005 * leg, 4), 0.0, height) for height in LEG_HEIGHTS]
        chain = [3 + 3 * leg, *range(first, first + LEG_NODES)]
        edges += zip(chain[:-1], chain[1:], strict=True)
    return np.array(nodes), np.array(edges)


def magnetisation(wave: float = 1.0) -> np.ndarray:
    """Return the magnetisation (168, 3) of the edges; `wave` = -1 reverses the wave of the legs."""
    given = np.zeros((TRUNK_NODES - 1 + LEGS * LEG_NODES, 3))
    for leg in range(LEGS):
        angle = wave * 4 * math.pi * leg * 0.005 / 0.07
        own = slice(TRUNK_NODES - 1 + LEG_NODES * leg, TRUNK_NODES - 1 + LEG_NODES * (leg + 1))
        given[own] = MAGNETISATION * np.array([math.cos(angle), 0.0, math.sin(angle)])
    return given


def build(friction: Sequence[float], waves: Sequence[float], **options) -> Model:
    """Return crawlers, one for each friction coefficient with its wave (1 or -1)."""
    nodes, edges = geometry()
    trunk, legs = edges[: TRUNK_NODES - 1], edges[TRUNK_NODES - 1 :]
    stiff = {"EI1": STIFFENED * YOUNGS * math.pi * RADIUS**4 / 4}
    rod = (Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder = RobotBuilder(planar=True)
    builder.add_nodes(nodes)
    builder.add_rods(nodes[:TRUNK_NODES], trunk, *rod, stiffness=stiff)
    for leg in np.split(np.array(legs), LEGS):
        builder.add_rod(nodes[[leg[0, 0], *leg[:, 1]]], *rod)
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    builder.add_force(forces.MassDamping(DAMPING))
    each = torch.tensor(np.array([magnetisation(wave) for wave in waves]))
    builder.add_force(magnetics.Magnetic(each, magnetics.Rotating(FIELD, FREQUENCY)))
    # contact counts from a rod's surface: with the floor a radius deeper, a node touches at z = 0
    floor = HalfSpace((0.0, 0.0, -RADIUS), (0.0, 0.0, 1.0))
    mu = torch.tensor(friction, dtype=torch.float64)[:, None]
    law = (Barrier(STIFFNESS, GAP), Friction(mu, SLIP_VELOCITY))
    builder.add_contact(Obstacle(floor, *law, name="floor", nodes=FEET))
    return builder.finalize(**options)


def simulated(
    friction: Sequence[float], waves: Sequence[float], periods: float = 10, dt: float = 1e-3, progress: bool = False
) -> tuple[Model, Trajectory]:
    """Return the model and the run, a frame each 10 ms."""
    model = build(friction, waves)
    # few iterations: where feet stick, a step is solved by easing in friction, in attempts that take few
    integrator = ImplicitEuler(dt, force_tolerance=1e-10, max_iterations=12, max_substeps=16)
    steps, every = round(periods / FREQUENCY / dt), round(FRAME / dt)
    start = model.initial_state(len(friction))
    return model, rollout(model, start, integrator, steps, every=every, throw=True, progress=progress)


def middle(model: Model, trajectory: Trajectory) -> Tensor:
    """Return the centre of mass in x, (frames, B) [m]."""
    mass = model.body.node_mass()
    return (trajectory.positions[..., 0] * mass).sum(-1) / mass.sum()


def ways(model: Model, trajectory: Trajectory) -> Tensor:
    """Return the displacement of the centre of mass in x in each period, (periods, B) [m]."""
    return middle(model, trajectory)[:: round(1 / FREQUENCY / FRAME)].diff(dim=0)


def swing(samples: int = 401) -> float:
    """Return the deflection of a leg's foot in a field across, by the elastica with a distributed couple [m]."""
    length = TRUNK_HEIGHT - LEG_HEIGHTS[-1]
    couple = math.pi * RADIUS**2 * MAGNETISATION * FIELD
    ratio = couple / (YOUNGS * math.pi * RADIUS**4 / 4)
    s = np.linspace(0, length, samples)

    def rates(s: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.stack([y[1], -ratio * np.sin(math.pi / 2 - y[0])])

    found = solve_bvp(rates, lambda a, b: np.array([a[0], b[1]]), s, np.zeros((2, samples)), tol=1e-8)
    if not found.success:
        raise RuntimeError(f"no elastica: {found.message}")
    return float(np.trapezoid(np.sin(found.sol(s)[0]), s))


def main() -> None:
    """Print the distances and draw the crawler."""
    print(f"four times the swing of a foot: {4e3 * swing():.1f} mm")
    frictions, waves = [*FRICTIONS, FRICTION], [1.0] * len(FRICTIONS) + [-1.0]
    model, trajectory = simulated(frictions, waves, periods=4, progress=True)
    print("way in each period [mm]; friction, wave")
    for mu, wave, way in zip(frictions, waves, ways(model, trajectory).T, strict=True):
        print(f"{mu:6g}{wave:4g}   " + "".join(f"{1e3 * float(w):12.5f}" for w in way))
    pictured(trajectory, Path("magnetic_crawler.png"), FRICTIONS.index(FRICTION), snapshots=4)
    print(f"way in each period, friction {FRICTION:g}, step [ms]")
    for dt in (1e-3, 5e-4, 2.5e-4):
        way = ways(*simulated([FRICTION], [1.0], periods=4, dt=dt, progress=True))[:, 0]
        print(f"{1e3 * dt:6g}       " + "".join(f"{1e3 * float(w):12.5f}" for w in way))


if __name__ == "__main__":
    main()
