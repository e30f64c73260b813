"""Policies by TorchRL's proximal policy optimisation, for any environment of robots; needs the extra [rl].

The algorithm and its loss are TorchRL's: after Schulman et al., Proximal Policy Optimization Algorithms, 2017.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

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
from torchdismech.errors import (
    InputError,
    path_of,
    positive_number,
    real_number,
    refuse_other_kind,
    truth,
    whole_number,
)
from training import ppo_checkpoint
from training.files import writing

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["rewards_of", "trained_policy"]

EPOCHS, PARTS = 6, 4  # passes over the samples of an update, and minibatches of a pass


def trained_policy(
    environment: Environment,
    updates: int,
    actions: int,
    rate: float = 1e-3,
    discount: float = 0.95,
    width: int = 64,
    checkpoint: Path | str | None = None,
    resume: bool = False,
    log: Path | str | None = None,
) -> ProbabilisticActor:
    """Train a policy by `updates` updates, each from so many `actions` of every robot, and return it.

    Episodes go on from one update to the next: a robot is reset where its episode is over, and before the first
    update. So an update may have fewer actions than an episode, and all parts of episodes are learned from.

    A resumed training comes to the policy of one without interruption, as far as the simulation repeats its numbers;
    the state of torch's random generators is kept, too.

    Parameters
    ----------
    rate : learning rate of Adam, which falls linearly to zero.
    discount : factor on a reward for each action that it lies ahead, 0 to 1.
    width : neurons in each of the two hidden layers of policy and critic.
    checkpoint : file that is written after each update, with all that the next one needs; None: no file.
    resume : whether to go on from that file, with the same environment and arguments.
    log : folder for TensorBoard, which the extra [train] brings: of each update the rewards, how many episodes were
        terminated and truncated, the terms of the loss, and how fast robots acted; None: nothing is written.

    Raises
    ------
    InputError
        An argument out of its range, actions without bounds, a checkpoint that exists without `resume`, is missing
        with it, or is of another training; a `log` without TensorBoard, or where no folder can be made; weights that
        are not finite after an update.
    """
    refuse_other_kind("trained_policy: environment", environment, Environment, "an Environment")
    settings = _settings(environment, updates, actions, rate, discount, width)
    path = ppo_checkpoint.file_of(checkpoint, truth(resume, "trained_policy: resume"))
    robots, learner = TorchRLRobotEnv(environment), _Learner.untrained(environment, settings)
    environment.reset()
    done = ppo_checkpoint.load(path, learner.parts, environment, settings) if path is not None and resume else 0
    with nullcontext() if log is None else _board(log, done) as board:
        for k in range(done, updates):
            began = perf_counter()
            samples = _collected(robots, learner.policy, actions)
            seconds = perf_counter() - began
            for _ in range(EPOCHS):
                learner.advantage(samples)
                terms = _improve(learner.loss, learner.optimiser, samples.reshape(-1))
            if board is not None:
                _show(board, k, samples, terms, seconds)
            learner.schedule.step()
            learner.refuse_not_finite(k)
            if k % 5 == 0 or k == updates - 1:
                print(f"  update {k:3d}: mean reward of an action {samples['next', 'reward'].mean():.4f}", flush=True)
            if path is not None:
                ppo_checkpoint.save(path, learner.parts, environment, settings, k + 1)
    return learner.policy


def rewards_of(environment: Environment, policy: ProbabilisticActor) -> Tensor:
    """Return the rewards (B, horizon) of one episode of a policy without noise; zero once a robot's episode is over."""
    rewards = []
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        observation = environment.reset()
        for _ in range(environment.horizon):
            seen = TensorDict({"observation": observation.float()}, batch_size=[environment.batch])
            # idle: robots whose episode is over stand still without reward, also when it is all of them
            outcome = environment.step(policy(seen)["action"], idle=True)
            observation = outcome.observation
            rewards.append(outcome.reward)
    return torch.stack(rewards, 1)


# ---- the arguments of a training -----------------------------------------------------------------------------------


def _settings(
    environment: Environment, updates: int, actions: int, rate: float, discount: float, width: int
) -> dict[str, Any]:
    """Return the checked arguments and sizes of a training, by name; a resumed training has to have the same."""
    _refuse_no_bounds(environment)
    settings = {
        "updates": whole_number(updates, "trained_policy: updates"),
        "actions": whole_number(actions, "trained_policy: actions"),
        "rate": positive_number(rate, "trained_policy: rate", "a number above 0"),
        "discount": _discount(discount),
        "width": whole_number(width, "trained_policy: width"),
        "robots": environment.batch,
        "numbers of an action": len(environment.low),
        "numbers observed": environment.width,
    }
    _refuse_one_sample(environment.batch, actions)
    return settings


def _discount(given: float) -> float:
    discount = real_number(given, "trained_policy: discount", "a number from 0 to 1")
    if not 0 <= discount <= 1:
        raise InputError(f"trained_policy: discount: expected a number from 0 to 1, got {discount:g}")
    return discount


