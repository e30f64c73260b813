"""Policies by TorchRL's proximal policy optimisation, for any environment of robots; needs the extra [rl].

The algorithm and its loss are TorchRL's: after Schulman et al., Proximal Policy Optimization Algorithms, 2017.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from torchdismech.environments import Environment, Episodes
from torchdismech.environments.torchrl import TorchRLRobotEnv
from torchdismech.errors import InputError, real_number, refuse_other_kind, truth, whole_number
from torchdismech.robot.state import tensor_fields
from training.files import write

__all__ = ["rewards_of", "trained_policy"]

EPOCHS, PARTS = 6, 4  # passes over what was collected, and parts of it that a step of the optimiser sees


def trained_policy(
    environment: Environment,
    updates: int,
    actions: int,
    rate: float = 1e-3,
    discount: float = 0.95,
    width: int = 64,
    checkpoint: Path | str | None = None,
    resume: bool = False,
) -> ProbabilisticActor:
    """Return a policy after so many updates, each from so many actions of every robot.

    Episodes go on from one update to the next: a robot begins anew where its episode is over, and with the first
    update. Fewer actions an update than an episode has are enough to learn from all of it.

    A training that was resumed comes to the policy of one without interruption, as far as steps repeat their numbers;
    random numbers are those of torch's own generators, whose state is kept, too.

    Parameters
    ----------
    rate : of Adam, falling to zero.
    discount : of a reward for each action that it is ahead, 0 to 1.
    width : of both hidden layers of policy and critic.
    checkpoint : file that is written after each update, with all that the next one needs; None: none.
    resume : whether to go on from that file, with the same environment and arguments.

    Raises
    ------
    InputError
        An argument out of its range, actions without bounds, a checkpoint that is there already without `resume`, is
        not there with it, or is of another training; weights that are not finite after an update.
    """
    refuse_other_kind("trained_policy: environment", environment, Environment, "an Environment")
    _refuse_no_bounds(environment)
    settings = {
        "updates": whole_number(updates, "trained_policy: updates"),
        "actions": whole_number(actions, "trained_policy: actions"),
        "rate": _rate(rate),
        "discount": _discount(discount),
        "width": whole_number(width, "trained_policy: width"),
        "robots": environment.batch,
        "numbers of an action": len(environment.low),
        "numbers observed": environment.width,
    }
    _refuse_one_sample(environment.batch, actions)
    kept = _kept(checkpoint, truth(resume, "trained_policy: resume"))
    robots, training = TorchRLRobotEnv(environment), _Training.begun(environment, settings)
    environment.reset()
    first = training.resumed(kept, settings) if kept is not None and resume else 0
    for k in range(first, updates):
        with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
            run = robots.rollout(
                actions, training.policy, break_when_any_done=False, auto_reset=False, tensordict=robots.seen()
            )
        for _ in range(EPOCHS):
            training.advantage(run)
            _improve(training.loss, training.optimiser, run.reshape(-1))
        training.schedule.step()
        training.refuse_not_finite(k)
        if k % 5 == 0 or k == updates - 1:
            print(f"  update {k:3d}: mean reward of an action {run['next', 'reward'].mean():.4f}", flush=True)
        if kept is not None:
            training.write(kept, settings, k + 1)
    return training.policy


def _rate(given: float) -> float:
    rate = real_number(given, "trained_policy: rate", "a number above 0")
    if not 0 < rate < torch.inf:
        raise InputError(f"trained_policy: rate: expected a number above 0, got {rate:g}")
    return rate


def _discount(given: float) -> float:
    discount = real_number(given, "trained_policy: discount", "a number from 0 to 1")
    if not 0 <= discount <= 1:
        raise InputError(f"trained_policy: discount: expected a number from 0 to 1, got {discount:g}")
    return discount


def _refuse_no_bounds(environment: Environment) -> None:
    """Refuse actions without bounds, or with bounds that the policy's single precision does not have."""
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
    """Refuse one action of one robot an update, as advantages are told in parts of how much they differ."""
    if robots * actions < 2:
        raise InputError(
            "trained_policy: actions: expected two or more an update of a single robot, as what is better than what is "
            f"learned from how they differ, got {actions}"
        )


def _kept(checkpoint: Path | str | None, resume: bool) -> Path | None:
    """Return the file that keeps a training; refuse to write over another one, and to go on from nothing."""
    kept = None if checkpoint is None else Path(checkpoint)
    if resume and (kept is None or not kept.is_file()):
        raise InputError(f"trained_policy: resume: expected a checkpoint to go on from, got {kept}")
    if not resume and kept is not None and kept.exists():
        raise InputError(f"trained_policy: checkpoint: {kept} is there already: go on by resume=True, or name another")
    if kept is not None and not kept.parent.is_dir():
        raise InputError(f"trained_policy: checkpoint: expected a file in a folder that is there, got {kept}: make it")
    return kept


# what a checkpoint holds beside the parts that learn
KEPT = ("settings", "done", "random", "seed", "episode", "state", "actions", "ended")


