r"""A cable that a motor holds, then lifts: a pendulum of rigid elements with springs and dampers between them.

A round cable of 1.2 m starts horizontal and at rest. A motor at its base, a spring and a damper in software,

    u = Kp (r - q_a) - Kd q_a',   held over 0.01 s,

holds it at r = 0 and from 2.5 s on lifts it to 45 degrees, from where it sags. The angles of the motor at 2.50 and
5.01 s are those that an independent code found for 3 and 5 segments, the frequencies approach Euler and Bernoulli's.

Sixty-four pendulums in one batch, each with its own stiffness and gain, come to rest under their weight. Their tips sag
as that of a continuous cable on a rotary spring does,

    E I theta'' = rho A g (L - s) cos theta,   E I theta'(0) = Kp (theta(0) - r),   theta'(L) = 0.

`python -m studies.flexible_pendulum.flexible_pendulum` prints both, writes flexible_pendulum.h5 and draws
flexible_pendulum.png. `identification` finds the cable's constants from a noisy swing, `how_fine` asks how many
segments it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.integrate import solve_bvp
from torch import Tensor

from torchdismech import Control, Trajectory, rollout
from torchdismech.rigid import ChainState, Radau, RigidChain, natural_frequencies
from torchdismech.view import pictured

LENGTH, DIAMETER, DENSITY = 1.2, 6e-3, 2710.0  # m, m, kg/m^3
YOUNGS, VISCOSITY = 7e10 / 3, 1e9  # Pa, Pa s
GRAVITY, BASE = 9.81, (0.0, 0.0, 0.5)  # m/s^2, m
GAIN, DAMPING = 2.5, 0.05  # of the motor, N m/rad and N m s/rad
GOAL, CHANGE = math.pi / 4, 2.5  # rad, from this time [s] on
STEP, STEPS = 0.01, 501  # s
SEGMENTS = (3, 5, 10, 20)
# angles of the motor at 2.50 and 5.01 s [rad] of an independent code
PUBLISHED = {3: (-0.258197, 0.693349), 5: (-0.261103, 0.672308)}
REST = 8.0  # s, after which pendulums are at rest with a motor that damps more:
HOLDING = 0.2  # N m s/rad; above 0.3, held over 0.01 s, the motor would shake the softest cables
STIFFNESSES = YOUNGS * np.geomspace(0.5, 4, 8)  # Pa
GAINS = np.geomspace(1.5, 12, 8)  # N m/rad

Motor = Callable[[ChainState, Control, RigidChain], Control]


def cable(segments: int, youngs: float | Tensor = YOUNGS, viscosity: float | Tensor = VISCOSITY) -> RigidChain:
    """Return the cable as a chain; stiffness and viscosity may be given per robot (B, 1)."""
    return RigidChain.cylinder(
        segments, LENGTH, DIAMETER, DENSITY, youngs, viscosity, base=BASE, gravity=(0.0, 0.0, -GRAVITY)
    )


def motor(gain: float | Tensor = GAIN, damping: float = DAMPING, goal: float = GOAL) -> Motor:
    """Return the controller that turns the active joint to `goal` from 2.5 s on, and to 0 before; gain () or (B,)."""

    def drive(state: ChainState, control: Control, model: RigidChain) -> Control:
        wanted = torch.where(state.time < CHANGE - 0.5 * STEP, 0.0, goal)
        return model.drive(gain * (wanted - state.q[:, 0]) - damping * state.velocity[:, 0])

    return drive


def swing(chain: RigidChain, steps: int = STEPS, parts: int = 2, progress: bool = False, **of_motor) -> Trajectory:
    """Return the motion of pendulums that start horizontal and at rest; each step is integrated in so many parts."""
    integrator = Radau(STEP, h=STEP / parts)
    controller = motor(**of_motor)
    start = chain.initial_state()
    return rollout(chain, start, integrator, steps, controller=controller, progress=progress, throw=True)


def tip_rms(trajectory: Trajectory, finer: Trajectory) -> float:
    """Return the root mean square over the frames of the distance between the tips of two runs [m]."""
    apart = (trajectory.positions - finer.positions[:, :, [-1]])[:, 0, -1]
    return float(apart.square().sum(-1).mean().sqrt())


def beam_frequencies(count: int) -> np.ndarray:
    """Return the lowest frequencies of Euler and Bernoulli's beam, clamped at one end [Hz]."""
    roots = np.array([1.8751040687, 4.6940911330, 7.8547574382])[:count]
    area, second = math.pi * DIAMETER**2 / 4, math.pi * DIAMETER**4 / 64
    return roots**2 / (2 * math.pi * LENGTH**2) * math.sqrt(YOUNGS * second / (DENSITY * area))


