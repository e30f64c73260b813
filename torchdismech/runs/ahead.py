"""StepsAhead: hands out, frame by frame, the steps of a course that a run has already taken (used by `rollout`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchdismech.integrate.gradients.course import Course
from torchdismech.integrate.info import SeveralSteps
from torchdismech.model import Model
from torchdismech.robot.state import Control, State

__all__ = ["StepsAhead"]

# Limits on one evaluation of the energies of several frames: rows of the joined batch, and rows times dofs. It pays
# since an evaluation for one robot takes as long as for a hundred.
MOST_ROWS, MOST_NUMBERS = 256, 200_000


class StepsAhead:
    """The steps of a course, in which no robot failed, handed out one part after another; no gradients pass.

    Parameters
    ----------
    course : the steps, already taken, with the states after each.
    every : number of steps from one frame of the run to the next.
    """

    def __init__(self, model: Model, course: Course, every: int):
        self._model, self._course, self._every = model, course, every
        self._states = [field.unbind(0)[1:] for field in course.fields]
        self._infos = [tensor.unbind(0) for tensor in course.infos.tensors()]
        rows = min(MOST_ROWS, MOST_NUMBERS // course.after.q.shape[1]) if model.has_own_energies else 1
        self._frames_at_once = max(rows // course.after.batch, 1)
        self._energies: dict[int, Mapping[str, Tensor]] = {}  # by the number of the step before the frame
        self._gone = 0

    @property
    def left(self) -> int:
        """Number of steps of the course that are not handed out yet."""
        return len(self._course.q) - self._gone

    def next(self, most: int) -> tuple[Control, State, SeveralSteps]:
        """Hand out the next steps, at most `most`: the control of the last, the state after it, how they all went."""
        first = self._gone
        self._gone += min(most, self.left)
        last = self._gone - 1
        return self._course.controls[last], self._state(last), self._went(first, last)

    def energies(self) -> Mapping[str, Tensor]:
        """Return the energies (B,) [J] by name after the last step that was handed out, where a frame has to be.

        Those of the next frames in the course are evaluated along with them and kept for the calls to come.
        """
        last = self._gone - 1
        if last not in self._energies:
            numbers = range(last, len(self._course.q), self._every)[: self._frames_at_once]
            self._energies = dict(zip(numbers, self._energies_after(numbers), strict=True))
        return self._energies[last]

    def _energies_after(self, numbers: range) -> list[Mapping[str, Tensor]]:
        """Return the energies (B,) [J] by name after each of the steps with these numbers, in one evaluation."""
        controls = [self._course.controls[number] for number in numbers]
        if len(numbers) == 1:
            return [self._model.energies(self._state(numbers[0]), controls[0])]
        after = slice(numbers[0] + 1, numbers[-1] + 2, numbers.step)
        states = self._course.after.with_fields([field[after].flatten(0, 1) for field in self._course.fields])
        found = self._model.energies_of_steps(states, _joined(controls), len(numbers))
        parts = [energy.view(len(numbers), -1).unbind(0) for energy in found.values()]
        return [dict(zip(found, of_one, strict=True)) for of_one in zip(*parts, strict=True)]

    def _state(self, number: int) -> State:
        """Return the state after the step of this number.

        It is a copy where some states of the course are not in frames: a view would keep the memory of all alive.
        """
        fields = [rows[number] for rows in self._states]
        return self._course.after.with_fields(fields if self._every == 1 else map(torch.clone, fields))

    def _went(self, first: int, last: int) -> SeveralSteps:
        """Return how the steps from number `first` to number `last`, both included, went."""
        infos = self._course.infos
        of_last = infos.with_tensors([rows[last] for rows in self._infos])
        return SeveralSteps.of_steps(infos, slice(first, last + 1), of_last)


def _joined(controls: Sequence[Control]) -> Control:
    """Return controls that set the same fields as one control, whose rows are those of the first, then the second..."""
    tensors = [control.tensors() for control in controls]
    return Control.of({name: torch.cat([own[name] for own in tensors]) for name in tensors[0]})
