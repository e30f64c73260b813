"""A policy for `reach` by proximal policy optimisation, with TorchRL's parts."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
from tqdm import tqdm

from examples.reach.reach import HORIZON
from torchdismech.environments import Environment
from torchdismech.environments.torchrl import TorchRLRobotEnv

__all__ = ["policy_distances", "trained_policy"]


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Return 64 x 64 tanh units."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def trained_policy(environment: Environment, updates: int = 40, epochs: int = 8) -> ProbabilisticActor:
    """Return a policy trained by PPO, on one episode of all robots an update."""
    torch.manual_seed(0)
    env = TorchRLRobotEnv(environment)
    width, numbers = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    mean = TensorDictModule(
        nn.Sequential(network(width, 2 * numbers), NormalParamExtractor("biased_softplus_0.3")),
        ["observation"],
        ["loc", "scale"],
    )
    bounds = {"low": env.action_spec.space.low[0], "high": env.action_spec.space.high[0]}
    policy = ProbabilisticActor(
        mean, in_keys=["loc", "scale"], distribution_class=TanhNormal, distribution_kwargs=bounds, return_log_prob=True
    )
    value = ValueOperator(network(width, 1), in_keys=["observation"])
    loss = ClipPPOLoss(policy, value, entropy_coeff=1e-3)
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=value, average_gae=True)
    optimiser = torch.optim.Adam(loss.parameters(), lr=3e-3)
    bar = tqdm(range(updates), desc="PPO")
    for _ in bar:
        with torch.no_grad():
            run = env.rollout(HORIZON, policy, break_when_any_done=False)
            advantage(run)
        flat = run.reshape(-1)
        for _ in range(epochs):
            for rows in torch.randperm(len(flat)).split(len(flat) // 4):
                found = loss(flat[rows])
                total = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
                optimiser.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimiser.step()
        bar.set_postfix(distance=f"{-run['next', 'reward'].mean().item():.3f}")
    return policy


def policy_distances(environment: Environment, policy: ProbabilisticActor) -> tuple[float, float]:
    """Return what `reach.final_distances` does, of the policy without exploration, on the same episodes."""
    rewards = []
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        at = environment.began(environment._seed, torch.full((environment.batch,), 10**6))
        for _ in range(HORIZON):
            seen = TensorDict({"observation": environment.observed(at).float()}, batch_size=[environment.batch])
            at, outcome = environment.acted(at, policy(seen)["action"])
            rewards.append(outcome.reward)
    found = torch.stack(rewards)
    return -found[HORIZON // 2 :].mean().item(), -found.mean().item()
