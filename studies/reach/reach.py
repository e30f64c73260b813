"""Reach: the tip of a soft arm goes to a random target, by feedback whose gains are learned through the simulation.

    python -m studies.reach.reach            # in about a minute
    python -m studies.reach.reach --updates 3 --batch 64    # a first look, in 17 s of one core

An arm of 0.2 m hangs from its base in the x-z plane and is bent by two actuators, the natural curvature of its upper
and of its lower half. Targets lie where its tip can get to; the reward of an action is minus the distance there, in
parts of the arm's length. PI feedback of the tip's error, u = tanh(Kp e + Ki z) with matrices Kp, Ki (2, 2), is trained
by gradients through rollouts and compared with no action, on targets that it was not trained with.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, forces, straight
from torchdismech.environments import (
    Actuator,
    Draws,
    Environment,
    Episodes,
    Step,
    Task,
    node_positions,
    node_velocities,
)

LENGTH, NODES, DT = 0.2, 11, 0.02
UPDATES = 20  # of the gains
STEPS, HORIZON = 2, 40  # steps of an action, actions of an episode
BEND = 2.0  # rad, by which an actuator bends its half at most


def arm() -> Model:
    """Return the arm: rubber of 1 MPa, damped, in air."""
    builder = RobotBuilder(planar=True)
    material = Material(1e6, 1000.0, relaxation_time=0.02)
    builder.add_rod(straight((0, 0, 0), (0, 0, -LENGTH), NODES), Circle(8e-3), material)
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.Viscous(0.1))
    return builder.finalize()


def halves(model: Model) -> Tensor:
    """Return the matrix (2 S, 2) from two actions to the springs' kappa1 and kappa2: at 1 a half bends by BEND."""
    springs = len(model.springs)
    upper = torch.arange(springs) < springs // 2
    matrix = torch.zeros(2 * springs, 2, dtype=torch.float64)
    row = bending_axis(model) * springs
    for k, half in enumerate((upper, ~upper)):
        matrix[row : row + springs, k] = half * (BEND / int(half.sum()))
    return matrix


def bending_axis(model: Model) -> int:
    """Return the index of the curvature that bends the arm in the x-z plane: 0 for kappa1, 1 for kappa2."""
    return 0 if abs(float(model.directors[0, 1])) < 0.5 else 1


def targets(model: Model, draws: Draws) -> dict[str, Tensor]:
    """Return random targets (B, 2) [m] in reach of the tip, by angle from straight down and distance to the base."""
    angle, distance = draws.uniform(-1.0, 1.0), draws.uniform(0.75, 0.95)
    x, z = LENGTH * distance * angle.sin(), -LENGTH * distance * angle.cos()
    return {"target": torch.stack([x, z], 1)}


def tip_error(model: Model, state, goal) -> Tensor:
    """Return the vector from the tip to the target, x and z (B, 2), in parts of the length."""
    return (goal["target"] - state.positions[:, -1, [0, 2]]) / LENGTH


def reward(model: Model, step: Step) -> Tensor:
    """Return minus the distance of the tip from the target, in parts of the length."""
    return -tip_error(model, step.after, step.goal).norm(dim=1)


def environment(batch: int, seed: int = 0, horizon: int = HORIZON) -> Environment:
    """Return arms with targets."""
    model = arm()
    seen = [
        tip_error,
        lambda model, state, goal: goal["target"] / LENGTH,
        lambda model, state, goal: node_positions([5, NODES - 1])(model, state, goal) / LENGTH,
        lambda model, state, goal: node_velocities([5, NODES - 1])(model, state, goal) / LENGTH,
    ]
    task = Task([Actuator("natural_curvature", halves(model))], seen, reward, goal=targets)
    return Environment(model, ImplicitEuler(DT), task, batch, steps=STEPS, horizon=horizon, seed=seed)


class TipFeedback(nn.Module):
    """PI feedback of the tip's error, with matrices as gains."""

    def __init__(self) -> None:
        super().__init__()
        self.Kp = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
        self.Ki = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))

    def forward(self, error: Tensor, total: Tensor) -> Tensor:
        """Return actions (B, 2) for errors and their integrals (B, 2)."""
        return torch.tanh(error @ self.Kp.t() + total @ self.Ki.t())


def episode_rewards(env: Environment, at: Episodes, feedback: TipFeedback | None, actions: int = HORIZON) -> Tensor:
    """Return the rewards (actions, B) of feedback from the beginning of episodes; without feedback actions are zero."""
    rewards = []
    total = torch.zeros(env.batch, 2, dtype=torch.float64)
    for _ in range(actions):
        error = tip_error(env.model, at.state, at.goal)
        total = total + STEPS * DT * error
        action = torch.zeros_like(total) if feedback is None else feedback(error, total)
        at, outcome = env.acted(at, action)
        rewards.append(outcome.reward)
    return torch.stack(rewards)


def trained_feedback(batch: int = 16, updates: int = UPDATES, actions: int = 20) -> TipFeedback:
    """Return feedback with gains by gradient descent through episodes."""
    env, feedback = environment(batch), TipFeedback()
    optimiser = torch.optim.Adam(feedback.parameters(), lr=0.3)
    for k in range(updates):
        at = env.began(torch.arange(batch), torch.full((batch,), k))
        loss = -episode_rewards(env, at, feedback, actions).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if k % 5 == 0 or k == updates - 1:
            print(f"  update {k:3d}: mean distance {loss.item():.3f} of the length")
    return feedback


def final_distances(env: Environment, feedback: TipFeedback | None) -> tuple[float, float]:
    """Return the mean distance from the target over the last half of unseen episodes, and over all of them."""
    with torch.no_grad():
        rewards = episode_rewards(env, env.began(torch.arange(env.batch), torch.full((env.batch,), 10**6)), feedback)
    return -rewards[HORIZON // 2 :].mean().item(), -rewards.mean().item()


def main() -> None:
    """Train, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256, help="robots of the comparison")
    parser.add_argument("--updates", type=int, default=UPDATES, help="of the gains; 3 for a first look")
    options = parser.parse_args()
    env = environment(options.batch)
    rows = {"no action": (*final_distances(env, None), 0.0)}
    began = time.perf_counter()
    feedback = trained_feedback(updates=options.updates)
    rows["PI, gains by gradient"] = (*final_distances(env, feedback), time.perf_counter() - began)
    print(f"{'distance / length':<24}{'last half':>10}{'all':>8}{'trained [s]':>13}")
    for name, (last, every, seconds) in rows.items():
        print(f"{name:<24}{last:>10.4f}{every:>8.4f}{seconds:>13.0f}")
    print(f"Kp {feedback.Kp.tolist()}, Ki {feedback.Ki.tolist()} 1/s")


if __name__ == "__main__":
    main()
