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
from torchdismech.robot.state import Control
from torchdismech.runs.of_states import trajectory_of
from torchdismech.view.movie import pictures, refuse_no_pictures
from torchdismech.view.scenery import Scenery

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
    render_mode : "rgb_array" lets `render` draw the robot, as for `gymnasium.wrappers.RecordVideo` (extra [movie]).
    size : width and height of these pictures [pixels], even.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(self, environment: Environment, render_mode: str | None = None, size: tuple[int, int] = (480, 360)):
        if environment.batch != 1:
            raise InputError(f"RobotEnv: expected an environment of one robot, got {environment.batch}")
        if render_mode not in (None, "rgb_array"):
            raise InputError(f'RobotEnv: render_mode: expected "rgb_array" or None, got {render_mode!r}')
        if render_mode is not None:
            refuse_no_pictures("RobotEnv: size", size)
        self.environment, self.render_mode, self._size = environment, render_mode, size
        self.metadata = {**self.metadata, "render_fps": 1 / (environment.steps * environment.integrator.dt)}
        self._region: np.ndarray | None = None  # (2, 3) corners of the box that the robot has reached in this episode
        self.observation_space, self.action_space = _spaces(environment)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode; a seed restarts its draws. There are no options."""
        _refuse_unknown(options)
        super().reset(seed=seed)
        if seed is not None:
            self.environment.seeded(seed)
        self._region = None
        return _array(self.environment.reset())[0], {}

    def render(self) -> np.ndarray | None:
        """Return a picture (height, width, 3) uint8 of the robot and its obstacles, or None without a `render_mode`.

        The camera sees what the robot has reached in this episode when it was drawn, and half of its size more.
        """
        if self.render_mode is None:
            gymnasium.logger.warn('RobotEnv.render draws nothing: make the environment with render_mode="rgb_array"')
            return None
        at = self.environment.current
        run = trajectory_of(self.environment.model, [at.state], Control(values=at.constants))
        scenery = Scenery(run, region=self._region)
        if self._region is None:
            margin = 0.5 * (scenery.high - scenery.low).max()
            scenery = Scenery(run, region=np.stack([scenery.low - margin, scenery.high + margin]))
        self._region = np.stack([scenery.low, scenery.high])
        return next(pictures(scenery, self._size))

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
