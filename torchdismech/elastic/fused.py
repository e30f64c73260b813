"""FusedTerm: compiled loops for strains, gradients and Hessians of elastic terms, generated from the terms' Python.

A term's methods are recorded once, with symbols in place of tensors, and become one program (`torchdismech.fused`): a
loop over springs in which all intermediate numbers stay in registers. This is done for the library's own kinds of terms
only, as users' code may change between two steps in ways that a recording does not notice.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from torchdismech.elastic.term import ElasticTerm
from torchdismech.elastic.term_constants import TermConstants
from torchdismech.fused import (
    Leaf,
    Program,
    ProgramCall,
    Unfusable,
    is_own,
    program_accepts,
    program_of,
    warn_if_broken,
)
from torchdismech.native import Unavailable
from torchdismech.robot.plane import Plane
from torchdismech.values import Place, Values, every_module

__all__ = ["FusedTerm", "Quantity"]

# what a program computes: the strains, the gradient by the local variables, gradient and Hessian, or energy by part
Quantity = Literal["strains", "gradient", "hessian", "parts"]


class FusedTerm:
    """The programs of one elastic term, recorded when they are first asked for.

    A copy starts without recordings.

    Parameters
    ----------
    wanted : indices of the stencil's pairs of variables whose second derivatives are computed.
    """

    def __init__(self, wanted: Sequence[int]):
        self.wanted = wanted
        self._recordings: dict[tuple, list[_Recording]] = {}  # by form; several where constants are given per robot

    def __deepcopy__(self, memo: dict) -> FusedTerm:
        return FusedTerm(copy.deepcopy(self.wanted, memo))

    def __reduce__(self) -> tuple:
        return FusedTerm, (self.wanted,)

    def program(self, term: ElasticTerm, q: Tensor, constants: TermConstants, quantity: Quantity) -> ProgramCall | None:
        """Return the call of the program that computes what is asked at q (n, B); None if torch has to compute it."""
        recorded = self._program_for(term, q, constants, quantity)
        return None if recorded is None else ProgramCall(recorded[0], term.stencil.count, recorded[1])

    def parts(
        self, term: ElasticTerm, q: Tensor, constants: TermConstants
    ) -> tuple[tuple[str, ...], ProgramCall] | None:
        """Return the names of the parts of the energy and the call of the program for them; None as for `program`."""
        recorded = self._program_for(term, q, constants, "parts")
        return None if recorded is None else (recorded[2], ProgramCall(recorded[0], term.stencil.count, recorded[1]))

    def _program_for(
        self, term: ElasticTerm, q: Tensor, constants: TermConstants, quantity: Quantity
    ) -> tuple[Program, list[Tensor], tuple[str, ...]] | None:
        """Return the program for what is asked (recorded if there is none yet), its inputs, and the names of parts."""
        tensors = _flattened(constants, q)
        form = _form(quantity, q, tensors, constants.plane)
        modules = None if torch.compiler.is_compiling() else list(every_module(term))
        for recording in self._recordings.get(form, ()):
            leaves = recording.leaves(modules, q, tensors)
            if leaves is None:
                continue
            if recording.program is None or not program_accepts(*leaves):
                return None
            return recording.program, leaves, recording.names
        if modules is None:
            return None  # nothing can be recorded under torch.compile; `record` is called before it
        self._recordings.setdefault(form, []).append(_recorded(term, modules, q, constants, quantity, self.wanted))
        return self._program_for(term, q, constants, quantity)

    def record(self, term: ElasticTerm, q: Tensor, constants: TermConstants) -> None:
        """Record all programs now, for a function that is going to be compiled and cannot record them itself."""
        for quantity in get_args(Quantity):
            self.program(term, q, constants, quantity)


@dataclass(frozen=True)
class _Recording:
    """A program of a term, and the inputs that it was recorded for.

    Its leaves (possible inputs) are numbered: q, then the tensors of the term's modules, then the step's constants.

    Attributes
    ----------
    program : None if the term cannot be compiled.
    modules : the term's modules.
    places : the places (module, name) of their tensors.
    read : number, number of dimensions and dtype of each leaf that the program reads.
    names : of the parts of the energy, if the program computes these.
    """

    program: Program | None
    modules: list[nn.Module]
    places: list[Place]
    read: list[tuple[int, int, torch.dtype]]
    names: tuple[str, ...] = ()

    def leaves(self, modules: list[nn.Module] | None, q: Tensor, tensors: list[Tensor | None]) -> list[Tensor] | None:
        """Return the tensors that the program reads; None if it was recorded for other modules, dtypes or dimensions.

        `modules` None means that these are not compared.
        """
        if modules is not None and modules != self.modules:
            return None
        leaves = []
        for place, dim, dtype in self.read:
            leaf = _leaf(place, q, self.places, tensors)
            if leaf is None or leaf.dim() != dim or leaf.dtype != dtype:
                return None
            leaves.append(leaf)
        return leaves


def _form(quantity: Quantity, q: Tensor, tensors: list[Tensor | None], plane: Plane | None) -> tuple:
    """Return the key of recordings: all that a program depends on, except modules and numbers of dimensions."""
    return (quantity, plane, q.dtype == torch.float64, q.device.type, *[t is None for t in tensors])


def _leaf(place: int, q: Tensor, places: list[Place], tensors: list[Tensor | None]) -> Tensor | None:
    """Return a leaf by its number: q, a tensor of the modules, or a constant; None if there is no such tensor now."""
    if place == 0:
        return q
    if place > len(places):
        return tensors[place - 1 - len(places)]
    module, name = places[place - 1]
    held: dict = module._parameters if name in module._parameters else module._buffers
    return held.get(name)  # under compilation a parametrization may have taken the tensor's place since it was recorded


def _recorded(
    term: ElasticTerm,
    modules: list[nn.Module],
    q: Tensor,
    constants: TermConstants,
    quantity: Quantity,
    wanted: Sequence[int],
) -> _Recording:
    """Return the recording of the program for what is asked, with program None if the term cannot be compiled."""
    places = [(m, name) for m in modules for own in (m._parameters, m._buffers) for name in own]
    tensors = _flattened(constants, q)
    leaves = [_leaf(place, q, places, tensors) for place in range(1 + len(places) + len(tensors))]
    names: list[str] = []

    def values_asked(symbols: list[Leaf]) -> tuple[Sequence, Sequence]:
        inputs: list[Any] = [None if t is None else s for s, t in zip(symbols, leaves, strict=True)]
        values = Values({p: s for p, s in zip(places, inputs[1:], strict=False) if s is not None})
        stand_in = _unflattened(constants, inputs[1 + len(places) :])
        with values.in_place():
            if quantity == "strains":
                return term.strains(inputs[0], stand_in), []
            if quantity == "gradient":
                return term.gradient(inputs[0], stand_in), []
            if quantity == "parts":
                parts = term.parts(inputs[0], stand_in)
                names[:] = parts
                return list(parts.values()), []
            return term.gradient_and_hessian(inputs[0], stand_in, wanted)

    nothing = _Recording(None, modules, places, [])
    if not all(map(is_own, modules)):
        return nothing
    try:
        shapes = [() if leaf is None else tuple(leaf.shape) for leaf in leaves]
        program = program_of(values_asked, shapes, q.dtype, q.device.type)
    except Unfusable:
        return nothing
    except Unavailable as error:
        warn_if_broken(term.name, error, q.device.type)
        return nothing
    read_leaves = ((place, leaves[place]) for place in program.places)
    read = [(place, t.dim(), t.dtype) for place, t in read_leaves if t is not None]
    if any(dtype != q.dtype for place, _, dtype in read if place in program.value_places):
        return nothing
    return dataclasses.replace(nothing, program=program, read=read, names=tuple(names))


def _flattened(constants: TermConstants, like: Tensor) -> list[Tensor | None]:
    """Return the tensors of the constants as a flat list."""
    time: Any = constants.rate_time
    if time is not None and not isinstance(time, Tensor):
        time = like.new_full((), time)
    before, rate_from = (
        strains or (None,) * len(constants.natural) for strains in (constants.before, constants.rate_from)
    )
    internal = [variable for variables in constants.internal for variable in variables]
    tensors = [*constants.natural, constants.measure, constants.scale, *constants.stencil, *before, *rate_from, time]
    return [*tensors, *internal, constants.elapsed]


def _unflattened(constants: TermConstants, flat: list) -> TermConstants:
    """Return constants of the same structure, made of a list in the order of `_flattened`."""
    strains, stencil = len(constants.natural), len(constants.stencil)
    natural, measure, scale = tuple(flat[:strains]), flat[strains], flat[strains + 1]
    rest = iter(flat[strains + 2 :])
    stencil_constants, before, rate_from = (tuple(islice(rest, count)) for count in (stencil, strains, strains))
    time = next(rest)
    internal = tuple(tuple(islice(rest, len(variables))) for variables in constants.internal)
    return TermConstants(
        natural,
        measure,
        scale,
        stencil_constants,
        None if constants.before is None else before,
        None if constants.rate_from is None else rate_from,
        time,
        internal,
        next(rest),
        constants.plane,
    )
