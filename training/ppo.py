"""Policies by TorchRL's proximal policy optimisation, for any environment of robots; needs the extra [rl].

The algorithm and its loss are TorchRL's: after Schulman et al., Proximal Policy Optimization Algorithms, 2017.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from torchdismech.environments import Environment
from torchdismech.environments.torchrl import TorchRLRobotEnv
from torchdismech.errors import InputError

__all__ = ["acted_on", "trained_policy"]

EPOCHS, PARTS = 6, 4  # passes over what was collected, and parts of it that a step of the optimiser sees


def trained_policy(
    environment: Environment,
    updates: int,
    actions: int,
    rate: float = 1e-3,
    discount: float = 0.95,
    width: int = 64,
) -> ProbabilisticActor:
    """Return a policy after so many updates, each from so many actions of every robot.

    Parameters
    ----------
    rate : of Adam, falling to zero.
    discount : of a reward for each action that it is ahead.
    width : of both hidden layers of policy and critic.
    """
    if not bool(torch.isfinite(torch.cat([environment.low, environment.high])).all()):
        raise InputError("trained_policy: expected actions with bounds, as the policy's numbers lie between them")
    robots, device = TorchRLRobotEnv(environment), environment.model.device
    policy = _policy(environment, robots, width).to(device)
    critic = ValueOperator(_network(environment.width, 1, width), ["observation"]).to(device)
    advantage = GAE(gamma=discount, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(policy, critic, clip_epsilon=0.2, entropy_coeff=1e-3)
    optimiser = torch.optim.Adam(loss.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, updates)
    for k in range(updates):
        with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
            run = robots.rollout(actions, policy, break_when_any_done=False)
        for _ in range(EPOCHS):
            advantage(run)
            _improve(loss, optimiser, run.reshape(-1))
        schedule.step()
        if k % 5 == 0 or k == updates - 1:
            print(f"  update {k:3d}: mean reward of an action {run['next', 'reward'].mean():.4f}", flush=True)
    return policy


def _network(inputs: int, outputs: int, width: int) -> MLP:
    return MLP(inputs, outputs, num_cells=[width, width], activation_class=nn.Tanh)


def _policy(environment: Environment, robots: TorchRLRobotEnv, width: int) -> ProbabilisticActor:
    """Return an untrained policy: a network gives the mean and spread of each number of an action."""
    scores = nn.Sequential(_network(environment.width, 2 * len(environment.low), width), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(scores, ["observation"], ["loc", "scale"]),
        spec=robots.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": environment.low.float(), "high": environment.high.float()},
        return_log_prob=True,
    )


def _improve(loss: ClipPPOLoss, optimiser: torch.optim.Optimizer, samples: TensorDict) -> None:
    """Pass once over the samples, by parts in a random order, with a step of the optimiser for each part."""
    for part in samples[torch.randperm(len(samples), device=samples.device)].chunk(PARTS):
        terms = loss(part)
        optimiser.zero_grad()
        sum(terms[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
        nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        optimiser.step()


def acted_on(environment: Environment, policy: ProbabilisticActor) -> Tensor:
    """Return the rewards (B, horizon) of a policy, without its noise, over an episode; zero once that has ended."""
    rewards = []
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        observation = environment.reset()
        for _ in range(environment.horizon):
            seen = TensorDict({"observation": observation.float()}, batch_size=[environment.batch])
            outcome = environment.step(policy(seen)["action"], idle=True)  # robots that are over stay, without reward
            observation = outcome.observation
            rewards.append(outcome.reward)
    return torch.stack(rewards, 1)
