"""Several steps at once: the controls that go together, and how many steps are taken with one look at the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from torchdismech.errors import InputError, refuse_other_kind
from torchdismech.model import Model
from torchdismech.model.refusals import refuse_transforms
from torchdismech.robot.state import Control, State, control_of

__all__ = ["MAX_STEPS_AT_ONCE", "controls_alike", "controls_of_steps", "most_in_a_course"]

MAX_STEPS_AT_ONCE = 100  # steps with one look at the model, at most; it takes as long as one of them
MAX_NUMBERS_KEPT = 30_000_000  # numbers of states in a course at most: 240 MB, 50 steps of 270 rods of 101 nodes


def controls_of_steps(control: Control | Sequence[Control] | None, count: int) -> Sequence[Control]:
    """Return the controls of so many steps; refuse what is neither one nor a sequence of as many."""
    if control is None or isinstance(control, Control):
        return [control_of(control)] * count
    if not isinstance(control, Sequence) or len(control) != count:
        found = f"{len(control)} of them" if isinstance(control, Sequence) else type(control).__name__
        raise InputError(f"steps: control: expected a Control, or one for each of {count} steps, got {found}")
    for k, own in enumerate(control):
        refuse_other_kind(f"steps: control[{k}]", own, Control, "a Control")
    return control


def controls_alike(model: Model, state: State, control: Control, later: Iterable[Control]) -> list[Control]:
    """Return later controls up to the first that sets other fields than this one: one recording serves them all.

    A wrong one is refused.
    """
    return [*takewhile(lambda own: _is_like(model, state, control, own), later)]


def _is_like(model: Model, state: State, control: Control, later: Control) -> bool:
    if later is control:
        return True
    if control.values or later.values or later.kind != control.kind:
        return False
    model.check_numbers(later, state)
    refuse_transforms(model, state, later)
    return True


def most_in_a_course(state: State) -> int:
    """Return how many steps from a state a course may take at most, by the memory of the states that it keeps."""
    return MAX_NUMBERS_KEPT // sum(field.numel() for field in state.fields())