@dataclass(frozen=True)
class _Training:
    """What learns, and what teaches it."""

    environment: Environment
    policy: ProbabilisticActor
    critic: ValueOperator
    advantage: GAE
    loss: ClipPPOLoss
    optimiser: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler

    @classmethod
    def begun(cls, environment: Environment, settings: dict[str, Any]) -> _Training:
        """Return an untrained policy with what trains it."""
        width, device = settings["width"], environment.model.device
        policy = _policy(environment, width).to(device)
        critic = ValueOperator(_network(environment.width, 1, width), ["observation"]).to(device)
        advantage = GAE(gamma=settings["discount"], lmbda=0.95, value_network=critic, average_gae=True)
        loss = ClipPPOLoss(policy, critic, clip_epsilon=0.2, entropy_coeff=1e-3)
        optimiser = torch.optim.Adam(loss.parameters(), lr=settings["rate"])
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, settings["updates"])
        return cls(environment, policy, critic, advantage, loss, optimiser, schedule)

    def _parts(self) -> dict[str, Any]:
        names = ("policy", "critic", "optimiser", "schedule")
        return {name: getattr(self, name) for name in names}

    def refuse_not_finite(self, update: int) -> None:
        """Refuse to go on with weights that are not finite, of the policy or of the critic, before they are kept."""
        weights = [*self.policy.parameters(), *self.critic.parameters()]
        if not all(bool(part.isfinite().all()) for part in weights):
            raise InputError(
                f"trained_policy: update {update} led to weights that are not finite: take a smaller rate, or rewards "
                "and observations of a size of one"
            )

    def write(self, path: Path, settings: dict[str, Any], done: int) -> None:
        """Write the training after so many updates; a kill at any moment leaves the old file or the new one."""
        at, device = self.environment.current, self.environment.model.device
        state = dict(zip(tensor_fields(at.state), at.state.fields(), strict=True))
        kept = {name: part.state_dict() for name, part in self._parts().items()}
        random = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
        kept |= {"settings": settings, "done": done, "random": random, "seed": at.seed, "episode": at.episode}
        kept |= {"state": state, "actions": at.actions, "ended": self.environment.ended}
        file = io.BytesIO()
        torch.save(kept, file)
        write(path, file.getvalue())

    def resumed(self, path: Path, settings: dict[str, Any]) -> int:
        """Put all back that a file holds, and return the number of updates that it comes after."""
        device, kept = self.environment.model.device, _read(path, [*self._parts(), *KEPT], list(settings))
        for name, own in settings.items():
            theirs = kept["settings"][name]
            if theirs != own:
                raise InputError(f"trained_policy: {name}: {path} was trained with {theirs}, got {own}")
        for name, part in self._parts().items():
            part.load_state_dict(kept[name])
        self.environment.resume(*self._episodes(path, kept))
        torch.set_rng_state(kept["random"][0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(kept["random"][1], device)
        return kept["done"]

    def _episodes(self, path: Path, kept: dict[str, Any]) -> tuple[Episodes, Tensor]:
        """Return where the robots were in their episodes, and whose (B,) was over; refuse those of other robots."""
        device = self.environment.model.device
        fresh = self.environment.began(kept["seed"].to(device), kept["episode"].to(device))
        state = {name: tensor.to(device) for name, tensor in kept["state"].items()}
        own = dict(zip(tensor_fields(fresh.state), fresh.state.fields(), strict=True))
        if _shapes(state) != _shapes(own):
            raise InputError(
                f"trained_policy: resume: {path} was trained with other robots or another integrator: expected states "
                f"of {_shapes(own)}, got {_shapes(state)}"
            )
        at = dataclasses.replace(fresh, state=fresh.state.replace(**state), actions=kept["actions"].to(device))
        return at, kept["ended"].to(device)


def _read(path: Path, names: list[str], settings: list[str]) -> dict[str, Any]:
    """Return what a checkpoint holds by these names; refuse a file that lacks some of it, or of its settings."""
    try:
        kept = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise InputError(f"trained_policy: resume: {path} holds no training: it is damaged, or another file") from error
    refuse_other_kind(f"trained_policy: resume: {path}", kept, dict, "a training that trained_policy wrote")
    missing = [name for name in names if name not in kept]
    missing += [f"settings: {name}" for name in settings if name not in kept.get("settings", {})]
    if missing:
        raise InputError(
            f"trained_policy: resume: {path} lacks {', '.join(missing)}: it is damaged, another file, or of an earlier "
            "version; begin anew with another checkpoint"
        )
    return kept


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _network(inputs: int, outputs: int, width: int) -> MLP:
    return MLP(inputs, outputs, num_cells=[width, width], activation_class=nn.Tanh)


def _policy(environment: Environment, width: int) -> ProbabilisticActor:
    """Return an untrained policy: a network gives the mean and spread of each number of an action."""
    scores = nn.Sequential(_network(environment.width, 2 * len(environment.low), width), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(scores, ["observation"], ["loc", "scale"]),
        spec=TorchRLRobotEnv(environment).action_spec,
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


def rewards_of(environment: Environment, policy: ProbabilisticActor) -> Tensor:
    """Return the rewards (B, horizon) over an episode of a policy without its noise; zero once that has ended."""
    rewards = []
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        observation = environment.reset()
        for _ in range(environment.horizon):
            seen = TensorDict({"observation": observation.float()}, batch_size=[environment.batch])
            outcome = environment.step(policy(seen)["action"], idle=True)  # robots that are over stay, without reward
            observation = outcome.observation
            rewards.append(outcome.reward)
    return torch.stack(rewards, 1)
