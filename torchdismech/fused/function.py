"""Elementwise functions of tensors, by compiled code where it can be had and by torch elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchdismech.fused.program import Program, recorded, values_of
from torchdismech.fused.symbols import Unfusable
from torchdismech.native import Unavailable

__all__ = ["Fused", "fits"]


def fits(x: Tensor) -> bool:
    """Return whether compiled code may take x: numbers on a CPU, which nothing transforms or differentiates.

    Code that is being compiled may hold it, too.
    """
    if x.device.type != "cpu" or (torch.is_grad_enabled() and x.requires_grad):
        return False
    if torch.compiler.is_compiling():
        return True
    if type(x) is not Tensor:
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and torch.autograd.forward_ad._current_level < 0


class Fused:
    """A function of tensors that broadcast to (S, B), which returns a list of such tensors, as one loop on a CPU.

    Parameters
    ----------
    function : made of arithmetic, the functions in `symbols.FUNCTIONS`, and rows `x[index]` of matrices (n, B).
    """

    def __init__(self, function: Callable[..., Sequence]):
        self.function = function
        self._programs: dict[tuple, Program | None] = {}

    def __reduce__(self) -> tuple:
        return Fused, (self.function,)

    def __call__(self, springs: int, *tensors: Tensor) -> Tensor:
        """Return the values (k, S, B) of these tensors; the first says how many robots B there are."""
        robots = tensors[0].shape[-1]
        program = None if torch.compiler.is_compiling() or not all(map(fits, tensors)) else self._program(tensors)
        if program is None:
            return torch.stack([value.expand(springs, robots) for value in self.function(*tensors)])
        found, _ = values_of([(program, springs, [tensors[place] for place in program.places])], robots)
        return found.unflatten(0, (-1, springs))

    def _program(self, tensors: Sequence[Tensor]) -> Program | None:
        """Return the program for tensors like these, or None where torch has to evaluate the function."""
        key = tuple((tensor.dim(), tensor.dtype) for tensor in tensors)
        if key not in self._programs:
            try:
                shapes = [tuple(tensor.shape) for tensor in tensors]
                program = recorded(lambda leaves: (self.function(*leaves), []), shapes, tensors[0].dtype)
            except (Unfusable, Unavailable):
                program = None
            self._programs[key] = program
        return self._programs[key]
