r"""A magnetised rod swims in a field that turns: robot 2 of DDG's page on soft robots.

The magnetisation of a rod of 10 cm turns once along it, M = 100 (cos, sin)(2 pi n s) A/m with n = 1. In the field
B = (sin omega t, cos omega t) T the couple per length is A M B cos(2 pi n s + omega t): a wave that runs backwards,
along -x, and bends the rod. The fluid resists motion across the rod a hundred times as much as along it, by the square
of the velocity, so the wave pushes the rod forward. A wave of n = -1 runs forward and pushes it backward. In the field
(cos, sin) the couple is cos(omega t - 2 pi n s) with the opposite sense of the wave for each n.

The speed follows roughly from linear beam theory and a balance of thrust and drag (`expected_speed`), as Gray and
Hancock do for viscous fluids. The complex amplitude Y(x) of small motions at the speed U obeys

    (EI d4/dx4 - rho A omega^2) Y + c V = - d/dx (A M B exp(2 pi i n s)),   V = i omega Y - U dY/dx,

V the amplitude of the velocity v across the rod and c = 8 / (3 pi) x 1/2 rho_0 C_n 2 r |V| the linear drag that takes
as much power as the quadratic one; and U is the speed at which thrust and drag balance,

    C_n mean(|v| v y_x) = C_t mean(|u| u),   u = U + y_t y_x along the rod, to the same order.

The theory is for small deflections, but it gives slopes of 0.8 to 2.3 with one wave: there simulated swimmers reach 0.6
to 0.8 of its speed. It has the trends: the speed grows with the frequency, more and more slowly, and half a wave hardly
moves at high frequencies.

A wave of n = -1 swims backward. Then the end that keeps its height has to be the other one: a swimmer that is guided at
its tail turns round, as a cart that is pushed does.

The figures of the page are not those of a fine solution: at its step of 10 ms the centre of mass is at 0.799 m after
5 s, at 5 ms at 0.852 m, at 2.5 ms at 0.876 m.

`python -m studies.magnetic_swimmer.magnetic_swimmer` prints the distance over time, the speeds of 16 robots over
frequency and wave number, and draws magnetic_swimmer.png.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, Trajectory, forces, magnetics, rollout
from torchdismech.view import pictured

NODES, LENGTH, RADIUS, YOUNGS, DENSITY = 40, 0.1, 1e-3, 1e5, 1e3  # m, Pa, kg/m^3
MAGNETISATION, FIELD, OMEGA = 100.0, 1.0, 20.0  # A/m, T, 1/s
FLUID, TANGENTIAL, NORMAL = 1e3, 0.01, 1.0  # kg/m^3, drag coefficients
STEP = 1e-2  # s
PUBLISHED = {0.5: 0.029057, 1: 0.101885, 2: 0.276483, 3: 0.451310, 4: 0.624410, 5: 0.798926}  # way in time [s: m]
FREQUENCIES = [10.0, 20.0, 30.0, 40.0]  # 1/s
WAVES = [0.5, 1.0, 1.5, 2.0]  # along the rod


def nodes() -> np.ndarray:
    """Return the nodes (40, 3), rounded to 0.1 mm as in the page's files."""
    x = np.round(np.linspace(0.0, LENGTH, NODES), 4)
    return np.stack([x, np.zeros(NODES), np.zeros(NODES)], axis=1)


def magnetisation(wave: float) -> np.ndarray:
    """Return the magnetisation (39, 3) of the edges [A/m]."""
    angle = 2 * math.pi * wave * np.arange(NODES - 1) / (NODES - 2)
    return MAGNETISATION * np.stack([np.cos(angle), 0 * angle, np.sin(angle)], axis=1)


