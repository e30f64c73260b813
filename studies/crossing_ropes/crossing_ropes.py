"""Two ropes that hang across each other slide along each other: how fast, on straight edges and on smooth lines.

Each rope is 1 m long and hangs from two pins 0.8 m apart; the pins of the upper one are 0.1 m lower, so that it is
carried by the other in the middle, without friction (an experiment of the package `cosseratbench`). The equilibrium in
which both stay in their planes is nearly neutral: what swings the lower rope back pulls the upper one over it. But a
rope that slides along the other by d has to rise by kappa d^2 / 2, and the middle of a straight edge does not rise. So
on straight edges the stiffness N kappa is missing, N the force of the contact and kappa the curvature of the rope that
is slid along, however many edges there are.

Of that equilibrium the study prints the lowest two eigenvalues that are not zero (ropes turn about themselves freely)
and, where the first is negative, the rate at which a push of 1e-7 m grows in steps of 2 ms beside that of the mode.

    python -m studies.crossing_ropes.crossing_ropes --edges 50 51 100 101
"""

from __future__ import annotations

import argparse
import cmath
import itertools
import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch

from torchdismech import Circle, Control, ImplicitEuler, Material, Model, RobotBuilder, State, Static, forces, modes
from torchdismech.contact import Penalty, SelfContact

LENGTH, SPAN, RADIUS, DROP = 1.0, 0.8, 5e-3, 0.1  # m
CLEAR = 0.03  # m, by which the upper rope's pins begin above the other's
DAMPING = 6.26  # 1/s
MODES, FREE = 8, 1e-3  # modes that are computed; 1/s^2, below which they are those of ropes that turn freely
STEP, PUSH, TIME = 2e-3, 1e-7, 0.6  # s, m, s


@dataclass(frozen=True)
class Crossing:
    """The equilibrium in the planes of the ropes.

    Attributes
    ----------
    model, state, control : the ropes, their equilibrium, and the control that holds their ends.
    force : of the contact [N].
    eigenvalues : (2,) the lowest that are not zero [1/s^2].
    shape : (n,) of the first of these modes.
    """

    model: Model
    state: State
    control: Control
    force: float
    eigenvalues: list[float]
    shape: torch.Tensor

    @property
    def growth(self) -> float:
        """Rate at which the first mode grows under the damping [1/s]; negative where it dies down."""
        return (-DAMPING / 2 + cmath.sqrt(DAMPING**2 / 4 - self.eigenvalues[0])).real

    def measured(self) -> float:
        """Return the rate at which a push along the first mode grows in the second half of some steps [1/s]."""
        push = PUSH * self.shape / self.shape.abs().max()
        pushed = self.model.initial_state(q=self.state.q + push, control=self.control)
        euler, sizes = ImplicitEuler(STEP, force_tolerance=1e-13, relative_tolerance=0.0), []
        for _ in range(round(TIME / STEP)):
            pushed, _ = euler.step(self.model, pushed, self.control, throw=True)
            sizes.append(float((pushed.q - self.state.q)[0] @ self.shape))
        half = len(sizes) // 2
        return math.log(sizes[-1] / sizes[half - 1]) / (STEP * (len(sizes) - half))


def hanging(edges: int) -> np.ndarray:
    """Return a circular arc of so many edges (edges + 1, 2) between the pins: along and up."""
    low, high = 1e-3, math.pi
    for _ in range(60):  # bisect for half the angle of an arc whose chords sum to LENGTH
        half = 0.5 * (low + high)
        chords = edges * math.sin(half / edges) * SPAN / math.sin(half)
        low, high = (half, high) if chords < LENGTH else (low, half)
    angle = np.linspace(-half, half, edges + 1)
    radius = 0.5 * SPAN / math.sin(half)
    return radius * np.stack([np.sin(angle), math.cos(half) - np.cos(angle)], axis=1)


def ropes(edges: int, centre_line: str) -> Model:
    """Return both ropes, the upper one clear of the other."""
    builder, zero = RobotBuilder(), np.zeros(edges + 1)
    along, up = hanging(edges).T
    for nodes in (np.stack([along, zero, up], 1), np.stack([zero, along, up + CLEAR], 1)):
        index = builder.add_rod(nodes, Circle(RADIUS), Material(1e6, 1000.0, 0.5), natural="straight")
        builder.clamp(nodes=[index[0], index[-1]], twist=False)
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.MassDamping(DAMPING))
    builder.add_contact(SelfContact(Penalty(5e3, 5e-4), themselves=False, centre_line=centre_line))
    return builder.finalize(compile=False)


def carried(model: Model) -> tuple[State, Control, float]:
    """Return the equilibrium after the upper rope's pins went down, the control there, and the contact's force [N]."""
    state = model.initial_state()
    target = state.q.clone()
    half = len(model.nodes) // 2
    for node in (half, 2 * half - 1):
        target[0, 3 * node + 2] -= CLEAR + DROP
    with warnings.catch_warnings():  # the equilibrium is unstable, as the study shows
        warnings.filterwarnings("ignore", message="Static: the equilibrium")
        state, info = Static(unstable="report", max_iterations=400).step(
            model, state, Control(clamped_q=target), throw=True
        )
    return state, Control(clamped_q=target), float(info.contact["force/part0"][0, 2].abs())


def crossing(edges: int, centre_line: str) -> Crossing:
    """Return the equilibrium of ropes with so many edges each; an odd number crosses in the middle of an edge."""
    model = ropes(edges, centre_line)
    state, control, force = carried(model)
    found = modes(model, state, MODES, control)
    held = found.eigenvalue[0].abs() > FREE
    return Crossing(model, state, control, force, found.eigenvalue[0, held][:2].tolist(), found.shape[0, held][0])


def main(counts: list[int]) -> None:
    """Print force, eigenvalues and growth on straight edges and on smooth lines, for each number of edges."""
    for edges, centre_line in itertools.product(counts, ("straight", "smooth")):
        found = crossing(edges, centre_line)
        values = "{:.1f} and {:.1f}".format(*found.eigenvalues)
        steps = f", in steps {found.measured():.2f} 1/s" if found.growth > 0 else ""
        print(
            f"{edges} edges, {centre_line}: {found.force:.4f} N; {values} 1/s^2; growth {found.growth:.2f} 1/s{steps}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", nargs="+", type=int, default=[50, 51, 100, 101], help="of each rope")
    main(parser.parse_args().edges)
