"""Assembly: sums the gradients and Hessians of all elastic terms of a robot into its force and sparse stiffness.

Forces that are sums over stencils ("loads", each with a `term`) are assembled along with them, after the elastic terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.compilation import Compilation
from torchdismech.elastic.fused import FusedTerm, Quantity
from torchdismech.elastic.scatters import PlacedHessians, force_scatter, stencils_at_clamped_dofs, stiffness_scatter
from torchdismech.elastic.term import ElasticTerm
from torchdismech.elastic.term_constants import TermConstants
from torchdismech.fused import program_accepts, traced, values_of
from torchdismech.sparse import Pattern

__all__ = ["Assembly", "dofs_of"]


def _written_out(q: Tensor) -> Tensor:
    return q.t().clone(memory_format=torch.contiguous_format)


# The transposition is an operator of its own, so that a compiled graph writes q to memory once; otherwise the compiler
# repeats it wherever a stencil reads q.
_OPERATORS = torch.library.Library("torchdismech", "FRAGMENT")
_OPERATORS.define("batch_last(Tensor q) -> Tensor")
_OPERATORS.impl("batch_last", _written_out, "CompositeExplicitAutograd")
torch.library.register_autograd("torchdismech::batch_last", lambda ctx, gradient: gradient.t())


def dofs_of(q: Tensor) -> Tensor:
    """Return q (B, n) as a contiguous (n, B), the layout that stencils read."""
    return torch.ops.torchdismech.batch_last(q) if traced() else _written_out(q)


class Assembly(nn.Module):
    """Evaluates all terms of a robot, and sums their gradients and Hessians into forces and matrix values.

    All terms write into one buffer, which one sparse product sums: few calls, and one pass over the matrix. Each
    term with closed forms is one loop on a CPU or one kernel on a GPU (`elastic.fused`). Wherever a method takes the
    constants of all terms, or a term's index `which`, the order is that of `terms`, then `loads`.

    Parameters
    ----------
    terms : elastic terms.
    loads : forces that have a term, too (see `forces.Force`).
    n : number of dofs.
    unknown : (n,) the number of each dof among the unknowns, -1 where clamped.
    pattern : of the matrix.
    dtype : of the coefficients of the sums.
    compilation : decides whether terms in closed form run compiled; derivatives by autograd run eagerly.
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
        self._owners = (terms, loads)  # in a tuple, as the model has registered these modules already
        terms = self.terms
        # terms with closed forms come first in the buffers, so that one compiled function can write them all
        self.order = sorted(range(len(terms)), key=lambda k: not terms[k].closed_form)
        self.count_closed = sum(term.closed_form for term in terms)
        ordered = [terms[k] for k in self.order]
        stencils = [term.stencil for term in ordered]
        self.scatter_force = force_scatter(stencils, n, dtype)
        placed = [PlacedHessians.of(stencil, unknown, pattern) for stencil in stencils]
        # pairs of variables with no entry in the matrix, as their dofs are clamped, are left out: in planar robots most
        self._wanted = {k: of_term.wanted for k, of_term in zip(self.order, placed, strict=True)}
        self._fused = {k: FusedTerm(wanted) for k, wanted in self._wanted.items()}
        reach = (stencils_at_clamped_dofs(stencil, unknown) for stencil in stencils)
        self._at_clamped = dict(zip(self.order, reach, strict=True))
        self._only_clamped_gradients = False
        self.scatter_stiffness = stiffness_scatter(placed, pattern, dtype)

    @property
    def terms(self) -> list[ElasticTerm]:
        """The model's present terms, then those of its loads."""
        terms, loads = self._owners
        return [*terms, *(load.term for load in loads)]

    def ordered(self) -> list[ElasticTerm]:
        """Return the terms in the order of the buffers, those with closed forms first."""
        terms = self.terms
        return [terms[k] for k in self.order]

    @contextmanager
    def only_clamped_gradients(self) -> Iterator[None]:
        """Within this context, let backward passes differentiate forces by q at clamped dofs only.

        Gradients by free dofs are not needed there. Loops on a CPU then differentiate only the few springs that depend
        on a clamped dof.
        """
        self._only_clamped_gradients = True
        try:
            yield
        finally:
            self._only_clamped_gradients = False

    def record(self, q: Tensor, constants: Sequence[TermConstants]) -> None:
        """Record all programs at q (n, B), before a function is compiled as a whole that evaluates the terms."""
        if program_accepts(q):
            for k, term in zip(self.order, self.ordered(), strict=True):
                self._fused[k].record(term, q, constants[k])

    def loops(self, q: Tensor, constants: Sequence[TermConstants]) -> list[str]:
        """Return the names of the terms that are evaluated at q (n, B) by compiled loops."""
        if not program_accepts(q):
            return []
        pairs = zip(self.order, self.ordered(), strict=True)
        return [term.name for k, term in pairs if self._fused[k].program(term, q, constants[k], "hessian")]

    def force(self, q: Tensor, constants: Sequence[TermConstants]) -> Tensor:
        """Return the elastic force (n, B) at q (n, B)."""
        if program_accepts(q):
            return self.scatter_force(self._gradients_of_all(q, constants, with_hessians=False)[0])
        closed, others = self.order[: self.count_closed], self.order[self.count_closed :]
        gradients = self.compilation.compiled(Assembly._gradients, q.shape[1], q)
        parts = [gradients(self, q, constants, closed)] if closed else []
        parts += [self._gradients(q, constants, [k]) for k in others]
        return self.scatter_force(_joined(parts, q))

    def force_and_stiffness(self, q: Tensor, constants: Sequence[TermConstants]) -> tuple[Tensor, Tensor]:
        """Return the elastic force (n, B) and the values (nnz, B) of the stiffness at q (n, B)."""
        if program_accepts(q):
            first, second = self._gradients_of_all(q, constants, with_hessians=True)
            return self.scatter_force(first), self.scatter_stiffness(second)
        closed, others = self.order[: self.count_closed], self.order[self.count_closed :]
        both = self.compilation.compiled(Assembly._gradients_and_hessians, q.shape[1], q)
        parts = [both(self, q, constants, closed)] if closed else []
        parts += [self._gradients_and_hessians(q, constants, [k]) for k in others]
        gradients, hessians = ([pair[k] for pair in parts] for k in range(2))
        return self.scatter_force(_joined(gradients, q)), self.scatter_stiffness(_joined(hessians, q))

    def strains(self, which: int, q: Tensor, constants: TermConstants) -> dict[str, Tensor]:
        """Return the strains (S, B) by name of the term with index `which` at q (n, B)."""
        term, rows = self.terms[which], self._by_loop(which, q, constants, "strains")
        if rows is not None:
            return dict(zip(term.stencil.strains, rows.unflatten(0, (-1, term.stencil.count)), strict=True))
        evaluated = self.compilation.compiled(_strains, q.shape[1], q) if term.closed_form else _strains
        return dict(zip(term.stencil.strains, evaluated(term, q, constants), strict=True))

    def energies(self, which: int, q: Tensor, constants: TermConstants) -> dict[str, Tensor]:
        """Return the energy (B,) [J] of each part, by name, of the term with index `which` at q (n, B)."""
        term = self.terms[which]
        parts = self._fused[which].parts(term, q, constants) if program_accepts(q) else None
        if parts is None:
            return {name: part.sum(0) for name, part in term.parts(q, constants).items()}
        names, program = parts
        densities = values_of([program], q.shape[1])[0].unflatten(0, (len(names), term.stencil.count))
        return dict(zip(names, densities.sum(1).unbind(), strict=True))

    def elastic_strains(self, which: int, q: Tensor, constants: TermConstants) -> tuple[Tensor, ...]:
        """Return the elastic strains, each (S, B), of the term with index `which` at q (n, B)."""
        term, rows = self.terms[which], self._by_loop(which, q, constants, "strains")
        strains = term.strains(q, constants) if rows is None else rows.unflatten(0, (-1, term.stencil.count)).unbind()
        return term.scaled(strains, constants)

    def gradient(self, which: int, q: Tensor, constants: Sequence[TermConstants]) -> Tensor:
        """Return the gradient (variables x springs, B) of the term `which` by its local variables at q (n, B)."""
        rows = self._by_loop(which, q, constants[which], "gradient")
        return self._gradients(q, constants, [which]) if rows is None else rows

    def _by_loop(self, which: int, q: Tensor, constants: TermConstants, quantity: Quantity) -> Tensor | None:
        """Return what a compiled loop computes of a term, (values, B); None if the term has no loop."""
        program = self._fused[which].program(self.terms[which], q, constants, quantity) if program_accepts(q) else None
        return None if program is None else values_of([program], q.shape[1])[0]

    def _gradients_of_all(
        self, q: Tensor, constants: Sequence[TermConstants], with_hessians: bool
    ) -> tuple[Tensor, Tensor]:
        """Return gradients and packed Hessians of all terms, (sources, B) in the order of the buffers.

        Terms with a program are evaluated by it, runs of them in one call; others by torch.
        """
        parts, calls, differentiated = [], [], []
        quantity: Quantity = "hessian" if with_hessians else "gradient"
        for k, term in zip(self.order, self.ordered(), strict=True):
            program = self._fused[k].program(term, q, constants[k], quantity)
            if program is not None:
                calls.append(program)
                reads_q = program[0].places[0] == 0
                # the indices of these springs are in the host's memory, so on a GPU all springs are differentiated
                differentiated.append(
                    self._at_clamped[k] if reads_q and self._only_clamped_gradients and q.is_cpu else None
                )
                continue
            if calls:
                parts.append(values_of(calls, q.shape[1], differentiated))
                calls, differentiated = [], []
            parts.append(self._by_torch(k, q, constants, with_hessians))
        if calls:
            parts.append(values_of(calls, q.shape[1], differentiated))
        return _joined([pair[0] for pair in parts], q), _joined([pair[1] for pair in parts], q)

    def _by_torch(
        self, which: int, q: Tensor, constants: Sequence[TermConstants], with_hessian: bool
    ) -> tuple[Tensor, Tensor]:
        """Return gradient and packed Hessian (sources, B) of one term without a program, evaluated by torch.

        On a GPU it runs compiled, if the term has closed forms and the model compiles.
        """
        compiles = q.is_cuda and self.terms[which].closed_form

        def own(function: Callable) -> Callable:
            return self.compilation.compiled(function, q.shape[1], q) if compiles else function

        if with_hessian:
            return own(Assembly._gradients_and_hessians)(self, q, constants, [which])
        return own(Assembly._gradients)(self, q, constants, [which]), q.new_empty(0, q.shape[1])

    def _gradients(self, q: Tensor, constants: Sequence[TermConstants], which: Sequence[int]) -> Tensor:
        """Return the gradients (sources, B) of the terms with indices `which` by their local variables."""
        terms = self.terms
        parts = [terms[k].gradient(q, constants[k]) for k in which]
        return torch.cat([row for part in parts for row in part])

    def _gradients_and_hessians(
        self, q: Tensor, constants: Sequence[TermConstants], which: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return gradients and packed Hessians (sources, B) of the terms with indices `which` by local variables."""
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
