"""InputLayout: the order of the tensors that recordings take as the inputs of a step."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["InputLayout"]


@dataclass(frozen=True)
class InputLayout:
    """The order of the inputs of a step: state, robots that run, load, control, tensors of the model.

    Parameters
    ----------
    states, controls, values : number of tensors of the state, of the control (those that are inputs), and of the model.
    has_load : whether the sum of the external forces that do not change within a step is an input.
    """

    states: int
    controls: int
    values: int
    has_load: bool

    @property
    def state(self) -> slice:
        """Places of the fields of the state, in their order."""
        return slice(0, self.states)

    @property
    def running(self) -> int:
        """Place of the mask (B,) of the robots that are to be stepped."""
        return self.states

    @property
    def load(self) -> int | None:
        """Place of the sum (B, n) of the external forces that do not change within a step; None if it is no input."""
        return self.states + 1 if self.has_load else None

    @property
    def control(self) -> slice:
        """Places of the tensors of the control."""
        start = self.states + 1 + self.has_load
        return slice(start, start + self.controls)

    @property
    def model(self) -> slice:
        """Places of the tensors of the model, in the order of `StepKind.movable_places`."""
        start = self.control.stop
        return slice(start, start + self.values)
