"""Measure what an environment adds to the cost of its robots' steps: `python -m benchmarks.environment`.

A clamped rod of 101 nodes, 256 robots, eager: actions that bend it, the tip observed. The same controls are stepped
without an environment, in turns with it, and the medians of process CPU time are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, straight
from torchdismech.environments import Actuator, Environment, Task, node_positions
from torchdismech.environments.actions import controlled

NODES = 101


def environment(batch: int) -> Environment:
    """Return rods that bend and are rewarded for the height of their tips."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), NODES), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize(compile=False)
    matrix = torch.full((2 * len(model.springs), 2), 1e-3, dtype=torch.float64)
    task = Task(
        actions=[Actuator("natural_curvature", matrix)],
        observations=[node_positions([NODES - 1])],
        reward=lambda model, step: step.after.positions[:, -1, 2],
    )
    return Environment(model, ImplicitEuler(0.01), task, batch, horizon=10**6)


def ratios(batch: int, steps: int) -> list[float]:
    """Return, for each of some steps, the time of an action over that of the step alone from the same state."""
    env, found = environment(batch), []
    env.reset()
    action = torch.linspace(-1, 1, 2 * batch, dtype=torch.float64).reshape(batch, 2)
    for _ in range(5):
        env.step(action)
    for _ in range(steps):
        state = env.current.state
        control = controlled(env.task.actions, action, state, env.model, {})
        began = time.process_time()
        with torch.no_grad():
            env.integrator.step(env.model, state, control)
        alone = time.process_time()
        env.step(action)
        found.append((time.process_time() - alone) / (alone - began))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    found = ratios(options.batch, options.steps)
    print(f"action over step alone, {options.batch} rods of {NODES} nodes: {statistics.median(found):.3f}")


if __name__ == "__main__":
    main()
