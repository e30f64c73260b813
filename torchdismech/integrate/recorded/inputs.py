"""InputLayout: where what a step is given stands in the list of tensors that its recordings read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["InputLayout"]


@dataclass(frozen=True)
class InputLayout:
    """The order of the inputs of a step: state, robots that run, load, control, tensors of the model.

    Parameters
    ----------
    states, controls, values : number of the tensors of the state, of the control that equations read, of the model.
    has_load : whether the sum of the external forces is an input.
    """

    states: int
    controls: int
    values: int
    has_load: bool

    @property
    def state(self) -> slice:
        """The fields of the state, in their order."""
        return slice(0, self.states)

    @property
    def running(self) -> int:
        """The robots (B,) that are to be stepped."""
        return self.states

    @property
    def load(self) -> int | None:
        """The sum (B, n) of the external forces that do not change within a step; None where it is no input."""
        return self.states + 1 if self.has_load else None

    @property
    def control(self) -> slice:
        """The tensors of the control."""
        start = self.states + 1 + self.has_load
        return slice(start, start + self.controls)

    @property
    def model(self) -> slice:
        """The tensors of the model, in the order of `StepKind.movable_places`."""
        start = self.control.stop
        return slice(start, start + self.values)

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return self.model.stop
