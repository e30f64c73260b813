"""Task: how robots act, what is observed, how they are rewarded, and how their episodes begin and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.environments.actions import Action, Constant, refuse_hidden, refuse_no_length, refuse_no_numbers
from torchdismech.environments.draws import Draws
from torchdismech.environments.observations import Observation
from torchdismech.errors import InputError, refuse_one_alone, refuse_other_kind
from torchdismech.model import Model
from torchdismech.robot.state import State

__all__ = ["Step", "Task"]


@dataclass(frozen=True, eq=False)
class Step:
    """The effect of an action, as rewards and terminations get it.

    Attributes
    ----------
    before, after : states before and after all steps of the action.
    action : (B, k) as it was taken, clamped to its bounds.
    goal : tensors (B, ...) by name.
    """

    before: State
    after: State
    action: Tensor
    goal: Mapping[str, Tensor]


@dataclass(frozen=True)
class Task:
    """A task for a batch of robots, by functions of tensors; `draws` are `Draws` in the model's dtype.

    Attributes
    ----------
    actions : parts of an action, in the order of its numbers.
    observations : parts of an observation, in the order of its entries.
    reward : function of (model, step) -> (B,).
    terminated : function of (model, step) -> (B,) bool: ends episodes, besides failed steps; None: nothing does.
    start : function of (model, draws) -> {"q": (B, n) or (n,), "velocity": ...}; None: at rest in the rest shape.
    goal : function of (model, draws) -> tensors (B, ...) by name, which stay for an episode; None: nothing.
    constants : function of (model, draws) -> values of constants of the model by name, as in `Control.values`: with a
        row for each robot, (B, 1) for a number. They stay for an episode, so that each episode may have another robot;
        None: the model's. Constants that a `Constant` among the actions sets must not be among them.
    """

    actions: Sequence[Action]
    observations: Sequence[Observation]
    reward: Callable[[Model, Step], Tensor]
    terminated: Callable[[Model, Step], Tensor] | None = None
    start: Callable[[Model, Draws], Mapping[str, Tensor]] | None = None
    goal: Callable[[Model, Draws], Mapping[str, Tensor]] | None = None
    constants: Callable[[Model, Draws], Mapping[str, Tensor]] | None = None

    def __post_init__(self) -> None:
        refuse_one_alone("Task.actions", self.actions, "actions")
        refuse_one_alone("Task.observations", self.observations, "observations")
        if not self.actions or not self.observations:
            raise InputError("Task: needs at least one action and one observation")
        optional = {name: getattr(self, name) for name in ("terminated", "start", "goal", "constants")}
        functions = {f"observations[{k}]": observe for k, observe in enumerate(self.observations)}
        functions |= {name: function for name, function in optional.items() if function is not None}
        for name, function in {**functions, "reward": self.reward}.items():
            if not callable(function):
                raise InputError(f"Task.{name}: expected a function, got {type(function).__name__}")

    def check(self, model: Model) -> None:
        """Refuse actions that do not fit the robots or each other, such as two that set the same constant."""
        for k, action in enumerate(self.actions):
            refuse_other_kind(
                f"Task.actions[{k}]", action, Action, "an Actuator, Constant, Held, Force or other Action"
            )
            refuse_no_numbers(f"Task.actions[{k}]", action)
            action.check(model)
        refuse_hidden(self.actions)
        refuse_no_length(self.actions, model)

    def check_drawn(self, constants: Mapping[str, Tensor]) -> None:
        """Refuse drawn constants that an action also sets, and drawn vectors without a row for each robot."""
        for name, value in constants.items():
            if value.dim() == 1:
                raise InputError(
                    f"Task.constants: {name}: expected a row for each robot, or one number () for all, got "
                    f"{tuple(value.shape)}: draw it with a count, such as draws.uniform(low, high, 1)"
                )
        if hidden := sorted(constants.keys() & self.set_by_actions):
            raise InputError(
                f"Task.constants: {hidden[0]} is drawn for an episode and set by an action, which hides what is drawn: "
                "leave out one"
            )

    @property
    def set_by_actions(self) -> set[str]:
        """Names of the constants that actions set."""
        return {action.name for action in self.actions if isinstance(action, Constant)}

    @property
    def low(self) -> Tensor:
        """Lower bounds of an action (k,)."""
        return torch.cat([torch.full((a.count,), a.low, dtype=torch.float64, device="cpu") for a in self.actions])

    @property
    def high(self) -> Tensor:
        """Upper bounds of an action (k,)."""
        return torch.cat([torch.full((a.count,), a.high, dtype=torch.float64, device="cpu") for a in self.actions])
