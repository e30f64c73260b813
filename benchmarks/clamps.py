"""Error against cost of three ways to clamp a rod: two nodes, a direction, a direction by Gregory's rule.

``python -m benchmarks.clamps`` prints for rods of more and more edges how far the tip of a cantilever is off under a
small load at it, and the CPU time of the equilibrium and of a step of implicit Euler, 64 robots at once.
"""

import time
from typing import Any

import numpy as np
import torch

from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, Static, forces, straight

EDGES = (10, 20, 40, 80, 160)
ROBOTS, TIMES = 64, 7
YOUNGS, RADIUS, LOAD = 1e6, 1e-2, 1e-5  # Pa, m, N; the rod is 1 m long
RIGIDITY = YOUNGS * np.pi * RADIUS**4 / 4
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # options of the builder and of the clamp
    "two nodes": ({}, {"nodes": [0, 1]}),
    "direction": ({}, {"nodes": [0], "direction": "rest"}),
    "direction, gregory": ({"clamp_rule": "gregory"}, {"nodes": [0], "direction": "rest"}),
}


def cantilever(edges: int, way: str) -> Model:
    """Return a rod of 1 m with a load at its tip, in space."""
    options, clamp = WAYS[way]
    builder = RobotBuilder(**options)
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), edges + 1), Circle(RADIUS), Material(YOUNGS, 1000.0))
    builder.clamp(**clamp)
    builder.add_force(forces.PointForce([edges], (0.0, 0.0, -LOAD)))
    return builder.finalize(compile=False)


def times_of(model: Model) -> tuple[float, float, float]:
    """Return the relative error of the tip's deflection, and the CPU times of an equilibrium and of a step [s]."""
    static, euler = Static(force_tolerance=1e-13), ImplicitEuler(1e-2)
    state, taken = model.initial_state(ROBOTS), []
    for _ in range(TIMES):
        begin = time.process_time()
        rest, _ = static.step(model, state, throw=True)
        between = time.process_time()
        euler.step(model, state, throw=True)
        taken.append((between - begin, time.process_time() - between))
    tip = -float(rest.positions[0, -1, 2])
    return (tip / (LOAD / (3 * RIGIDITY)) - 1, *np.median(taken, axis=0).tolist())


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| edges | " + " | ".join(f"{way}: error, equilibrium, step [ms a robot]" for way in WAYS) + " |")
    print("|---" * (1 + len(WAYS)) + "|")
    for edges in EDGES:
        found = [times_of(cantilever(edges, way)) for way in WAYS]
        cells = [
            f"{100 * off:+.4f} %, {1e3 * rest / ROBOTS:.2f}, {1e3 * step / ROBOTS:.2f}" for off, rest, step in found
        ]
        print(f"| {edges} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
