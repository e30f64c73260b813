"""Environments for TorchRL, with tensors on the device of the robots.

Needs the extra [rl]: pip install 'torchdismech[rl]'.
"""

from __future__ import annotations

import torch

from torchdismech.environments.checks import in_dtype
from torchdismech.environments.environment import Environment
from torchdismech.errors import InputError

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Bounded, Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase
except ModuleNotFoundError as error:
    raise InputError(
        f"environments.torchrl: needs the package {error.name}, which is not installed: pip install 'torchdismech[rl]'"
    ) from error

__all__ = ["TorchRLRobotEnv"]


class TorchRLRobotEnv(EnvBase):
    """A batch of robots; "_reset" resets part of them, and "status" has the `Status` of each robot's step.

    If a bound of any number of an action is infinite, or becomes so in `dtype`, the specification has no bounds at all;
    numbers beyond the task's bounds are clamped all the same.

    Parameters
    ----------
    environment : the core.
    dtype : of observations, actions and rewards.
    """

    def __init__(self, environment: Environment, dtype: torch.dtype = torch.float32):
        device = environment.model.device
        super().__init__(device=device, batch_size=torch.Size([environment.batch]))
        self.environment, self._dtype = environment, dtype
        shape = self.batch_size
        self.observation_spec = Composite(
            observation=Unbounded((*shape, environment.width), device=device, dtype=dtype),
            status=Unbounded((*shape, 1), device=device, dtype=torch.int64),
            shape=shape,
        )
        low, high = (x.to(dtype).expand(*shape, -1).clone() for x in (environment.low, environment.high))
        spec: Bounded | Unbounded = Bounded(low, high, shape=low.shape, device=device, dtype=dtype)
        if not bool((low.isfinite() & high.isfinite()).all()):  # between infinite bounds TorchRL draws infinite numbers
            spec = Unbounded(low.shape, device=device, dtype=dtype)
        self.action_spec = spec
        self.reward_spec = Unbounded((*shape, 1), device=device, dtype=dtype)
        flag = Categorical(2, shape=(*shape, 1), dtype=torch.bool, device=device)
        self.done_spec = Composite(done=flag.clone(), terminated=flag.clone(), truncated=flag.clone(), shape=shape)

    def _reset(self, tensordict: TensorDictBase | None = None, **options) -> TensorDictBase:
        rows = None if tensordict is None else tensordict.get("_reset", None)
        return self._unstepped(self.environment.reset(None if rows is None else rows.flatten()))

    @torch.no_grad()
    def seen(self) -> TensorDictBase:
        """Return the observations (B, k) of the present state, and whose episodes are over.

        `rollout(..., auto_reset=False, tensordict=env.seen())` continues from there; robots whose episode is over first
        begin anew.
        """
        over = self.environment.ended[:, None]
        observation = self.environment.observed(self.environment.current)
        return self._unstepped(observation, done=over, terminated=torch.zeros_like(over), truncated=over)

    def _unstepped(self, observation: torch.Tensor, **flags: torch.Tensor) -> TensorDictBase:
        """Return observations (B, k) beside which no step is told of, so that none has failed."""
        status = torch.zeros((*self.batch_size, 1), dtype=torch.int64, device=self.device)
        return self._dict(observation=in_dtype("observation", observation, self._dtype), status=status, **flags)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        outcome = self.environment.step(tensordict["action"])
        return self._dict(
            observation=in_dtype("observation", outcome.observation, self._dtype),
            status=outcome.status[:, None],
            reward=in_dtype("reward", outcome.reward, self._dtype)[:, None],
            done=outcome.ended[:, None],
            terminated=outcome.terminated[:, None],
            truncated=outcome.truncated[:, None],
        )

    def _dict(self, **tensors: torch.Tensor) -> TensorDictBase:
        return TensorDict(tensors, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.environment.seeded(seed)
