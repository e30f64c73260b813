"""Two ropes that hang across each other do not stay where theory has them: why, and how fast they leave.

Each rope is 1 m long and hangs from two pins 0.8 m apart; the pins of the upper one are 0.1 m lower, so that it is
carried by the other in the middle, without friction (an experiment of the package `cosseratbench`). In theory both stay
in their planes, as a rope that has slid along the other by d is pushed back: its surface rises by kappa d^2 / 2. Here a
rope is a chain of straight edges, and the middle of an edge does not rise. So the stiffness N kappa is missing, N the
force of the contact and kappa the curvature of the rope that is slid along. That does not depend on the number of
edges; how far the ropes slide, half an edge and more, does.

Of the equilibrium in which both ropes stay in their planes the study prints the eigenvalues of its two unstable modes,
the lowest eigenvalue with N kappa put in for both ropes (among mixtures of the lowest modes), and the rate at which a
push of 1e-9 m grows in steps of 2 ms beside those of the modes.

    python -m studies.crossing_ropes.crossing_ropes --edges 25 51 101
"""

from __future__ import annotations

import argparse
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
MODES = 60  # that are mixed
STEP, PUSH, TIME = 2e-3, 1e-9, 0.6  # s, m, s


@dataclass(frozen=True)
class Crossing:
    """What is known of the equilibrium in the planes of the ropes.

    Attributes
    ----------
    force : of the contact [N].
    eigenvalues : (2,) of the unstable modes [1/s^2].
    restored : the lowest eigenvalue with the stiffness of both curvatures [1/s^2].
    growth : rates (2,) at which they grow under the damping [1/s].
    measured : rate at which the first grows in time steps [1/s].
    """

    force: float
    eigenvalues: list[float]
    restored: float
    growth: list[float]
    measured: float


def hanging(edges: int) -> np.ndarray:
    """Return a circular arc of so many edges (edges + 1, 2) between the pins: along and up."""
    low, high = 1e-3, math.pi
    for _ in range(60):  # half the angle of an arc whose chords are LENGTH together
        half = 0.5 * (low + high)
        chords = edges * math.sin(half / edges) * SPAN / math.sin(half)
        low, high = (half, high) if chords < LENGTH else (low, half)
    angle = np.linspace(-half, half, edges + 1)
    radius = 0.5 * SPAN / math.sin(half)
    return radius * np.stack([np.sin(angle), math.cos(half) - np.cos(angle)], axis=1)


def ropes(edges: int) -> Model:
    """Return both ropes, the upper one clear of the other."""
    builder, zero = RobotBuilder(), np.zeros(edges + 1)
    along, up = hanging(edges).T
    for nodes in (np.stack([along, zero, up], 1), np.stack([zero, along, up + CLEAR], 1)):
        index = builder.add_rod(nodes, Circle(RADIUS), Material(1e6, 1000.0, 0.5), natural="straight")
        builder.clamp(nodes=[index[0], index[-1]], twist=False)
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.MassDamping(DAMPING))
    builder.add_contact(SelfContact(Penalty(5e3, 5e-4), themselves=False))
    return builder.finalize(compile=False)


def carried(model: Model) -> tuple[State, Control, float]:
    """Return the equilibrium after the upper rope's pins went down, what holds it there, and the contact's force."""
    state = model.initial_state()
    target = state.q.clone()
    half = len(model.nodes) // 2
    for node in (half, 2 * half - 1):
        target[0, 3 * node + 2] -= CLEAR + DROP
    with warnings.catch_warnings():  # that the equilibrium does not last is what is shown
        warnings.filterwarnings("ignore", message="Static: the equilibrium")
        state, info = Static(unstable="report", max_iterations=400).step(
            model, state, Control(clamped_q=target), throw=True
        )
    return state, Control(clamped_q=target), float(info.contact["force/part0"][0, 2].abs())


def crossing(edges: int) -> Crossing:
    """Return what is known of ropes with so many edges each, an odd number."""
    model = ropes(edges)
    state, control, force = carried(model)
    found = modes(model, state, MODES, control)
    half, middle = edges + 1, edges // 2
    ends = found.shape[0, :, : 3 * len(model.nodes)].unflatten(1, (2, half, 3))[:, :, middle : middle + 2].mean(2)
    slides = (ends[:, 0] - ends[:, 1])[:, :2]  # along x, the lower rope, and along y, the upper one
    bends = [_curvature(rope[middle - 1 : middle + 3]) for rope in state.positions[0].split(half)]
    stiffness = force * (slides * slides.new_tensor(bends)) @ slides.T
    restored = torch.linalg.eigvalsh(found.eigenvalue[0].diag() + stiffness)[0].item()
    eigenvalues = found.eigenvalue[0, :2].tolist()
    growth = [-DAMPING / 2 + math.sqrt(DAMPING**2 / 4 - value) for value in eigenvalues]
    return Crossing(force, eigenvalues, restored, growth, _measured(model, state, control, found.shape[0, 0]))


def _curvature(nodes: torch.Tensor) -> float:
    """Return the curvature of a rope about the middle of four nodes (4, 3) [1/m]."""
    along = nodes.diff(dim=0)
    tangent = torch.nn.functional.normalize(along, dim=1)
    turns = torch.linalg.vector_norm(tangent.diff(dim=0), dim=1)
    return float(turns.mean() / torch.linalg.vector_norm(along, dim=1).mean())


def _measured(model: Model, state: State, control: Control, shape: torch.Tensor) -> float:
    """Return the rate at which a push along a mode grows in the second half of some steps [1/s]."""
    push = PUSH * shape / shape.abs().max()
    pushed = model.initial_state(q=state.q + push, control=control)
    euler, sizes = ImplicitEuler(STEP, force_tolerance=1e-13, relative_tolerance=0.0), []
    for _ in range(round(TIME / STEP)):
        pushed, _ = euler.step(model, pushed, control, throw=True)
        sizes.append(float((pushed.q - state.q)[0] @ shape))
    half = len(sizes) // 2
    return math.log(sizes[-1] / sizes[half - 1]) / (STEP * (len(sizes) - half))


def main(counts: list[int]) -> list[Crossing]:
    """Print what is known, a line for each number of edges, and return it."""
    found = [crossing(edges) for edges in counts]
    for edges, of in zip(counts, found, strict=True):
        values = "{:.1f} and {:.1f}".format(*of.eigenvalues)
        rates = "{:.2f} and {:.2f}".format(*of.growth)
        print(f"{edges} edges: {of.force:.4f} N; {values} 1/s^2, with N kappa {of.restored:.1f} 1/s^2; ", end="")
        print(f"growth {rates} 1/s, the first in steps {of.measured:.2f} 1/s")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", nargs="+", type=int, default=[25, 51, 101], help="of each rope, odd numbers")
    main(parser.parse_args().edges)
