"""How fine must it be? The flexible pendulum's cable as a chain and as a discrete elastic rod, from coarse to fine.

    python -m studies.flexible_pendulum.how_fine --out docs/rigid_elements.png

For chains of n segments and rods of n edges: the errors of the first three frequencies, against Euler and Bernoulli's
beam, and of the tip over 5 s, against a chain of 80 segments. Chains are held by their motor. The end of a
rod is turned as the motor of the fine chain turned: its first two nodes are held, half an edge before and behind the
joint, so that the middle of the first edge, where a rod is clamped in effect, is in the joint. The cost is CPU time of
one core for a simulated second of a robot, in a batch of 64 that is not compiled. Chains take parts of 5 ms by Radau's
method (their tips are right to 0.02 mm over 5 s), rods steps of 2.5 ms by the midpoint rule (0.1 mm or so).
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.interpolate import CubicHermiteSpline
from torch import Tensor

from studies.flexible_pendulum import flexible_pendulum as pendulum
from torchdismech import Circle, Control, ImplicitMidpoint, Material, Model, RobotBuilder, forces, straight, unroll
from torchdismech.rigid import Radau, natural_frequencies

CHAINS, RODS, FINE = (2, 3, 5, 10, 20, 40), (4, 5, 10, 20, 40), 80
FREQUENCIES = 3
ROD_STEP = 2.5e-3  # s
STEPS = 500  # of the motor
BATCH, TIMED = 64, 10  # robots, and steps of the motor, over which the cost is measured
BAR = 1e-3  # m: the tip's error that is fine enough


@dataclass(frozen=True)
class Swing:
    """A pendulum's motion: angles and rates of the motor, and the tip, after each of its steps.

    Attributes
    ----------
    angle, rate : (T,) [rad, rad/s].
    tip : (T, 3) [m].
    """

    angle: np.ndarray
    rate: np.ndarray
    tip: np.ndarray


@dataclass(frozen=True)
class Point:
    """Accuracy and cost of a model of some fineness.

    Attributes
    ----------
    parts : number of segments or edges.
    frequencies : (3,) relative errors; NaN for frequencies that the model does not have.
    tip : root mean square of the tip's distance from the fine chain's [m].
    cost : CPU time for a simulated second of a robot [s].
    """

    parts: int
    frequencies: np.ndarray
    tip: float
    cost: float


# ---- chains ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def chain_swing(segments: int) -> Swing:
    """Return the motion of a chain that its motor holds."""
    chain = pendulum.cable(segments)
    integrator = Radau(pendulum.STEP, h=pendulum.STEP / 2)
    run = unroll(chain, chain.initial_state(), integrator, STEPS, controller=pendulum.motor(), throw=True)
    tip = chain.points(run.q[:, 0])[:, -1]
    return Swing(run.q[:, 0, 0].numpy(), run.velocity[:, 0, 0].numpy(), tip.numpy())


def chain_point(segments: int, fine: Swing) -> Point:
    """Return accuracy and cost of a chain."""
    count = min(segments, FREQUENCIES)
    found = natural_frequencies(pendulum.cable(segments), count)[0].numpy()
    tip = distance(chain_swing(segments).tip, fine.tip)
    chain = pendulum.cable(segments, torch.full((BATCH, 1), pendulum.YOUNGS, dtype=torch.float64))
    integrator, controller = Radau(pendulum.STEP, h=pendulum.STEP / 2), pendulum.motor()
    start = chain.initial_state()
    seconds = timed(lambda: unroll(chain, start, integrator, TIMED, controller=controller, throw=True))
    return Point(segments, errors(found), tip, seconds / (TIMED * pendulum.STEP * BATCH))


# ---- rods --------------------------------------------------------------------------------------------------------


def edge_length(edges: int) -> float:
    """Return the length of a rod's edges, half of the first of which is before the joint [m]."""
    return pendulum.LENGTH / (edges - 0.5)


def rod(edges: int) -> Model:
    """Return the cable as a discrete elastic rod in the plane."""
    step = edge_length(edges)
    x, _, z = pendulum.BASE
    line = straight((x - step / 2, 0, z), (x + pendulum.LENGTH, 0, z), edges + 1)
    relaxation = pendulum.VISCOSITY / pendulum.YOUNGS
    builder = RobotBuilder(planar=True)
    builder.add_rod(
        line,
        Circle(pendulum.DIAMETER / 2),
        Material(pendulum.YOUNGS, pendulum.DENSITY, relaxation_time=relaxation),
    )
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0.0, 0.0, -pendulum.GRAVITY)))
    return builder.finalize(compile=False)


def turned(edges: int, motion: Swing):
    """Return the schedule that turns the first edge about its middle as the motor turned in a motion."""
    times = pendulum.STEP * np.arange(len(motion.angle))
    angle_at = CubicHermiteSpline(times, motion.angle, motion.rate)
    half = edge_length(edges) / 2
    base = torch.tensor(pendulum.BASE, dtype=torch.float64)

    def schedule(time: Tensor, model: Model) -> Control:
        angle = torch.from_numpy(angle_at(time.clamp(max=times[-1]).numpy()))
        along = half * torch.stack([angle.cos(), torch.zeros_like(angle), angle.sin()], dim=1)
        target = torch.zeros(len(time), model.n_dofs, dtype=torch.float64)
        target[:, :3], target[:, 3:6] = base - along, base + along
        return Control(clamped_q=target)

    return schedule