def build(omegas: Sequence[float], waves: Sequence[float], late: float = 0.0, held: int = NODES - 1) -> Model:
    """Return swimmers, one for each angular frequency [1/s] and wave number.

    Parameters
    ----------
    late : time by which the field is late [s].
    held : the node that keeps its height.
    """
    omega = torch.tensor(omegas, dtype=torch.float64)[:, None]
    # (sin, cos) turns from z to x
    field = magnetics.Rotating(FIELD, omega / (2 * math.pi), (0, 0, 1), (1, 0, 0), phase=-late * omega)
    builder = RobotBuilder(planar=True)
    builder.add_rod(nodes(), Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder.clamp(nodes=[held], axes="z")
    builder.add_force(forces.QuadraticResistive(TANGENTIAL, NORMAL, FLUID, length="current"))
    builder.add_force(magnetics.Magnetic(torch.tensor(np.array([magnetisation(w) for w in waves])), field))
    return builder.finalize()


def swum(
    omegas: Sequence[float] = (OMEGA,),
    waves: Sequence[float] = (1.0,),
    duration: float = 5.0,
    dt: float = STEP,
    **options: Any,
) -> tuple[Model, Trajectory]:
    """Return the model and the run, a frame each 10 ms; options are those of `build`."""
    model = build(omegas, waves, **options)
    integrator = ImplicitEuler(dt, force_tolerance=1e-11, relative_tolerance=0)
    steps, every = round(duration / dt), round(1e-2 / dt)
    return model, rollout(model, model.initial_state(len(omegas)), integrator, steps, every=every, throw=True)


def ways(model: Model, trajectory: Trajectory) -> Tensor:
    """Return the displacement of the centre of mass in x from the start, (frames, B) [m]."""
    mass = model.body.node_mass()
    x = (trajectory.positions[..., 0] * mass).sum(-1) / mass.sum()
    return x - x[0]


def speeds(model: Model, trajectory: Trajectory, omegas: Sequence[float]) -> list[float]:
    """Return the mean speed of each robot over whole periods in the second half of a run [m/s]."""
    way, time = ways(model, trajectory), trajectory.time.reshape(len(trajectory.time), -1)[:, 0]
    found = []
    for k, omega in enumerate(omegas):
        period = 2 * math.pi / omega
        count = math.floor(0.5 * float(time[-1]) / period)
        begin = float(time[-1]) - count * period
        x = np.interp([begin, float(time[-1])], time.numpy(), way[:, k].numpy())
        found.append(float(x[1] - x[0]) / (count * period))
    return found


def pairs() -> tuple[list[float], list[float]]:
    """Return the angular frequencies and the wave numbers of the 16 robots."""
    return [f for f in FREQUENCIES for _ in WAVES], [w for _ in FREQUENCIES for w in WAVES]


# ---- beside the simulation -----------------------------------------------------------------------------------------


def small_motion(omega: float, wave: float, speed: float, count: int = 161) -> tuple[np.ndarray, np.ndarray]:
    """Return the complex amplitudes (count,) of small motions at a speed [m], and their slopes between nodes."""
    dx = LENGTH / (count - 1)
    s = (np.arange(count - 1) + 0.5) / (count - 1)
    area, inertia = math.pi * RADIUS**2, math.pi * RADIUS**4 / 4
    slope = np.diff(np.eye(count), axis=0) / dx
    bend = np.diff(np.eye(count), 2, axis=0) / dx**2
    couple = area * MAGNETISATION * FIELD * np.exp(2j * math.pi * wave * s)
    weights = np.full(count, dx)
    weights[[0, -1]] *= 0.5
    stiff = YOUNGS * inertia * dx * bend.T @ bend - np.diag(DENSITY * area * omega**2 * weights)
    across = 1j * omega * np.eye(count) - speed * np.gradient(np.eye(count), dx, axis=0)
    load, free = (dx * slope.T @ couple)[:-1], slice(0, count - 1)  # the last node keeps its height
    y = np.zeros(count, dtype=complex)
    y[free] = 0.1 * RADIUS
    for _ in range(100):  # iterated, as the equivalent drag depends on the motion
        drag = 8 / (3 * math.pi) * FLUID * NORMAL * RADIUS * np.abs(across @ y) * weights
        new = np.linalg.solve((stiff + drag[:, None] * across)[free, free], load)
        y[free] = 0.5 * (y[free] + new)
    return y, slope @ y


def expected_speed(omega: float, wave: float) -> float:
    """Return the speed at which thrust and drag of small motions balance [m/s]."""
    phase = np.exp(1j * np.linspace(0, 2 * math.pi, 64, endpoint=False))[:, None]
    fastest, speed = 2 * omega * LENGTH, 0.0
    for _ in range(200):  # iterated, as the motion depends on the speed
        y, slope = small_motion(omega, wave, speed)
        rate = np.real(1j * omega * 0.5 * (y[1:] + y[:-1]) * phase)
        tilt = np.real(slope * phase)

        def excess(speed: float, rate: np.ndarray = rate, tilt: np.ndarray = tilt) -> float:
            across, along = rate - speed * tilt, speed + rate * tilt
            return float(np.mean(NORMAL * np.abs(across) * across * tilt - TANGENTIAL * np.abs(along) * along))

        new = brentq(excess, -fastest, fastest)
        if abs(new - speed) < 1e-4:
            return new
        speed = 0.5 * (speed + new)
    raise RuntimeError(f"no speed at which thrust and drag balance at {omega} 1/s and {wave} waves")


def main() -> None:
    """Print the numbers and draw the swimmer."""
    model, trajectory = swum(late=STEP)
    way = ways(model, trajectory)[:, 0]
    print("way of the middle of mass [m]: time [s], here, published")
    for time, published in PUBLISHED.items():
        print(f"{time:6g}{way[round(time / 1e-2)]:11.6f}{published:11.6f}")
    print(
        "after 5 s with steps of 5 and 2.5 ms:", *(f"{ways(*swum(dt=dt, late=dt))[-1, 0]:.3f}" for dt in (5e-3, 2.5e-3))
    )
    omegas, waves = pairs()
    found = speeds(*swum(omegas, waves, duration=4.0), omegas)
    print("speed [m/s] over wave number along the rod, and by small motions; angular frequency [1/s]")
    print(" " * 8 + "".join(f"{w:9g}{'':9}" for w in WAVES))
    for k, omega in enumerate(FREQUENCIES):
        row = zip(WAVES, found[k * len(WAVES) :], strict=False)
        print(f"{omega:8g}" + "".join(f"{speed:9.4f}{expected_speed(omega, wave):9.4f}" for wave, speed in row))
    backward = speeds(*swum(FREQUENCIES, [-1.0] * len(FREQUENCIES), 4.0, held=0), FREQUENCIES)
    print("with the wave reversed:", *(f"{speed:.4f}" for speed in backward))
    pictured(trajectory, Path("magnetic_swimmer.png"), snapshots=5)


if __name__ == "__main__":
    main()
