"""PairEvaluations: residuals and matrices of steps in which parts of a robot may touch, by tapes and compiled code.

A tape knows memory by its address, and the pairs of each step stand at other addresses. So tapes evaluate the equations
without pairs, here called bare, and compiled code adds the contributions of the pairs to the results in a tape's
memory. Once a pattern of the matrix has served some Newton iterations, tapes for that pattern hold whole iterations,
with the calls for pairs in them (`round_tapes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.contact.pairs.pair_sums import PairSums
from torchdismech.contact.pairs.pairs import PairTable
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.recorded.recorded_call import RecordedCall
from torchdismech.integrate.recorded.round_tapes import RoundTapes
from torchdismech.integrate.recorded.search_rounds import SearchRounds
from torchdismech.integrate.search.primal_dual import after_step, expected_friction, nodal_motion
from torchdismech.native.taping import taping

__all__ = ["PairEvaluations"]


class PairEvaluations:
    """Functions of equations with pairs that may touch, by tapes and by compiled code bound to the pairs of each step.

    Parameters
    ----------
    bare : the equations without pairs, on static memory.
    bare_residual, bare_residual_and_matrix : recordings of these functions of theirs.
    x : (B, n_free), the first iterate of the step that is recorded.
    pool : the memory in which recordings keep their intermediate results.
    """

    def __init__(
        self,
        bare: StepEquations,
        bare_residual: RecordedCall,
        bare_residual_and_matrix: RecordedCall,
        x: Tensor,
        pool: Any,
    ):
        self._contacts, self._force_count = bare.model.self_contacts, bare.rubbing.force_count
        self._bare_residual, self._bare_residual_and_matrix = bare_residual, bare_residual_and_matrix
        self._force, self._fraction = torch.zeros_like(bare.base), x.new_ones(len(x), 1)
        self._less_force = RecordedCall(partial(_less_force, bare), [x, self._force], pool)
        if bare.model.contact.rubs:
            friction = bare.rubbing.first_friction(bare.start.state)
            self._motion = RecordedCall(partial(_motion, bare), [x], pool)
            self._bare_after_step = RecordedCall(
                partial(_bare_after_step, bare), [x, x, self._fraction, *friction], pool
            )
        self._rounds = RoundTapes()
        # sums for pairs of all steps so far, by kind: recordings know them by their addresses
        self._sums_by_kind: dict[tuple, PairSums] = {}
        # whether the sums know where in the matrix the blocks of this step's pairs go
        self._block_places_filled = False
        self._sums: dict[PairTable, PairSums] = {}
        self._rubbing_tables: list[PairTable] = []
        self._pairs: StepPairs | None = None

    def bind(self, pairs: StepPairs) -> bool:
        """Bind compiled code to the pairs of a step and the present laws; return whether it can evaluate them all."""
        self._pairs, self._sums, self._block_places_filled = pairs, {}, False
        self._rubbing_tables = [table for table in pairs.listed.tables if self._contacts[table.contact].rubs]
        pushing = self._contacts.force_tables(pairs.listed)
        for table in pairs.listed.tables:
            if table.contact in self._contacts.constrained_numbers:
                continue
            kind = table.contact, table.kernel, self._contacts[table.contact].constants_of_robots
            # an empty table is skipped, unless recordings call the sums that are kept for its kind
            if table not in pushing and kind not in self._sums_by_kind:
                continue
            sums = self._contacts[table.contact].bound_sums(table, self._sums_by_kind.get(kind))
            if sums is None:
                return False
            if sums is not self._sums_by_kind.get(kind):
                sums.allow_on_tapes()
            self._sums_by_kind[kind] = self._sums[table] = sums
        return True

    @property
    def recordings(self) -> dict[Callable, Callable]:
        """The methods here, by the functions of equations and searches that they replace."""
        return {
            StepEquations.unconstrained_residual: self.residual,
            StepEquations.unconstrained: self.residual_and_matrix,
            after_step: self.after_step,
            **SearchRounds(self._by_rounds).recordings,
        }

    def residual(self, _: StepEquations, x: Tensor) -> Tensor:
        """Return the residual (B, n_free), as `StepEquations.unconstrained_residual` does."""
        residual, q, velocity = self._bare_residual.replayed(x)
        force = self._force.zero_()
        for sums in self._sums.values():
            sums.add_force(q, velocity, force)
        return self._less_force.replayed(residual, force).clone()

    def residual_and_matrix(self, equations: StepEquations, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return residual (B, n_free) and matrix values (nnz, B), as `StepEquations.unconstrained` does."""
        residual, values, q, velocity = self._bare_residual_and_matrix.replayed(x)
        return self._with_pairs(equations, residual, values, q, velocity, {})

    def _by_rounds(
        self, function: Callable[..., list[Tensor]], kind: Hashable, solver: Any, tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return what a function of these equations returns, by a recording if there is one for the matrix's pattern.

        Parameters
        ----------
        kind : tells the function, and what is bound in it, from others.
        solver : the linear solver, for the pattern.
        tensors : the tensors that the function is called with.
        """
        assert self._pairs is not None
        coupling = self._pairs.coupling
        if coupling.sliding is not None:
            return function(*tensors)
        if not self._block_places_filled:
            for table, sums in self._sums.items():
                sums.block_places.fill(*coupling.block_places(table).members)
            self._block_places_filled = True
        return self._rounds.called(function, kind, (solver, *self._sums.values()), tensors)

    def after_step(self, equations: StepEquations, x: Tensor, step: Tensor, *friction: Tensor) -> list[Tensor]:
        """Return iterate, residual, matrix and friction after a step, as `primal_dual.after_step` does."""
        motion, fraction = self._motion.replayed(step), self._fraction.fill_(1.0)
        for sums in self._sums.values():
            sums.limit_step(motion, fraction)
        results = self._bare_after_step.replayed(x, step, fraction, *friction[: self._force_count])
        there, residual, values, q, velocity, *expected = results
        # copied before another recording is replayed, which may work in the same memory
        there, *expected = (tensor.clone() for tensor in (there, *expected))
        known = {}
        for table, before in zip(self._rubbing_tables, friction[self._force_count :], strict=True):
            none = torch.zeros_like(before)
            known[table] = self._sums[table].expected_friction(q, velocity, before) if table in self._sums else none
        residual, values = self._with_pairs(equations, residual, values, q, velocity, known)
        sliding = equations.sliding
        if sliding is not None:
            sliding.constrain(values)
        return [there, residual, values, *expected, *known.values()]

    def _with_pairs(
        self,
        equations: StepEquations,
        residual: Tensor,
        values: Tensor,
        q: Tensor,
        velocity: Tensor,
        known: dict[PairTable, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return a residual and matrix values with the contributions of pairs at q and velocity (B, n).

        The bare residual and values that are given are not changed.

        Parameters
        ----------
        known : the friction that a search expects of the pairs of each table.
        """
        assert self._pairs is not None
        force, at, gains = self._force.zero_(), None, equations.gains_outside_of_tapes
        if taping():  # a tape has to read the dt of each step for the gains, and the block places where they stay
            gains, at = equations.gains, {table: sums.block_places for table, sums in self._sums.items()}
        wide = self._pairs.values_with_sums(
            self._sums, q, velocity, force, values, (gains.position, gains.velocity), known, at
        )
        return self._less_force.replayed(residual, force).clone(), wide[:-1]


def _less_force(bare: StepEquations, residual: Tensor, force: Tensor) -> Tensor:
    """Return a residual (B, n_free) less the contribution of a force (B, n) that was not in it."""
    return residual - bare.residual_of(force)


def _motion(bare: StepEquations, step: Tensor) -> Tensor:
    return nodal_motion(bare, step).contiguous()  # as compiled code reads it


def _bare_after_step(bare: StepEquations, x: Tensor, step: Tensor, fraction: Tensor, *friction: Tensor) -> list[Tensor]:
    """Return iterate, residual, matrix, q, velocity and expected friction after a part of a step, without pairs.

    This is what `primal_dual.after_step` returns, and after the matrix q and velocity, where the pairs are evaluated.
    The part is a `fraction` (B, 1) of the step.
    """
    there = bare.advanced(x, fraction * step)
    _, _, *expected = expected_friction(bare, there, *friction)
    with bare.rubbing.with_tractions(expected):
        return [there, *bare.bare_residual_and_matrix(there), *expected]