def _refuse_no_bounds(environment: Environment) -> None:
    """Refuse actions without bounds, or with bounds that are infinite or equal in the policy's single precision."""
    low, high = environment.low.float(), environment.high.float()
    if not bool((low.isfinite() & high.isfinite()).all()):
        raise InputError(
            "trained_policy: expected actions with bounds, as the policy's numbers lie between them, and of less than "
            "3e38, as they are in single precision"
        )
    if not bool((low < high).all()):
        k = int((low >= high).nonzero()[0])
        raise InputError(
            f"trained_policy: expected bounds of actions that single precision tells apart, got {environment.low[k]:g} "
            f"and {environment.high[k]:g} for number {k}: take them farther apart"
        )


def _refuse_one_sample(robots: int, actions: int) -> None:
    """Refuse updates from a single sample, as advantages are divided by their standard deviation over the samples."""
    if robots * actions < 2:
        raise InputError(
            "trained_policy: actions: expected two or more an update of a single robot, as what is better than what is "
            f"learned from how they differ, got {actions}"
        )


# ---- what learns, and how ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Learner:
    """The networks of a training, policy and critic, with the advantages, loss and optimiser that train them."""

    policy: ProbabilisticActor
    critic: ValueOperator
    advantage: GAE
    loss: ClipPPOLoss
    optimiser: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler

    @classmethod
    def untrained(cls, environment: Environment, settings: dict[str, Any]) -> _Learner:
        """Return the learner of a new training, on the environment's device."""
        width, device = settings["width"], environment.model.device
        policy = _policy(environment, width).to(device)
        critic = ValueOperator(_network(environment.width, 1, width), ["observation"]).to(device)
        advantage = GAE(gamma=settings["discount"], lmbda=0.95, value_network=critic, average_gae=True)
        loss = ClipPPOLoss(policy, critic, clip_epsilon=0.2, entropy_coeff=1e-3)
        optimiser = torch.optim.Adam(loss.parameters(), lr=settings["rate"])
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, settings["updates"])
        return cls(policy, critic, advantage, loss, optimiser, schedule)

    @property
    def parts(self) -> dict[str, Any]:
        """The objects with a state that updates change, by their names in checkpoints."""
        names = ("policy", "critic", "optimiser", "schedule")
        return {name: getattr(self, name) for name in names}

    def refuse_not_finite(self, update: int) -> None:
        """Refuse weights of the policy or critic that are not finite, before a checkpoint is written of them."""
        weights = [*self.policy.parameters(), *self.critic.parameters()]
        if not all(bool(part.isfinite().all()) for part in weights):
            raise InputError(
                f"trained_policy: update {update} led to weights that are not finite: take a smaller rate, or rewards "
                "and observations of a size of one"
            )


def _network(inputs: int, outputs: int, width: int) -> MLP:
    return MLP(inputs, outputs, num_cells=[width, width], activation_class=nn.Tanh)


def _policy(environment: Environment, width: int) -> ProbabilisticActor:
    """Return an untrained policy: a network gives mean and spread of a tanh-normal distribution of each action."""
    scores = nn.Sequential(_network(environment.width, 2 * len(environment.low), width), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(scores, ["observation"], ["loc", "scale"]),
        spec=TorchRLRobotEnv(environment).action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": environment.low.float(), "high": environment.high.float()},
        return_log_prob=True,
    )


def _collected(robots: TorchRLRobotEnv, policy: ProbabilisticActor, actions: int) -> TensorDict:
    """Return the samples of so many actions of a noisy policy, from the present state of each robot on."""
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        return robots.rollout(actions, policy, break_when_any_done=False, auto_reset=False, tensordict=robots.seen())


def _improve(loss: ClipPPOLoss, optimiser: torch.optim.Optimizer, samples: TensorDict) -> TensorDict:
    """Pass once over the samples in random order, with a step of the optimiser for each of `PARTS` minibatches.

    Returns the loss of the last one, by its terms.
    """
    for part in samples[torch.randperm(len(samples), device=samples.device)].chunk(PARTS):
        terms = loss(part)
        optimiser.zero_grad()
        sum(terms[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
        nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        optimiser.step()
    return terms.detach()


# ---- what TensorBoard shows ----------------------------------------------------------------------------------------


def _board(folder: Path | str, done: int) -> SummaryWriter:
    """Return a writer for updates from `done` on; those that an earlier training wrote after that are not shown."""
    path = path_of(folder, "trained_policy: log", "folder")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("trained_policy: log needs TensorBoard: pip install 'torchdismech[train]'") from error
    with writing(path):
        return SummaryWriter(str(path), purge_step=done)


def _show(board: SummaryWriter, update: int, samples: TensorDict, terms: TensorDict, seconds: float) -> None:
    """Write an update: rewards, episodes that ended, robots' actions a second, and the terms of the loss."""
    after = samples["next"]
    board.add_scalar("reward/of_an_action", float(after["reward"].mean()), update)
    board.add_scalar("episodes/terminated", int(after["terminated"].sum()), update)
    board.add_scalar("episodes/truncated", int(after["truncated"].sum()), update)
    board.add_scalar("speed/actions_per_second", samples.numel() / seconds, update)
    for name, value in terms.items():
        if value.numel() == 1:
            board.add_scalar(f"policy/{name}", float(value), update)
    board.flush()
