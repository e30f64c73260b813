"""Where robots are in their episodes, and what comes of an action."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.robot.state import State
from torchdismech.values import where_rows

__all__ = ["Episodes", "Outcome"]


@dataclass(frozen=True)
class Episodes:
    """Where each robot is in its episode: all that the next step depends on.

    Attributes
    ----------
    state : of the robots.
    goal, constants : tensors (B, ...) by name that stay for an episode.
    seed, episode : (B,) int64, what the episode's numbers were drawn from.
    actions : (B,) int64, how many were taken in it.
    """

    state: State
    goal: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]
    seed: Tensor
    episode: Tensor
    actions: Tensor

    @property
    def kind(self) -> str:
        """What tells episodes of one task and integrator from those of others, as a message says it."""
        goal, constants = (", ".join(sorted(names)) or "none" for names in (self.goal, self.constants))
        return f"a {type(self.state).__name__} with goals: {goal}; constants: {constants}"

    def detach(self) -> Episodes:
        """Return a copy that gradients do not pass."""
        goal, constants = ({name: value.detach() for name, value in own.items()} for own in (self.goal, self.constants))
        return dataclasses.replace(self, state=self.state.detach(), goal=goal, constants=constants)

    def merged(self, other: Episodes, take: Tensor) -> Episodes:
        """Return these with the robots where `take` (B,) holds replaced by those of `other`."""

        def each(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: where_rows(take, theirs[name], value) for name, value in mine.items()}

        return Episodes(
            self.state.merged(other.state, take),
            each(self.goal, other.goal),
            each(self.constants, other.constants),
            torch.where(take, other.seed, self.seed),
            torch.where(take, other.episode, self.episode),
            torch.where(take, other.actions, self.actions),
        )


@dataclass(frozen=True)
class Outcome:
    """What came of an action.

    Attributes
    ----------
    observation : (B, k) after it.
    reward : (B,); zero for robots that did not act, or whose step failed.
    terminated : (B,) bool, the task is over, or the step failed.
    truncated : (B,) bool, the episode is as long as episodes are.
    status : (B,) `Status` of the steps: why an episode was terminated, if it is not CONVERGED; STOPPED for robots that
        did not act, as their episode was over.
    """

    observation: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    status: Tensor

    @property
    def ended(self) -> Tensor:
        """Robots (B,) whose episode this action ended; `Environment.ended` has those that were over before, too."""
        return self.terminated | self.truncated
