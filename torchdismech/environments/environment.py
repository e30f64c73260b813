"""Environment: a batch of robots with a task, whose episodes are stepped, rewarded, ended and begun anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact.initial_overlap import warn_of_overlap
from torchdismech.environments.actions import controlled, refuse_without_effect
from torchdismech.environments.checks import (
    noted_in_errors,
    refuse_not_finite,
    refuse_other_than_rows,
    refuse_other_than_tensor,
    seeds_of_robots,
)
from torchdismech.environments.draws import Draws
from torchdismech.environments.episodes import Episodes, Outcome
from torchdismech.environments.task import Step, Task
from torchdismech.errors import (
    InputError,
    Status,
    refuse_other_kind,
    refuse_other_model,
    truth,
    warn,
    whole_number,
)
from torchdismech.integrate.integrator import Integrator
from torchdismech.model import Model
from torchdismech.records import replaced
from torchdismech.robot.state import Control, State
from torchdismech.runs.stepping import stepper_of_many
from torchdismech.values import where_rows

__all__ = ["Environment"]


class Environment:
    """A batch of robots with a task. `reset` begins episodes, `step` acts.

    `began` and `acted` do the same as pure functions of `Episodes`. Where autograd records, a rollout through `acted`
    can be differentiated by actions, goals and constants, like `unroll`.

    Parameters
    ----------
    model, integrator : the robots, and how they are stepped.
    task : actions, observations, reward and beginnings of episodes.
    batch : number of robots; by default that for which the model's parameters are given, or 1.
    steps : number of the integrator's steps for an action, whose numbers hold meanwhile.
    horizon : number of actions after which an episode is truncated.
    seed : robot k draws from seed + k.

    Raises
    ------
    InputError
        A model of another kind, such as a pneumatic arm; an integrator without a time step; counts that are no whole
        numbers from 1 up; a seed that is no whole number of 64 bits; a task that does not fit the robots.
    """

    def __init__(
        self,
        model: Model,
        integrator: Integrator,
        task: Task,
        batch: int | None = None,
        steps: int = 1,
        horizon: int = 200,
        seed: int = 0,
    ):
        refuse_other_model("Environment", model, Model)
        refuse_other_kind("Environment: integrator", integrator, Integrator, "one that moves in time")
        refuse_other_kind("Environment: task", task, Task, "a Task")
        self.model, self.integrator, self.task = model, integrator, task
        self.batch = whole_number(batch, "Environment: batch") if batch is not None else model.batch or 1
        self.steps = whole_number(steps, "Environment: steps")
        self.horizon = whole_number(horizon, "Environment: horizon")
        task.check(model)
        self.low, self.high = (bound.to(model.nodes) for bound in (task.low, task.high))
        self.seeded(seed)
        self._current: Episodes | None = None
        self._ended = torch.zeros(self.batch, dtype=torch.bool, device=model.device)
        self._warned = False  # whether it has warned of steps after all episodes are over
        self._drawn_before: Sequence[str] = []  # names of the constants that were drawn last

    def __repr__(self) -> str:
        """Return how many robots act by how many numbers, for how long, and how many actions an episode has."""
        robots, of_action = f"{self.batch} robot{'s' * (self.batch != 1)}", f"{len(self.low)} numbers an action"
        holds = f"{self.steps} step{'s' * (self.steps != 1)} of {self.integrator}"
        return f"Environment({robots}, {of_action} of {holds}, up to {self.horizon} actions an episode)"

    @classmethod
    def from_scene(
        cls,
        scene: Path | str,
        task: Task,
        horizon: int | None = None,
        anew: bool = False,
        allow_code: bool = False,
        **options: Any,
    ) -> Environment:
        """Return the environment of a scene file's robots.

        Scenes that move their robots themselves, or drive tendons and chambers by files, are refused, as in
        environments actions do that. So are actions `Constant` that set what [batch.randomize] draws.

        Parameters
        ----------
        horizon : number of actions of an episode; None: as many as the scene's duration takes.
        anew : whether robots draw the numbers of [batch.randomize] anew in each episode, from their seeds; constants
            that depend on them then add to the task's. Otherwise each robot keeps what the scene drew.
        allow_code : whether the file that magnetic.python names may run.
        options : further arguments of `Environment`, except `batch`, which the scene gives.
        """
        from torchdismech.environments.randomized import RandomizedConstants, drawn_constants
        from torchdismech.environments.scenes import refuse_moving, with_constants
        from torchdismech.io.scene import load_scene

        anew = truth(anew, "Environment.from_scene: anew")
        loaded = load_scene(Path(scene))
        refuse_moving(loaded)
        if loaded.document.initial is not None:
            raise InputError(f"{scene}: [initial] says where robots begin, which the task's start does: remove it")
        setup = loaded.build(allow_code=allow_code)
        if "batch" in options:
            raise InputError("Environment.from_scene: batch: the scene says how many robots there are, in [batch]")
        steps = whole_number(options.get("steps", 1), "Environment: steps")
        if not isinstance(setup.integrator, Integrator):
            raise InputError(f'{scene}: an environment needs a scene that moves in time, not integrator = "static"')
        horizon = max(setup.steps // steps, 1) if horizon is None else horizon
        if anew:
            task = with_constants(task, RandomizedConstants(loaded))
        environment = cls(setup.model, setup.integrator, task, setup.state.batch, horizon=horizon, **options)
        if task.set_by_actions and (overridden := sorted(task.set_by_actions & drawn_constants(loaded))):
            raise InputError(
                f"{scene}: [batch.randomize] draws {overridden[0]}, and an action sets it, which hides what is drawn: "
                "leave out one of them"
            )
        return environment

    def seeded(self, seed: int | Sequence[int] | np.ndarray | Tensor) -> None:
        """Set the seeds, seed + k for robot k, or one for each; the next episodes are the first ones of these seeds."""
        seeds = seeds_of_robots(seed, self.batch)
        self._seed = torch.tensor(seeds, dtype=torch.int64, device=self.model.device)
        self._episode = torch.zeros_like(self._seed)

    @property
    def current(self) -> Episodes:
        """The present state of the robots and their episodes."""
        if self._current is None:
            raise InputError("Environment: call reset before step")
        return self._current

    @property
    def width(self) -> int:
        """Number of entries k of a robot's observation."""
        with torch.no_grad():
            return self.observed(self.began(self._seed, self._episode)).shape[1]

    # ---- pure functions --------------------------------------------------------------------------------------------

    def began(self, seed: Tensor, episode: Tensor) -> Episodes:
        """Return the beginning of the episodes with the numbers `episode` and robots' seeds `seed`, each (B,) int64."""
        refuse_other_than_rows("began: seed", seed, self.batch, torch.int64)
        refuse_other_than_rows("began: episode", episode, self.batch, torch.int64)
        task, model = self.task, self.model
        draws = Draws(seed, episode, dtype=model.dtype)
        constants = _drawn("constants", task.constants, model, draws)
        task.check_drawn(constants)
        self._refuse_idle(sorted(constants))
        with noted_in_errors("Task.constants"):
            model.check_control(Control(values=constants), self.batch, model.snapshot())
        start = _drawn("start", task.start, model, draws)
        if odd := sorted(start.keys() - {"q", "velocity"}):
            raise InputError(f"Task.start: expected q and velocity, got {odd[0]!r}")
        goal = _drawn("goal", task.goal, model, draws)
        for name, value in goal.items():
            if not value.dim() or len(value) != self.batch:
                raise InputError(f"Task.goal: {name}: expected ({self.batch}, ...), got {tuple(value.shape)}")
            refuse_not_finite(f"Task.goal: {name}", value)
        state = model.initial_state(self.batch, control=Control(values=constants), **start)
        rows = {name: value if value.dim() else value.expand(self.batch, 1) for name, value in constants.items()}
        return Episodes(self.integrator.started(state), goal, rows, seed, episode, torch.zeros_like(seed))

    def _refuse_idle(self, names: Sequence[str]) -> None:
        """Refuse to draw only constants that change nothing; the same names are looked at once."""
        if names and names != self._drawn_before:
            refuse_without_effect(f"Task.constants: {', '.join(names)}", self.model, names)
            self._drawn_before = names

    def observed(self, at: Episodes) -> Tensor:
        """Return the task's observations (B, k)."""
        parts = []
        with self._with_constants_of(at):
            for k, observe in enumerate(self.task.observations):
                with noted_in_errors(f"Task.observations[{k}]"):
                    parts.append(observe(self.model, at.state, at.goal))
        for k, part in enumerate(parts):
            if callable(part) and not isinstance(part, Tensor):
                raise InputError(
                    f"Task.observations[{k}]: expected a tensor ({self.batch}, k), got a function: what stands there "
                    "makes an observation and is none; call it, as in contact('penetration') or node_positions()"
                )
            refuse_other_than_tensor(f"Task.observations[{k}]", part)
            if part.dim() != 2 or len(part) != self.batch:
                raise InputError(f"Task.observations[{k}]: expected ({self.batch}, k), got {tuple(part.shape)}")
        observation = torch.cat(parts, 1)
        if not bool(torch.isfinite(observation).all()):
            for k, part in enumerate(observation.split([part.shape[1] for part in parts], 1)):
                refuse_not_finite(f"Task.observations[{k}]", part)
        return observation

    @contextmanager
    def _with_constants_of(self, at: Episodes) -> Iterator[None]:
        """Have the model hold the constants of the episodes within the block; other threads wait for the model."""
        with self.model.lock, self.model.values_of(Control(values=at.constants)).in_place():
            yield

    def acted(self, at: Episodes, action: Tensor, running: Tensor | None = None) -> tuple[Episodes, Outcome]:
        """Return the episodes after an action (B, k), and its outcome.

        Robots that are not `running` (B,) stay as they are.
        """
        refuse_other_kind("acted: at", at, Episodes, "Episodes, such as `began` returns")
        self._refuse_misfit(action)
        if running is None:
            running = torch.ones_like(at.seed, dtype=torch.bool)
        refuse_other_than_rows("running", running, self.batch, torch.bool)
        action = action.to(at.state.q).clamp(self.low, self.high)
        state, status = self._stepped(at, action, running)
        good = status == int(Status.CONVERGED)
        before, step = _without_failed_gradients(at, state, action, good)
        reward, ends = self._judged(before, step, good)
        goes_on = good if ends is None else good & ~ends
        after = replaced(at, state=state, actions=at.actions + running)
        terminated, truncated = running & ~goes_on, goes_on & (after.actions >= self.horizon)
        return after, Outcome(self.observed(after), reward, terminated, truncated, status)

    def _refuse_misfit(self, action: Tensor) -> None:
        """Refuse anything but a finite action (B, k) of these robots."""
        if not isinstance(action, Tensor):
            raise InputError(f"action: expected a tensor, got {type(action).__name__}; torch.as_tensor makes one of it")
        if action.shape != (self.batch, len(self.low)):
            raise InputError(f"action: expected {(self.batch, len(self.low))}, got {tuple(action.shape)}")
        if action.is_complex() or not bool(torch.isfinite(action).all()):
            raise InputError("action: holds numbers that are complex or not finite")

    def _judged(self, at: Episodes, step: Step, good: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the reward (B,) of a step, and which episodes (B,) the task ends; None for a task that ends none.

        Parameters
        ----------
        good : (B,) robots that acted and whose step did not fail; others get no reward, whatever the task says.
        """
        ends = None
        with self._with_constants_of(at):
            with noted_in_errors("Task.reward"):
                reward = self.task.reward(self.model, step)
            if self.task.terminated is not None:
                with noted_in_errors("Task.terminated"):
                    ends = self.task.terminated(self.model, step)
                refuse_other_than_rows("Task.terminated", ends, self.batch, torch.bool)
        refuse_other_than_tensor("Task.reward", reward)
        if reward.shape != good.shape:
            raise InputError(f"Task.reward: expected ({self.batch},), got {tuple(reward.shape)}")
        reward = torch.where(good, reward, 0.0)
        refuse_not_finite("Task.reward", reward)
        return reward, ends

    def _stepped(self, at: Episodes, action: Tensor, running: Tensor) -> tuple[State, Tensor]:
        """Return the states after the steps of an action, and the status (B,) of each robot."""
        many = stepper_of_many(self.integrator) if all(part.holds for part in self.task.actions) else None
        if many is not None and self.steps > 1:
            state, several = many.steps(self.model, at.state, self.steps, self._control(at, action, at.state), running)
            return state, torch.where(running, several.status, int(Status.STOPPED))
        state, good = at.state, running
        status = torch.where(running, int(Status.CONVERGED), int(Status.STOPPED))
        for _ in range(self.steps):
            state, info = self.integrator.step(self.model, state, self._control(at, action, state), good)
            status = torch.where(good, info.status, status)
            good = good & info.converged
        return state, status

    def _control(self, at: Episodes, action: Tensor, state: State) -> Control:
        """Return the control of a step from a state, with the constants of the episodes."""
        return controlled(self.task.actions, action, state, self.model, at.constants)

    # ---- with a present state --------------------------------------------------------------------------------------

    @torch.no_grad()
    def reset(self, rows: Tensor | None = None) -> Tensor:
        """Begin the next episode of the robots `rows` (B,) bool, or of all; return the observations (B, k) of all.

        Other robots, and what they draw in later episodes, do not change. The first reset warns of robots that begin
        inside obstacles, as runs do.
        """
        if rows is None:
            rows = torch.ones(self.batch, dtype=torch.bool, device=self.model.device)
        refuse_other_than_rows("reset: rows", rows, self.batch, torch.bool)
        if self._current is None and not bool(rows.all()):
            raise InputError("Environment: the first reset has to be of all robots")
        fresh = self.began(self._seed, self._episode)
        if self._current is None:
            with self._with_constants_of(fresh):
                warn_of_overlap(self.model.obstacles, fresh.state)
        self._current = fresh if self._current is None else self._current.merged(fresh, rows)
        self._episode = self._episode + rows
        self._ended = self._ended & ~rows
        return self.observed(self._current)

    @torch.no_grad()
    def resume(self, at: Episodes, ended: Tensor | None = None) -> Tensor:
        """Restore the state that `current` returned earlier, and return the observations (B, k).

        Later episodes draw what they would have drawn then. `torch.save` writes `current` and `ended` to a file.

        Parameters
        ----------
        at : episodes of as many robots, with the same task.
        ended : (B,) bool, robots whose episode was over, as `ended` returned; by default none.
        """
        refuse_other_kind("resume: at", at, Episodes, "the `current` of an environment")
        if at.state.batch != self.batch:
            raise InputError(f"resume: at: expected {self.batch} robots, got {at.state.batch}")
        self.model.check_batch(at.state, Control(values=at.constants))
        fresh = self.began(at.seed, at.episode)
        if at.kind != fresh.kind:
            raise InputError(
                f"resume: at: expected {fresh.kind}, as the task and the integrator have it, got {at.kind}"
            )
        ended = torch.zeros_like(at.seed, dtype=torch.bool) if ended is None else ended
        refuse_other_than_rows("resume: ended", ended, self.batch, torch.bool)
        observation = self.observed(at)
        self._current, self._ended = at, ended
        self._seed, self._episode = at.seed, at.episode + 1
        return observation

    @torch.no_grad()
    def step(self, action: Tensor, idle: bool = False) -> Outcome:
        """Take an action (B, k) and return its outcome; robots whose episode is over do nothing until they are reset.

        Parameters
        ----------
        idle : whether it is intended that all episodes may be over; otherwise, on a CPU, an environment warns of it
            once.
        """
        idle = truth(idle, "Environment.step: idle")
        looks = self._ended.is_cpu and not (idle or self._warned)  # on a GPU, to look would wait for it at each action
        if looks and bool(self._ended.all()):
            self._warned = True
            warn(
                "Environment.step: the episodes of all robots are over, so nothing moves and rewards are zero; call "
                "reset(environment.ended) after each step, or take step(action, idle=True) if that is meant",
                RuntimeWarning,
            )
        self._current, outcome = self.acted(self.current, action, ~self._ended)
        self._ended = self._ended | outcome.ended
        return outcome

    @property
    def ended(self) -> Tensor:
        """Robots (B,) whose episode is over."""
        return self._ended


def _drawn(
    name: str, function: Callable[[Model, Draws], Mapping[str, Tensor]] | None, model: Model, draws: Draws
) -> dict[str, Tensor]:
    """Return what the task's `function` draws, {} for None; refuse anything but a mapping of names to tensors."""
    with noted_in_errors(f"Task.{name}"):
        drawn = {} if function is None else function(model, draws)
    refuse_other_kind(f"Task.{name}", drawn, Mapping, "tensors by name")
    for key, value in drawn.items():
        refuse_other_kind(f"Task.{name}", key, str, "tensors by names")
        refuse_other_than_tensor(f"Task.{name}: {key}", value)
    return dict(drawn)


def _without_failed_gradients(at: Episodes, state: State, action: Tensor, good: Tensor) -> tuple[Episodes, Step]:
    """Return the episodes before a step, and the step, both detached for robots that are not `good` (B,).

    The reward of those is zero. But its gradient would be NaN, zero times infinity, where the task's formula has an
    infinite derivative, such as a square root at zero.
    """
    if torch.is_grad_enabled():
        at, state = at.merged(at.detach(), ~good), state.merged(state.detach(), ~good)
        action = where_rows(good, action, action.detach())
    return at, Step(at.state, state, action, at.goal)
