"""Recordings for a search that has left the recorded rounds of a step, on a CPU: trials, steps with friction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.recorded.recorded_call import RecordedCall
from torchdismech.integrate.search.primal_dual import after_step, first_friction, judged_step, judged_step_arguments
from torchdismech.robot.state import State
from torchdismech.solve.progress import Progress
from torchdismech.solve.search import NewtonOptions
from torchdismech.solve.trial import Measure, Move, Trial, tried

__all__ = ["search_recordings"]


def search_recordings(
    equations: StepEquations, options: NewtonOptions, progress: Progress, state: State, running: Tensor
) -> dict[Callable, Callable]:
    """Return recordings by the functions that they replace, for `RecordedEquations`.

    Parameters
    ----------
    equations, options, state : of a recorded step, on static memory.
    progress : of a search, for the shapes of its tensors.
    running : (B,) a mask of rows, as searches are given it.
    """
    recordings: dict[Callable, Callable] = {tried: _RecordedTrials(equations, options, progress)}
    if equations.model.contact.rubs:
        x = progress.x
        with_friction = [x, torch.zeros_like(x), *equations.rubbing.first_friction(state)]
        recordings[after_step] = RecordedCall(partial(after_step, equations), with_friction)
        judged_arguments = judged_step_arguments(x, options.weight, running)
        recordings[judged_step] = RecordedCall(partial(judged_step, equations), judged_arguments)
        recordings[first_friction] = RecordedCall(partial(first_friction, equations), [x])
    return recordings


class _RecordedTrials:
    """The function `solve.trial.tried`, which takes a step and judges it, recorded with the next matrix and without.

    Parameters
    ----------
    equations, options, progress : as for `search_recordings`.
    """

    def __init__(self, equations: StepEquations, options: NewtonOptions, progress: Progress):
        at, none = progress, torch.zeros_like(progress.status, dtype=torch.bool)
        of_rows = (at.status, none, options.tolerance, at.length, at.noise, at.short)
        tensors = (at.x, at.norm, torch.zeros_like(at.x), none, *of_rows)
        self._calls = {
            with_matrix: RecordedCall(partial(_tried, equations, Measure.of(options), with_matrix), tensors)
            for with_matrix in (True, False)
        }

    def __call__(
        self, equations: StepEquations, move: Move, measure: Measure, with_matrix: bool, with_noise: bool
    ) -> Trial:
        """Return what a step led to, as `tried` does.

        The measure given is ignored, as the recorded one holds; rounding noise is found only if each iterate needs it.
        """
        tensors = [tensor for tensor in move if tensor is not None]  # there is always a step
        return Trial._make(self._calls[with_matrix](equations, *tensors))


def _tried(equations: StepEquations, measure: Measure, with_matrix: bool, *move: Tensor) -> Trial:
    return tried(equations, Move._make(move), measure, with_matrix, with_noise=False)
