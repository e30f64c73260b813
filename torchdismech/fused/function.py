"""Fused: an elementwise function of tensors that runs as compiled code where possible, and in torch elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchdismech.errors import warn
from torchdismech.fused.differentiation import is_differentiated, values_of
from torchdismech.fused.making import program_of
from torchdismech.fused.program import Program, ProgramCall
from torchdismech.fused.symbols import Leaf
from torchdismech.native import Unavailable, library
from torchdismech.native.gpu import kernels
from torchdismech.origin import is_of_library

__all__ = ["Fused", "compiled_code_accepts", "is_own", "program_accepts", "warn_if_broken"]

CONTAINERS = (nn.ModuleDict, nn.ModuleList)


def compiled_code_accepts(*tensors: Tensor) -> bool:
    """Return whether compiled code may take tensors: plain CPU tensors, without autograd, functorch or forward mode.

    Inside `torch.compile` the device alone counts, beside autograd.
    """
    differentiates = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not differentiates and _are_numbers(tensors)


def program_accepts(*tensors: Tensor) -> bool:
    """Return whether a program may take tensors: plain tensors on a CPU or a GPU, without functorch or forward mode.

    They may require gradients within `differentiated` only.
    """
    differentiates = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if differentiates and not is_differentiated():
        return False
    return _are_numbers(tensors, "cuda" if tensors[0].is_cuda else "cpu")


def _are_numbers(tensors: Sequence[Tensor], device: str = "cpu") -> bool:
    """Return whether tensors are plain ones on this kind of device, outside of functorch and forward-mode AD."""
    compiling = torch.compiler.is_compiling()
    for x in tensors:
        if x.device.type != device or not (compiling or type(x) in (Tensor, nn.Parameter)):
            return False
    if compiling:
        return True
    return torch._C._functorch.peek_interpreter_stack() is None and torch.autograd.forward_ad._current_level < 0


class Fused:
    """A function of tensors that broadcast to (S, B), which returns a list of such tensors, run as one loop or kernel.

    Parameters
    ----------
    function : made of arithmetic, the functions in `symbols.FUNCTIONS`, and rows `x[index]` of matrices (n, B).
    name : name of the function in warnings.
    compiles : False lets torch evaluate it always: for users' code, which may change in ways that a record cannot see.
    """

    def __init__(self, function: Callable[..., Sequence], name: str, compiles: bool = True):
        self.function, self.name, self.compiles = function, name, compiles
        self._programs: dict[tuple, Program | None] = {}
        # (argument, dimension) of those whose sizes programs depend on, by the kinds of tensors
        self._taken_apart: dict[tuple, set[tuple[int, int]]] = {}

    def __reduce__(self) -> tuple:
        return Fused, (self.function, self.name, self.compiles)

    def __call__(self, springs: int, *tensors: Tensor) -> Tensor:
        """Return the k values (k, S, B) of the function; the last dimension of the first tensor has to be B."""
        robots = tensors[0].shape[-1]
        program = self.program(tensors)
        if program is None:
            return torch.stack([value.expand(springs, robots) for value in self.function(*tensors)])
        read = program.read_among(tensors)
        if robots >= program.lanes:
            read = [_robots_together(tensor) for tensor in read]
        values, _ = values_of([ProgramCall(program, springs, read)], robots)
        return values.unflatten(0, (program.counts[0], springs))

    def of_columns(self, *tensors: Tensor) -> Tensor:
        """Return the k values (k, C) of the function for tensors (.., C) or (), column by column, without springs."""
        columns = tensors[0].shape[-1]
        program = self.program(tensors)
        if program is None:
            return torch.stack([value.expand(columns) for value in self.function(*tensors)])
        return values_of([ProgramCall(program, 1, program.read_among(tensors))], columns)[0]

    def program(self, tensors: Sequence[Tensor]) -> Program | None:
        """Return the program for tensors of these kinds; None where torch has to evaluate the function."""
        if not self.compiles or torch.compiler.is_compiling() or not program_accepts(*tensors):
            return None
        device = tensors[0].device.type
        kind = (device, *[(tensor.dim(), tensor.dtype) for tensor in tensors])
        key = self._with_sizes(kind, tensors)
        if key not in self._programs:
            if any(tensor.dtype not in (tensors[0].dtype, torch.int64) for tensor in tensors):
                return None  # torch promotes them to a common dtype
            try:
                shapes = [tuple(tensor.shape) for tensor in tensors]
                program: Program | None = program_of(partial(self._traced, kind), shapes, tensors[0].dtype, device)
                if program and any(tensors[place].dtype != program.dtype for place in program.value_places):
                    program = None  # integers that are used as values, and not as indices, are for torch, too
            except Unavailable as error:
                program = None
                warn_if_broken(self.name, error, device)
            key = self._with_sizes(kind, tensors)  # by now it is known which sizes count
            self._programs[key] = program
        return self._programs[key]

    def _with_sizes(self, kind: tuple, tensors: Sequence[Tensor]) -> tuple:
        """Return a kind of tensors with those of their sizes that programs depend on."""
        return (kind, *[tensors[place].shape[dim] for place, dim in self._taken_apart.get(kind, ())])

    def _traced(self, kind: tuple, leaves: list[Leaf]) -> tuple[Sequence, Sequence]:
        """Return the values for symbols in place of tensors of a kind, and note which sizes they depend on."""
        values = self.function(*leaves)
        self._taken_apart.setdefault(kind, set()).update(leaves[0].record.taken_apart)
        return values, []


def _robots_together(tensor: Tensor) -> Tensor:
    """Return a tensor (.., B) with stride 1 along robots, or 0: copying it is faster than gathering its vectors."""
    apart = tensor.dim() > 1 and tensor.stride(-1) not in (0, 1)
    return tensor.contiguous() if apart else tensor


def warn_if_broken(name: str, error: Unavailable, device: str = "cpu") -> None:
    """Warn that torch evaluates a function whose code does not compile, unless no code compiles for this device.

    If there is no compiler at all, the function is not at fault; `torchdismech check` says what is missing.
    """
    try:
        library() if device == "cpu" else kernels()
    except Unavailable:
        return
    warn(f"{name}: torch evaluates it, which is slower: {error}", RuntimeWarning)


def is_own(module: nn.Module) -> bool:
    """Return whether a module is of the library's classes, or a container, and none of its tensors is parametrized."""
    own = is_of_library(module) or type(module) in CONTAINERS
    return own and not parametrize.is_parametrized(module)
