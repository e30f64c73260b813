"""Environments for Gymnasium: a batch as a `VectorEnv`, and one robot as an `Env`, with NumPy arrays.

Needs the extra [rl]: pip install 'torchdismech[rl]'.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.environments.checks import in_dtype, refuse_other_than_rows
from torchdismech.environments.environment import Environment
from torchdismech.environments.episodes import Outcome
from torchdismech.errors import InputError, Status

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ModuleNotFoundError as error:
    raise InputError(
        f"environments.gym: needs the package {error.name}, which is not installed: pip install 'torchdismech[rl]'"
    ) from error

__all__ = ["RobotEnv", "VectorRobotEnv"]


class VectorRobotEnv(VectorEnv):
    """A batch of robots; observations and actions are float32.

    Robots whose episode ended begin anew by themselves in the next step; they ignore its action, and its reward is zero
    (`AutoresetMode.NEXT_STEP`). With autoreset=False they begin anew by `reset(options={"reset_mask": mask})`
    (`AutoresetMode.DISABLED`). `infos["status"]` has the `Status` of each robot's step; a robot whose step failed is
    terminated, and one that begins anew has `Status.STOPPED`.

    Parameters
    ----------
    environment : the core.
    autoreset : whether robots begin anew by themselves.
    """

    def __init__(self, environment: Environment, autoreset: bool = True):
        self.environment, self._autoreset = environment, autoreset
        self.autoreset_mode = AutoresetMode.NEXT_STEP if autoreset else AutoresetMode.DISABLED
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self.num_envs = environment.batch
        self.single_observation_space, self.single_action_space = _spaces(environment)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin episodes of the robots of options["reset_mask"] (num_envs,), or of all; a seed restarts their draws.

        A number seeds robot k with seed + k; a list has one for each.
        """
        _refuse_unknown(options, "reset_mask")
        mask = (options or {}).get("reset_mask")
        if seed is not None:
            if mask is not None:
                raise InputError("reset: a seed is for all robots, a reset_mask for some: give one of them")
            self.environment.seeded(seed)
        rows = None if mask is None else torch.as_tensor(np.asarray(mask), device=self._device)
        if rows is not None:
            refuse_other_than_rows("reset_mask", rows, self.num_envs, torch.bool)
        return _array(self.environment.reset(rows)), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take actions (num_envs, k); return observations, rewards, terminations, truncations and infos."""
        ended = self.environment.ended
        outcome = self.environment.step(torch.as_tensor(np.asarray(actions), device=self._device), idle=self._autoreset)
        observation = outcome.observation
        if self._autoreset and bool(ended.any()):
            observation = self.environment.reset(ended)
        return _array(observation), *_flags(outcome), {"status": outcome.status.cpu().numpy()}

    @property
    def _device(self) -> torch.device:
        return self.environment.model.device


class RobotEnv(gymnasium.Env):
    """One robot; see `VectorRobotEnv`.

    Parameters
    ----------
    environment : the core, of one robot.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, environment: Environment):
        if environment.batch != 1:
            raise InputError(f"RobotEnv: expected an environment of one robot, got {environment.batch}")
        self.environment = environment
        self.observation_space, self.action_space = _spaces(environment)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode; a seed restarts its draws. There are no options."""
        _refuse_unknown(options)
        super().reset(seed=seed)
        if seed is not None:
            self.environment.seeded(seed)
        return _array(self.environment.reset())[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take an action (k,); return observation, reward, termination, truncation and info."""
        if bool(self.environment.ended.any()):
            raise InputError("step: the episode is over: call reset")
        outcome = self.environment.step(torch.as_tensor(np.asarray(action), device=self.environment.model.device)[None])
        reward, terminated, truncated = (x[0].item() for x in _flags(outcome))
        return _array(outcome.observation)[0], reward, terminated, truncated, {"status": Status(int(outcome.status[0]))}


def _refuse_unknown(options: dict[str, Any] | None, *known: str) -> None:
    """Refuse options of a reset other than the `known` ones."""
    if odd := sorted(map(str, (options or {}).keys() - set(known))):
        raise InputError(f"reset: options: expected {', '.join(known) or 'none'}, got {odd[0]!r}; leave it out")


def _spaces(environment: Environment) -> tuple[spaces.Box, spaces.Box]:
    """Return the spaces of one robot's observations and actions."""
    low, high = (bound.cpu().numpy().astype(np.float32) for bound in (environment.low, environment.high))
    return spaces.Box(-np.inf, np.inf, (environment.width,), np.float32), spaces.Box(low, high, dtype=np.float32)


def _array(observation: Tensor) -> np.ndarray:
    return in_dtype("observation", observation, torch.float32).cpu().numpy()


def _flags(outcome: Outcome) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rewards, terminations and truncations as NumPy arrays."""
    return (
        outcome.reward.cpu().numpy().astype(np.float64),
        outcome.terminated.cpu().numpy(),
        outcome.truncated.cpu().numpy(),
    )
