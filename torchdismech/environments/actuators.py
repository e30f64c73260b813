"""What actions are to a robot: each actuator turns its numbers of an action into a part of the control of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.model import Model
from torchdismech.state import Control, State

__all__ = ["Action", "Actuator", "Constant", "Force", "Held", "controlled"]

FIELDS = ("natural_curvature", "natural_twist", "natural_hinge_angle", "rest_length")


class Action(ABC):
    """A part of an action: so many numbers, each between two bounds."""

    low: float
    high: float
    count: int

    def _bound(self, name: str, low: float, high: float) -> None:
        if not low < high:
            raise InputError(f"{name}: expected low < high, got {low} and {high}")
        self.low, self.high = float(low), float(high)

    @abstractmethod
    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with what the numbers (B, count) ask for in it."""


class Actuator(Action):
    """Natural strains: each number adds a pattern of strains to the model's own.

    Parameters
    ----------
    field : of `Control`: "natural_curvature" (numbers of all kappa1, then of all kappa2), "natural_twist",
        "natural_hinge_angle" or "rest_length".
    matrix : (elements of the field, count) what each number adds at 1, in the field's units.
    low, high : bounds of the numbers.
    """

    def __init__(self, field: str, matrix: Tensor, low: float = -1.0, high: float = 1.0):
        if field not in FIELDS:
            raise InputError(f"Actuator: field: expected one of {', '.join(FIELDS)}, got {field!r}")
        if matrix.dim() != 2 or not matrix.shape[1]:
            raise InputError(f"Actuator: matrix: expected (elements, numbers), got shape {tuple(matrix.shape)}")
        self._bound(f"Actuator({field})", low, high)
        self.field, self.matrix, self.count = field, matrix, matrix.shape[1]

    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with natural strains added to those that it has, or to the model's own."""
        own = getattr(control, self.field)
        if own is None:
            own = getattr(model.natural_strains(state.batch), self.field)
        if own is None:
            raise InputError(f"Actuator: this robot has no {self.field}")
        flat = own.transpose(1, 2).flatten(1) if own.dim() == 3 else own
        if len(self.matrix) != flat.shape[1]:
            raise InputError(
                f"Actuator({self.field}): matrix: expected {flat.shape[1]} rows, got {len(self.matrix)}: one for each "
                "element, of curvature one for kappa1 and one for kappa2 of each spring"
            )
        moved = flat + numbers.to(flat) @ self.matrix.to(flat).t()
        if own.dim() == 3:
            moved = moved.unflatten(1, (own.shape[2], own.shape[1])).transpose(1, 2)
        return control.replace(**{self.field: moved})


class Constant(Action):
    """A constant of the model, by its name in `model.places`: a pressure, a field, the speed of a fluid.

    Parameters
    ----------
    name : of the constant.
    low, high : bounds of its value, in its units.
    count : numbers that it has: 1 for a number, 3 for a vector.
    """

    def __init__(self, name: str, low: float, high: float, count: int = 1):
        self._bound(f"Constant({name})", low, high)
        self.name, self.count = name, count

    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with the constant set."""
        return control.replace(values={**control.values, self.name: numbers.to(state.q)})


class Held(Action):
    """Clamped dofs, moved from where they are at rest.

    Parameters
    ----------
    dofs : into q; they have to be clamped.
    low, high : bounds of the displacements [m or rad].
    """

    def __init__(self, dofs: Sequence[int], low: float, high: float):
        self._bound("Held", low, high)
        self.dofs, self.count = list(dofs), len(dofs)

    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with the dofs at their displaced places."""
        free = [dof for dof in self.dofs if bool(model.free[dof])]
        if free:
            raise InputError(f"Held: dofs {free} are not clamped")
        rest = torch.cat([model.nodes.flatten(), model.nodes.new_zeros(model.body.n_angles)]).expand(state.batch, -1)
        held = rest if control.clamped_q is None else control.clamped_q
        index = torch.as_tensor(self.dofs, device=state.q.device)
        return control.replace(clamped_q=held.index_copy(1, index, rest[:, index] + numbers.to(rest)))


class Force(Action):
    """Forces or torques on dofs.

    Parameters
    ----------
    dofs : into q.
    low, high : bounds [N or N m].
    """

    def __init__(self, dofs: Sequence[int], low: float, high: float):
        self._bound("Force", low, high)
        self.dofs, self.count = list(dofs), len(dofs)

    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with the forces added."""
        force = torch.zeros_like(state.q) if control.force is None else control.force
        index = torch.as_tensor(self.dofs, device=state.q.device)
        return control.replace(force=force.index_add(1, index, numbers.to(force)))


def controlled(actions: Sequence[Action], action: Tensor, state: State, model: Model) -> Control:
    """Return the control that an action (B, numbers of all) asks for; numbers are kept within their bounds."""
    control, first = Control(), 0
    for part in actions:
        numbers = action[:, first : first + part.count].clamp(part.low, part.high)
        control, first = part.added(control, numbers, state, model), first + part.count
    return control
