"""Trials of users' forces and energies at several batch sizes: each robot has to be independent of all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdismech.elastic import ElasticTerm, Stencil
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.model.differences import rounding, same
from torchdismech.model.other_weights import other_weights, with_other_weights
from torchdismech.model.per_robot import hint_of_robots
from torchdismech.model.user_code import another_dtype, force_label, holds_users_code, not_deterministic, term_label
from torchdismech.origin import class_name
from torchdismech.robot.state import Control, State, tensor_fields
from torchdismech.values import with_rows

__all__ = ["refuse_odd_force", "refuse_odd_term"]


def refuse_odd_force(force: Force, robots: int | None, state: State, control: Control) -> None:
    """Refuse a force that cannot be evaluated for the trial robots, or whose result for one depends on the others."""

    def value(rows: slice) -> Tensor:
        with with_rows(force, state.batch if robots else None, rows):
            return force(state.rows(rows), control.rows(rows))

    _refuse_odd_batches(_Trial(force, force_label(force), value, state, state.q.shape[1], "(B, n)"))


def refuse_odd_term(term: ElasticTerm, robots: int | None, state: State, control: Control) -> None:
    """Refuse a term that cannot be evaluated for the trial robots, or whose result for one depends on the others."""

    def value(rows: slice) -> Tensor:
        at = state.rows(rows)
        with with_rows(term, state.batch if robots else None, rows):
            q, stencil = at.q.t().contiguous(), term.stencil
            if holds_users_code(stencil):
                constants = stencil.constants(at, control.rows(rows))
                _refuse_other_strains(stencil, stencil.strain(stencil.local(q), *constants))
            return term.densities(q, term.constants(at, control.rows(rows))).t()

    sentence = f" An energy is given a tuple of its strains, {', '.join(term.stencil.strains)}, each (stencils, B)."
    what = "(B, stencils) of the densities"
    _refuse_odd_batches(_Trial(term, term_label(term), value, state, term.stencil.count, what, sentence))


def _refuse_other_strains(stencil: Stencil, strains: Any) -> None:
    """Refuse the result of a stencil's strain() unless it is a tuple with one tensor for each strain."""
    parts = strains if isinstance(strains, tuple | list) else None
    if parts is not None and len(parts) == len(stencil.strains) and all(isinstance(x, Tensor) for x in parts):
        return
    got = type(strains).__name__ if parts is None else f"({', '.join(type(x).__name__ for x in parts)})"
    raise TypeError(f"{class_name(stencil)}.strain(): expected a tuple of a tensor for each strain, got {got}")


@dataclass(frozen=True)
class _Trial:
    """A user's module with a function that evaluates it for some robots of a trial state.

    Attributes
    ----------
    name : of the module in messages.
    value : returns the module's results (robots, count) for a slice of the robots.
    count, what : number of results for each robot, and what messages call their shape.
    arguments : a sentence for messages on the arguments that the module gets.
    """

    module: nn.Module
    name: str
    value: Callable[[slice], Tensor]
    state: State
    count: int
    what: str
    arguments: str = ""

    @torch.no_grad()
    def of(self, rows: slice) -> Tensor:
        """Return the results for a slice of the robots; refuse errors in the evaluation, and a wrong shape or dtype."""
        robots = rows.stop - rows.start
        hint = self.arguments + hint_of_robots(self.module, self.state.batch)
        try:
            results = self.value(rows).detach()
        except Exception as error:
            if isinstance(error, InputError) and str(error).startswith(self.name):  # its message is complete
                raise InputError(f"{error}.{hint}") from error
            # tensors for another number of robots, which the hint is about, cause only these errors
            why = hint if isinstance(error, RuntimeError | IndexError) else self.arguments
            of = f"{robots} robot{'s' * (robots > 1)}"
            raise InputError(f"{self.name}: cannot be evaluated for {of}, at a trial state: {error}.{why}") from error
        if tuple(results.shape) != (robots, self.count):
            raise InputError(
                f"{self.name}: expected shape {self.what} = {(robots, self.count)} for {robots} robots, got "
                f"{tuple(results.shape)}.{hint}"
            )
        if results.dtype != self.state.q.dtype:
            raise InputError(another_dtype(self.name, results, self.state.q))
        return results


def _refuse_odd_batches(trial: _Trial) -> None:
    """Refuse a module whose result for a robot depends on the rest of the batch, with its own or other weights."""
    wrong = _dependence_on_others(trial)
    if wrong is not None:
        raise InputError(wrong)
    if not other_weights(trial.module):
        return
    with with_other_weights(trial.module):
        try:
            wrong = _dependence_on_others(trial)
        except InputError:  # a failure with weights that the module does not have is no fault of it
            return
    if wrong is not None:
        raise InputError(f"{wrong}. It shows with other weights than those it starts with, as training will find")


def _dependence_on_others(trial: _Trial) -> str | None:
    """Return, as text, how the results for a robot depend on more than its own state; None if they do not."""
    state, batch = trial.state, trial.state.batch
    before = [tensor.clone() for tensor in state.fields()]
    alone = [slice(row, row + 1) for row in sorted({0, batch - 1})]
    among, *results_alone = [trial.of(rows) for rows in (slice(0, batch), *alone)]
    for field, old, new in zip(tensor_fields(state), before, state.fields(), strict=True):
        if not torch.equal(old, new):
            return (
                f"{trial.name}: changes State.{field} in place, which belongs to the step: work on a copy (.clone()), "
                "or without operations in place"
            )
    if not same(trial.of(slice(0, batch)), among):
        return not_deterministic(trial.name)
    close = rounding(among)
    least = close * max(1.0, float(among.nan_to_num(0, 0, 0).abs().max()))  # rounding of differences of large numbers
    for rows, result in zip(alone, results_alone, strict=True):
        if not bool(torch.isclose(among[rows], result, rtol=close, atol=least, equal_nan=True).all()):
            return (
                f"{trial.name}: a robot alone gives other numbers than the same robot among others (robot {rows.start} "
                f"of {batch}); each is for itself (no mean over the batch; call eval() on a BatchNorm, or take a "
                "LayerNorm), and every robot of a batch counts: x[0] is the first robot alone"
            )
    return None