def sagging(segments: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the height over the base [m] at which tips rest, and the same of a continuous cable, each (8, 8).

    Rows are stiffnesses, columns gains; all sixty-four are one batch.
    """
    youngs, gains = (x.ravel() for x in np.meshgrid(STIFFNESSES, GAINS, indexing="ij"))
    chain = cable(segments, torch.from_numpy(youngs)[:, None])
    run = swing(chain, round(REST / STEP), parts=1, gain=torch.from_numpy(gains), damping=HOLDING, goal=0.0)
    tips = run.positions[-1, :, -1, 2].numpy() - BASE[2]
    expected = np.array([cable_at_rest(*pair) for pair in zip(youngs, gains, strict=True)])
    return tips.reshape(8, 8), expected.reshape(8, 8)


def cable_at_rest(youngs: float, gain: float) -> float:
    """Return the height of the tip of a continuous cable on a rotary spring over its base [m]."""
    bending = youngs * math.pi * DIAMETER**4 / 64
    weight = DENSITY * math.pi * DIAMETER**2 / 4 * GRAVITY  # N/m

    def rates(s: np.ndarray, y: np.ndarray) -> np.ndarray:
        angle, slope, _ = y
        return np.stack([slope, weight * (LENGTH - s) * np.cos(angle) / bending, np.sin(angle)])

    def ends(at_base: np.ndarray, at_tip: np.ndarray) -> np.ndarray:
        return np.array([bending * at_base[1] - gain * at_base[0], at_tip[1], at_base[2]])

    s = np.linspace(0, LENGTH, 41)
    guess = np.stack([np.full_like(s, -0.5), np.zeros_like(s), -0.5 * s])
    found = solve_bvp(rates, ends, s, guess, tol=1e-8)
    if not found.success:
        raise RuntimeError(f"no cable at rest with E = {youngs:g} Pa, Kp = {gain:g} N m/rad: {found.message}")
    return float(found.y[2, -1])


def main() -> None:
    """Print the numbers, write the trajectory and draw it."""
    runs = {n: swing(cable(n), progress=True) for n in SEGMENTS}
    print("segments, angle of the motor at 2.50 and 5.01 s [rad], tip's distance from 10 segments [m], frequency [Hz]")
    for n, run in runs.items():
        angles = [float(run.twist[k, 0, 0]) for k in (250, 501)]
        print(f"{n:4d}{angles[0]:12.6f}{angles[1]:11.6f}", end="")
        print(f"{tip_rms(run, runs[10]):10.4f}{float(natural_frequencies(cable(n), 1)):10.5f}")
        if n in PUBLISHED:
            print(f"    {PUBLISHED[n][0]:12.6f}{PUBLISHED[n][1]:11.6f} by an independent code")
    print(f"    frequency of Euler and Bernoulli's beam: {beam_frequencies(1)[0]:.5f} Hz")
    tips, expected = sagging(10)
    print("height of tips at rest [m], E from 12 to 93 GPa downwards, Kp from 1.5 to 12 N m/rad to the right")
    for row in tips:
        print("".join(f"{height:8.3f}" for height in row))
    print(f"farthest from a continuous cable: {1e3 * np.abs(tips - expected).max():.2f} mm of {LENGTH} m")
    runs[10].save("flexible_pendulum.h5")
    print("wrote flexible_pendulum.h5")
    pictured(runs[10], Path("flexible_pendulum.png"), snapshots=8)


if __name__ == "__main__":
    main()