@torch.no_grad()
def rod_tip(edges: int, motion: Swing, step: float = ROD_STEP) -> np.ndarray:
    """Return the tip of a rod (T, 3) whose end is turned, at the times of the motion [m]."""
    model, every = rod(edges), round(pendulum.STEP / step)
    steps = every * (len(motion.angle) - 1)
    run = unroll(model, model.initial_state(), ImplicitMidpoint(step), steps, turned(edges, motion), throw=True)
    return run.positions[::every, 0, -1].numpy()


def rod_frequencies(edges: int) -> np.ndarray:
    """Return the lowest frequencies of a rod that is held at its first two nodes [Hz]."""
    model = rod(edges)
    state = model.initial_state()

    def elastic(height: Tensor) -> Tensor:
        energies = model.energies(state.replace(q=state.q.index_copy(1, heights, height[None])))
        return (energies["stretch"] + energies["bend"]).sum()

    heights = 3 * torch.arange(2, edges + 1) + 2
    stiffness = torch.autograd.functional.hessian(elastic, state.q[0, heights])
    mass = torch.full((edges - 1,), pendulum.DENSITY * math.pi / 4 * pendulum.DIAMETER**2 * edge_length(edges))
    mass[-1] /= 2
    scale = mass.double().rsqrt()
    squares = torch.linalg.eigvalsh(scale[:, None] * stiffness * scale)[:FREQUENCIES]
    return (squares.sqrt() / (2 * math.pi)).numpy()


def rod_point(edges: int, fine: Swing) -> Point:
    """Return accuracy and cost of a rod."""
    tip = distance(rod_tip(edges, fine), fine.tip)
    model = rod(edges)
    start, steps = model.initial_state(BATCH), TIMED * round(pendulum.STEP / ROD_STEP)
    integrator, schedule = ImplicitMidpoint(ROD_STEP), turned(edges, fine)
    seconds = timed(lambda: unroll(model, start, integrator, steps, schedule, throw=True))
    return Point(edges, errors(rod_frequencies(edges)), tip, seconds / (steps * ROD_STEP * BATCH))


# ---- both --------------------------------------------------------------------------------------------------------


def errors(frequencies: np.ndarray) -> np.ndarray:
    """Return the relative errors (3,) of the lowest frequencies, NaN where there is none."""
    found = np.full(FREQUENCIES, np.nan)
    found[: len(frequencies)] = frequencies / pendulum.beam_frequencies(len(frequencies)) - 1
    return found


def distance(tip: np.ndarray, other: np.ndarray) -> float:
    """Return the root mean square of the distance of two tips (T, 3) [m]."""
    return float(np.sqrt(np.square(tip - other).sum(1).mean()))


@torch.no_grad()
def timed(run) -> float:
    """Return the CPU time of the second of two calls [s]."""
    run()
    began = time.process_time()
    run()
    return time.process_time() - began


def drawn(points: dict[str, list[Point]], path: Path) -> None:
    """Draw errors against fineness and against cost."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    by_frequency, by_parts, by_cost = figure.subplots(1, 3)
    for (name, found), marker in zip(points.items(), ("o-", "s--"), strict=True):
        parts, tips = [p.parts for p in found], [1e3 * p.tip for p in found]
        by_frequency.set_prop_cycle(None)
        for k in range(FREQUENCIES):
            label = f"{name}, {('first', 'second', 'third')[k]}"
            by_frequency.loglog(parts, [abs(p.frequencies[k]) for p in found], marker, label=label, markersize=4)
        by_parts.loglog(parts, tips, marker, label=name)
        by_cost.loglog([1e3 * p.cost for p in found], tips, marker, label=name)
        for p in found:
            by_cost.annotate(f"{p.parts}", (1e3 * p.cost, 1e3 * p.tip), (4, 4), textcoords="offset points", fontsize=8)
    by_frequency.set(xlabel="segments, edges", ylabel="relative error of frequencies")
    by_parts.set(xlabel="segments, edges", ylabel="error of the tip, rms [mm]")
    by_cost.set(xlabel="CPU time for a simulated second [ms]", ylabel="error of the tip, rms [mm]")
    for axes in (by_frequency, by_parts):
        axes.set_xticks(CHAINS, [str(n) for n in CHAINS])
    by_cost.set_xticks((10, 20, 50, 100, 200), ["10", "20", "50", "100", "200"])
    for axes in (by_frequency, by_parts, by_cost):
        axes.xaxis.set_minor_formatter(NullFormatter())
    by_frequency.legend(fontsize=7)
    by_parts.legend(fontsize=8)
    for axes in (by_frequency, by_parts, by_cost):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def main(out: Path) -> None:
    """Print a table and draw it."""
    torch.set_num_threads(1)
    fine = chain_swing(FINE)
    points = {
        "chain": [chain_point(n, fine) for n in CHAINS],
        "rod": [rod_point(n, fine) for n in RODS],
    }
    print(f"{'':6}{'parts':>6}{'first':>10}{'second':>10}{'third':>10}{'tip [mm]':>10}{'CPU [ms/s]':>12}")
    for name, found in points.items():
        for p in found:
            print(f"{name:6}{p.parts:6d}", end="")
            print("".join(f"{100 * x:9.2f}%" for x in p.frequencies), f"{1e3 * p.tip:9.2f}{1e3 * p.cost:12.2f}", sep="")
        enough = min((p for p in found if p.tip <= BAR), key=lambda p: p.cost, default=None)
        if enough is not None:
            print(f"{name}: {enough.parts} parts are enough for {1e3 * BAR:g} mm")
    drawn(points, out)
    print(f"wrote {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("how_fine.png"))
    main(parser.parse_args().out)
