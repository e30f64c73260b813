"""InputLayout: the order of the tensors that recordings take as the inputs of a step."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["InputLayout"]


class InputLayout(NamedTuple):
    """The places of the inputs of a step: state, robots that run, load, control, tensors of the model.

    Attributes
    ----------
    state : of the fields of the state, in their order.
    running : of the mask (B,) of the robots that are to be stepped.
    load : of the sum (B, n) of the external forces that do not change within a step; None if it is no input.
    control : of the tensors of the control.
    model : of the tensors of the model, in the order of `StepKind.movable_places`.
    """

    state: slice
    running: int
    load: int | None
    control: slice
    model: slice

    @classmethod
    def of(cls, states: int, controls: int, values: int, has_load: bool) -> InputLayout:
        """Return the places for so many tensors of the state, of the control (those that are inputs), of the model."""
        control = slice(states + 1 + has_load, states + 1 + has_load + controls)
        model = slice(control.stop, control.stop + values)
        return cls(slice(0, states), states, states + 1 if has_load else None, control, model)
