"""Swim: a snake finds waves that swim faster than the one of `shape_tracking`, with no more curvature and no faster.

    python -m studies.shape_tracking.swim              # the wave, and the one that gradients find, in a minute or two
    python -m studies.shape_tracking.swim --updates 2  # a first look, in 17 s of one core
    python -m studies.shape_tracking.swim --policy     # a policy by PPO besides, in some minutes; needs the extra [rl]

The snake of `shape_tracking`, with 21 nodes, swims by a travelling wave of natural curvature, of which an action sets
how many waves the body has, at the head and at the tail: from 1 to 5, linear in between. Three everywhere are the wave
of `shape_tracking`. Amplitude and frequency stay: 75/m and 1 Hz. The reward of an action is the mean speed of the
snake's middle against the wave's direction, in body lengths a second.

A slender body in a viscous fluid swims, where the wave's slope is small, by V = w b^2 k (c_n - c_t) / (2 c_t), after
Gray and Hancock 1955. For the same curvature b k^2 that goes as 1/k^3: fewer waves are faster, until slopes are no
longer small, and until so few of them turn the snake to and fro.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor

from studies.shape_tracking.shape_tracking import LENGTH, OMEGA, SLOPE, START, WAVES, build
from torchdismech import Control, ImplicitEuler, Model, State
from torchdismech.environments import Action, Environment, Step, Task, strains

NODES, DT = 21, 2e-2  # s
UPDATES = 12  # of the search by gradients
STEPS, HORIZON = 25, 4  # steps of an action, actions of an episode: 2 s
CURVATURE = SLOPE * 2 * math.pi * WAVES / LENGTH  # 1/m, the amplitude
FEWEST, MOST = 0.0, 6.0


class Waves(Action):
    """Two numbers, how many waves a body length has, at the head and at the tail."""

    low, high, count = FEWEST, MOST, 2

    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with the natural curvature of the wave at the end of a step."""
        s = torch.linspace(0, 1, NODES, dtype=torch.float64)[1:-1]
        head, tail = numbers[:, :1], numbers[:, 1:]
        turns = head * s + (tail - head) * s.square() / 2
        time = state.time[:, None] + DT
        bent = -CURVATURE * torch.sin(2 * math.pi * turns - OMEGA * time) * (time / START).clamp(0, 1)
        natural = bent * (LENGTH / (NODES - 1))
        return control.replace(natural_curvature=torch.stack([natural, torch.zeros_like(natural)], dim=2))


def middle(state: State) -> Tensor:
    """Return the position of the snake's middle against the wave's direction (B,), in body lengths."""
    return -state.positions[:, :, 0].mean(1) / LENGTH


def speed(model: Model, step: Step) -> Tensor:
    """Return the mean speed during an action (B,), in body lengths a second."""
    return (middle(step.after) - middle(step.before)) / (STEPS * DT)


def phase(model: Model, state: State, goal: object) -> Tensor:
    """Return cosine and sine of the wave's phase (B, 2)."""
    return torch.stack([torch.cos(OMEGA * state.time), torch.sin(OMEGA * state.time)], dim=1)


def environment(batch: int, seed: int = 0) -> Environment:
    """Return snakes at rest."""
    task = Task([Waves()], [phase, lambda *seen: strains("kappa1")(*seen)[:, ::3]], speed)
    integrator = ImplicitEuler(DT, force_tolerance=1e-8, relative_tolerance=0)
    return Environment(build(nodes=NODES), integrator, task, batch, STEPS, HORIZON, seed)


def mean_speeds(env: Environment, waves: Tensor) -> Tensor:
    """Return the mean speeds (B,) over an episode with the waves (B, 2) throughout, in body lengths a second."""
    at, rewards = env.began(torch.zeros(env.batch).long(), torch.zeros(env.batch).long()), []
    for _ in range(HORIZON):
        at, outcome = env.acted(at, waves)
        rewards.append(outcome.reward)
    return torch.stack(rewards).mean(0)


def climbed(updates: int = UPDATES) -> Tensor:
    """Return the waves (1, 2) that gradient ascent finds from those of `shape_tracking`, by their logarithms."""
    env = environment(1)
    log = torch.full((1, 2), math.log(WAVES), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([log], lr=0.2, betas=(0.5, 0.9))
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, updates)
    for k in range(updates):
        found = mean_speeds(env, log.exp())
        if k % 4 == 0:
            print(f"  update {k:3d}: {log.detach().exp().tolist()[0]} waves: {found.item():.4f} lengths/s", flush=True)
        optimiser.zero_grad()
        (-found.sum()).backward()
        optimiser.step()
        schedule.step()
    return log.detach().exp()


def main() -> None:
    """Search, print and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", action="store_true", help="train a policy by PPO, too")
    parser.add_argument("--updates", type=int, default=UPDATES, help="of the search by gradients; 2 for a first look")
    options = parser.parse_args()
    env, began = environment(2), time.process_time()
    best = climbed(options.updates)
    seconds = time.process_time() - began
    with torch.no_grad():
        wave, faster = mean_speeds(env, torch.cat([torch.full_like(best, WAVES), best])).tolist()
    rows = {"the wave of shape_tracking": (wave, 0.0), "waves by gradient": (faster, seconds)}
    if options.policy:
        from training.ppo import rewards_of, trained_policy

        torch.manual_seed(0)
        began = time.process_time()
        policy = trained_policy(environment(32), updates=20, actions=HORIZON, rate=3e-3)
        seconds = time.process_time() - began
        rows["policy by PPO"] = (float(rewards_of(environment(1), policy).mean()), seconds)
    print(f"{'':<28}{'lengths/s':>10}{'trained [s of CPU]':>20}")
    for name, (mean, seconds) in rows.items():
        print(f"{name:<28}{mean:>10.4f}{seconds:>20.0f}")
    head, tail = best[0].tolist()
    print(f"gradients found {head:.2f} waves at the head, {tail:.2f} at the tail")
    assert options.updates < UPDATES or faster > 5 * wave
    if options.policy:
        assert rows["policy by PPO"][0] > 3 * wave


if __name__ == "__main__":
    main()
