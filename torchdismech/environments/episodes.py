"""Episodes: the state of robots within their episodes. Outcome: what an action led to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.robot.state import State
from torchdismech.values import where_rows

__all__ = ["Episodes", "Outcome"]


@dataclass(frozen=True, eq=False)
class Episodes:
    """State of each robot within its episode: all that the next step depends on.

    Attributes
    ----------
    state : state of the robots.
    goal, constants : tensors (B, ...) by name, fixed for an episode.
    seed, episode : (B,) int64, seed of the robot and number of its episode, which determine what was drawn.
    actions : (B,) int64, number of actions taken in the episode.
    """

    state: State
    goal: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]
    seed: Tensor
    episode: Tensor
    actions: Tensor

    def __repr__(self) -> str:
        """Return how many robots there are, and the names of what each has, but no tensors."""
        robots = len(self.actions)
        return f"Episodes({robots} robot{'s' * (robots != 1)}, each {self.kind})"

    @property
    def kind(self) -> str:
        """Description of the state's type, goals and constants, which differs between tasks and integrators."""
        goal, constants = (", ".join(sorted(names)) or "none" for names in (self.goal, self.constants))
        return f"a {type(self.state).__name__} with goals: {goal}; constants: {constants}"

    def detach(self) -> Episodes:
        """Return a copy that is detached from autograd."""
        goal, constants = (
            {name: value.detach() for name, value in tensors.items()} for tensors in (self.goal, self.constants)
        )
        return dataclasses.replace(self, state=self.state.detach(), goal=goal, constants=constants)

    def merged(self, other: Episodes, take: Tensor) -> Episodes:
        """Return a copy in which the robots of `take` (B,) bool are those of `other`."""

        def merged(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: where_rows(take, theirs[name], value) for name, value in mine.items()}

        return Episodes(
            self.state.merged(other.state, take),
            merged(self.goal, other.goal),
            merged(self.constants, other.constants),
            torch.where(take, other.seed, self.seed),
            torch.where(take, other.episode, self.episode),
            torch.where(take, other.actions, self.actions),
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an action led to.

    Attributes
    ----------
    observation : (B, k) after the action.
    reward : (B,); zero for robots that did not act, or whose step failed.
    terminated : (B,) bool, the task ended the episode, or the step failed.
    truncated : (B,) bool, the episode has reached the horizon.
    status : (B,) `Status` of the steps: CONVERGED, or why the step failed; STOPPED for robots that did not act, as
        their episode was over.
    """

    observation: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    status: Tensor

    def __repr__(self) -> str:
        """Return how many robots there are, how many numbers each observes, and how rewards and episodes went."""
        robots, width = self.observation.shape
        ended = f"{int(self.terminated.sum())} terminated, {int(self.truncated.sum())} truncated"
        of = f"{robots} robot{'s' * (robots != 1)} that observe{'s' * (robots == 1)} {width} numbers"
        return f"Outcome({of}; mean reward {float(self.reward.mean()):.4g}; {ended})"

    @property
    def ended(self) -> Tensor:
        """Robots (B,) whose episode this action ended; `Environment.ended` has those that were over before, too."""
        return self.terminated | self.truncated
