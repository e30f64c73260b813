"""RecordedCall: one function of the equations of a step, recorded on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from torchdismech.native.graphs import recorded
from torchdismech.robot.state import State

__all__ = ["RecordedCall"]


class RecordedCall:
    """The recording of a function of equations and tensors, called with the same arguments as the function.

    Parameters
    ----------
    function : of the tensors alone, with the equations bound in it; it returns a tensor, a state, or several tensors,
        some None.
    tensors : of the shapes and dtypes that it will be called with.
    pool : memory for intermediate results, shared with other recordings; None: memory of its own.
    """

    def __init__(self, function: Callable[..., Any], tensors: Sequence[Tensor], pool: Any = None):
        self._buffers = [tensor.clone() for tensor in tensors]
        self._tape = recorded(partial(function, *self._buffers), tensors[0].device, pool)

    def __call__(self, _: Any, *tensors: Tensor) -> Any:
        """Return copies of what the function returns for these tensors.

        The first argument, in the place of the equations, is ignored: the recording holds its own.
        """
        return _copied(self.replayed(*tensors))

    def replayed(self, *tensors: Tensor) -> Any:
        """Return what the function returns for these tensors, in memory that the next call overwrites."""
        for buffer, new in zip(self._buffers, tensors, strict=True):
            buffer.copy_(new)
        return self._tape.replay()


def _copied(outputs: Any) -> Any:
    """Return copies of the outputs, which the next call overwrites."""
    if isinstance(outputs, State | Tensor):
        return outputs.clone()
    return [None if tensor is None else tensor.clone() for tensor in outputs]
