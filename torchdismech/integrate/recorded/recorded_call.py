"""RecordedCall: one function of the equations of a step, recorded on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchdismech.native.graphs import recorded
from torchdismech.robot.state import State

__all__ = ["RecordedCall"]


class RecordedCall:
    """A function of equations and tensors, which is called as the function itself is.

    Parameters
    ----------
    function : of the tensors, with the equations in it; it returns a tensor, a state, or several tensors, some None.
    given : tensors like all that it is called with.
    pool : where what it makes on the way lives; None: in memory of its own.
    """

    def __init__(self, function: Callable[..., Any], given: Sequence[Tensor], pool: Any = None):
        self._given = [tensor.clone() for tensor in given]
        self._tape = recorded(partial(function, *self._given), given[0].device, pool)

    def __call__(self, _: Any, *given: Tensor) -> Any:
        """Return what the function does of these tensors, after the equations that it has in it."""
        return _copied(self.replayed(*given))

    def replayed(self, *given: Tensor) -> Any:
        """Return what the function does of these tensors, in memory that the next call writes to."""
        for own, new in zip(self._given, given, strict=True):
            own.copy_(new)
        return self._tape.replay()


def _copied(outputs: Any) -> Any:
    """Return copies, as the next call writes the tensors anew."""
    if isinstance(outputs, State):
        return outputs.with_fields(map(torch.clone, outputs.fields()))
    if isinstance(outputs, Tensor):
        return outputs.clone()
    return [None if tensor is None else tensor.clone() for tensor in outputs]
