"""The elastic terms of a robot together: their forces and their stiffness, summed into vectors and matrices.

So are loads that are sums over stencils, each by its `term`; they come after the elastic terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.compilation import Compilation
from torchdismech.elastic.fused import Asked, FusedTerm
from torchdismech.elastic.scatters import PlacedHessians, force_scatter, stencils_at_clamped_dofs, stiffness_scatter
from torchdismech.elastic.term import ElasticTerm
from torchdismech.elastic.term_constants import TermConstants
from torchdismech.fused import programs_take, values_of, watched
from torchdismech.sparse import Pattern

__all__ = ["Assembly", "dofs_of"]


def _written_out(q: Tensor) -> Tensor:
    return q.t().clone(memory_format=torch.contiguous_format)


# As an operator, so that a compiled graph has q in memory once: else it makes it anew wherever a stencil reads it.
_OPERATORS = torch.library.Library("torchdismech", "FRAGMENT")
_OPERATORS.define("batch_last(Tensor q) -> Tensor")
_OPERATORS.impl("batch_last", _written_out, "CompositeExplicitAutograd")
torch.library.register_autograd("torchdismech::batch_last", lambda ctx, gradient: gradient.t())


def dofs_of(q: Tensor) -> Tensor:
    """Return q (n, B), as stencils read it, for q (B, n)."""
    return torch.ops.torchdismech.batch_last(q) if watched() else _written_out(q)


class Assembly(nn.Module):
    """Where the gradients and Hessians of all terms' springs go in forces and in the matrix.

    All terms write into one buffer, which one sparse product sums: few calls, and one pass over the matrix. Each
    term with closed forms is one loop, or one kernel on a GPU (`elastic.fused`).

    Parameters
    ----------
    terms : elastic terms.
    loads : forces that have a term, too (see `forces.Force`). The constants of a step are in the order of both.
    n : number of dofs.
    unknown : (n,) the number of each dof among the unknowns, -1 where clamped.
    pattern : of the matrix.
    dtype : of the coefficients of the sums.
    compilation : says whether they run compiled; derivatives by autograd run eagerly.
    """

    def __init__(
        self,
        terms: Sequence[ElasticTerm],
        loads: Sequence[Any],
        n: int,
        unknown: np.ndarray,
        pattern: Pattern,
        dtype: torch.dtype,
        compilation: Compilation,
    ):
        super().__init__()
        self.compilation = compilation
        self._owners = (terms, loads)  # the model's own, not registered a second time
        terms = self.terms
        # terms with closed forms come first in the buffers: one kernel may write them
        self.order = sorted(range(len(terms)), key=lambda k: not terms[k].closed_form)
        self.count_closed = sum(term.closed_form for term in terms)
        ordered = [terms[k] for k in self.order]
        stencils = [term.stencil for term in ordered]
        self.scatter_force = force_scatter(stencils, n, dtype)
        placed = [PlacedHessians.of(stencil, unknown, pattern) for stencil in stencils]
        # pairs that reach clamped dofs alone are left out: in a planar robot these are most
        self._wanted = {k: own.wanted for k, own in zip(self.order, placed, strict=True)}
        self._fused = {k: FusedTerm(wanted) for k, wanted in self._wanted.items()}
        reach = (stencils_at_clamped_dofs(stencil, unknown) for stencil in stencils)
        self._at_clamped = dict(zip(self.order, reach, strict=True))
        self._unknowns_fixed = False
        self.scatter_stiffness = stiffness_scatter(placed, pattern, dtype)

    @property
    def terms(self) -> list[ElasticTerm]:
        """The terms of the model and of its loads as they are now."""
        terms, loads = self._owners
        return [*terms, *(load.term for load in loads)]

    def ordered(self) -> list[ElasticTerm]:
        """Return the terms in the order in which they stand in the buffers."""
        terms = self.terms
        return [terms[k] for k in self.order]

    @contextmanager
    def unknowns_fixed(self) -> Iterator[None]:
        """Meanwhile, differentiate forces by q at clamped dofs alone: gradients by q are of no use at other dofs.

        Loops then look only at the few stencils that reach a clamped dof.
        """
        self._unknowns_fixed = True
        try:
            yield
        finally:
            self._unknowns_fixed = False

    def record(self, q: Tensor, constants: Sequence[TermConstants]) -> None:
        """Get ready for functions that are compiled as a whole and evaluate the terms at q (n, B)."""
        if programs_take(q):
            for k, term in zip(self.order, self.ordered(), strict=True):
                self._fused[k].record(term, q, constants[k])

    def loops(self, q: Tensor, constants: Sequence[TermConstants]) -> list[str]:
        """Return the names of the terms that compiled loops evaluate at q (n, B)."""
        if not programs_take(q):
            return []
        pairs = zip(self.order, self.ordered(), strict=True)
        return [term.name for k, term in pairs if self._fused[k].program(term, q, constants[k], "hessian")]

    def force(self, q: Tensor, constants: Sequence[TermConstants]) -> Tensor:
        """Return the elastic force (n, B) at q (n, B)."""
        if programs_take(q):
            return self.scatter_force(self._found(q, constants, with_hessians=False)[0])
        closed, others = self.order[: self.count_closed], self.order[self.count_closed :]
        gradients = self.compilation.compiled(Assembly._gradients, q.shape[1], q)
        found = [gradients(self, q, constants, closed)] if closed else []
        found += [self._gradients(q, constants, [k]) for k in others]
        return self.scatter_force(_joined(found, q))

    def force_and_stiffness(self, q: Tensor, constants: Sequence[TermConstants]) -> tuple[Tensor, Tensor]:
        """Return the elastic force (n, B) and the values (nnz, B) of the stiffness at q (n, B)."""
        if programs_take(q):
            first, second = self._found(q, constants, with_hessians=True)
            return self.scatter_force(first), self.scatter_stiffness(second)
        closed, others = self.order[: self.count_closed], self.order[self.count_closed :]
        both = self.compilation.compiled(Assembly._gradients_and_hessians, q.shape[1], q)
        found = [both(self, q, constants, closed)] if closed else []
        found += [self._gradients_and_hessians(q, constants, [k]) for k in others]
        gradients, hessians = ([pair[k] for pair in found] for k in range(2))
        return self.scatter_force(_joined(gradients, q)), self.scatter_stiffness(_joined(hessians, q))

    def strains(self, which: int, q: Tensor, constants: TermConstants) -> dict[str, Tensor]:
        """Return the strains (S, B) of a term at q (n, B) by name: of the one with this number in the model."""
        term, found = self.terms[which], self._by_loop(which, q, constants, "strains")
        if found is not None:
            return dict(zip(term.stencil.strains, found.unflatten(0, (-1, term.stencil.count)), strict=True))
        evaluated = self.compilation.compiled(_strains, q.shape[1], q) if term.closed_form else _strains
        return dict(zip(term.stencil.strains, evaluated(term, q, constants), strict=True))

    def energies(self, which: int, q: Tensor, constants: TermConstants) -> dict[str, Tensor]:
        """Return the energy (B,) [J] of each part of a term, by its number, at q (n, B)."""
        term = self.terms[which]
        asked = self._fused[which].parts(term, q, constants) if programs_take(q) else None
        if asked is None:
            return {name: part.sum(0) for name, part in term.parts(q, constants).items()}
        names, program = asked
        found = values_of([program], q.shape[1])[0].unflatten(0, (len(names), term.stencil.count))
        return dict(zip(names, found.sum(1).unbind(), strict=True))

    def elastic_strains(self, which: int, q: Tensor, constants: TermConstants) -> tuple[Tensor, ...]:
        """Return the elastic strains, each (S, B), of a term, by its number, at q (n, B)."""
        term, found = self.terms[which], self._by_loop(which, q, constants, "strains")
        strains = term.strains(q, constants) if found is None else found.unflatten(0, (-1, term.stencil.count)).unbind()
        return term.scaled(strains, constants)

    def gradient(self, which: int, q: Tensor, constants: Sequence[TermConstants]) -> Tensor:
        """Return the gradient (sources, B) of a term, by its number, by its local variables at q (n, B)."""
        found = self._by_loop(which, q, constants[which], "gradient")
        return self._gradients(q, constants, [which]) if found is None else found

    def _by_loop(self, which: int, q: Tensor, constants: TermConstants, asked: Asked) -> Tensor | None:
        """Return the list (values, B) that a loop finds of a term; None where torch has to."""
        program = self._fused[which].program(self.terms[which], q, constants, asked) if programs_take(q) else None
        return None if program is None else values_of([program], q.shape[1])[0]

    def _found(self, q: Tensor, constants: Sequence[TermConstants], with_hessians: bool) -> tuple[Tensor, Tensor]:
        """Return the gradients and packed Hessians (sources, B) of all terms, by compiled code where there is some."""
        found, fused, looked_at = [], [], []
        asked: Asked = "hessian" if with_hessians else "gradient"
        for k, term in zip(self.order, self.ordered(), strict=True):
            program = self._fused[k].program(term, q, constants[k], asked)
            if program is not None:
                fused.append(program)
                reads_q = program[0].places[0] == 0
                # these stencils are listed in memory of the host: on a GPU all are looked at
                looked_at.append(self._at_clamped[k] if reads_q and self._unknowns_fixed and q.is_cpu else None)
                continue
            if fused:
                found.append(values_of(fused, q.shape[1], looked_at))
                fused, looked_at = [], []
            found.append(self._by_torch(k, q, constants, with_hessians))
        if fused:
            found.append(values_of(fused, q.shape[1], looked_at))
        return _joined([pair[0] for pair in found], q), _joined([pair[1] for pair in found], q)

    def _by_torch(
        self, which: int, q: Tensor, constants: Sequence[TermConstants], with_hessian: bool
    ) -> tuple[Tensor, Tensor]:
        """Return what `_found` does, of one term that has no program; on a GPU compiled where the model compiles."""
        compiles = q.is_cuda and self.terms[which].closed_form

        def own(function: Callable) -> Callable:
            return self.compilation.compiled(function, q.shape[1], q) if compiles else function

        if with_hessian:
            return own(Assembly._gradients_and_hessians)(self, q, constants, [which])
        return own(Assembly._gradients)(self, q, constants, [which]), q.new_empty(0, q.shape[1])

    def _gradients(self, q: Tensor, constants: Sequence[TermConstants], which: Sequence[int]) -> Tensor:
        """Return the gradients (sources, B) of some terms by their local variables."""
        terms = self.terms
        parts = [terms[k].gradient(q, constants[k]) for k in which]
        return torch.cat([row for part in parts for row in part])

    def _gradients_and_hessians(
        self, q: Tensor, constants: Sequence[TermConstants], which: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients and the packed Hessians (sources, B) of some terms by their local variables."""
        terms = self.terms
        parts = [terms[k].gradient_and_hessian(q, constants[k], self._wanted[k]) for k in which]
        gradients, hessians = ([row for part in parts for row in part[k]] for k in range(2))
        return torch.cat(gradients), _joined(hessians, q)


def _strains(term: ElasticTerm, q: Tensor, constants: TermConstants) -> tuple[Tensor, ...]:
    return term.strains(q, constants)


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else like.new_zeros(0, like.shape[1])
