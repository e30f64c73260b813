"""The matrix of a step at its root, and whether it is positive definite: whether the root is a minimum."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from torchdismech.integrate.candidates import constraints_at
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.search.active_set import stiffened
from torchdismech.model import Model
from torchdismech.solve.linear import largest_entry, resisting, softest_motion
from torchdismech.solve.linear.base import DirectSolver, Solver
from torchdismech.solve.progress import matrix_values

__all__ = ["Linearised", "with_contacts_closed"]

# Of the largest entry of the matrix: how stiff contacts are that bear a load. Softer ones would give way, of stiffer
# ones rounding hides how soft the rest is.
FIRM = 1e3
SPINS = 1e-3  # part of a motion that nodes have where angles alone move, but for rounding


@dataclasses.dataclass(frozen=True)
class Linearised:
    """The equations of steps at their roots, their matrix there, and whether it is positive definite.

    Attributes
    ----------
    x, values : unknowns (B, n_free), matrix (nnz, B) on a pattern, with what keeps contacts that bear a load closed.
    minima : (B,) whether a running robot's matrix is positive definite, but for rods that turn about their own axes;
        not where nodes are free to move, where that would be up to rounding.
    """

    equations: StepEquations
    x: Tensor
    pattern: Any
    values: Tensor
    minima: Tensor

    @classmethod
    def at(cls, problem: StepProblem, q: Tensor) -> Linearised | None:
        """Return the equations of a step at its root q (B, n); None where a matrix does not tell minima from saddles.

        It does not where loads have no potential, not even at rest, and with iterative solvers.
        """
        model, q = problem.model, q.detach()
        here = problem.replace(state=problem.state.detach())
        equations = here.equations(model.contact.touching(q), constraints_at(here, q))
        solver = model.solvers.of(len(q), equations.start.pairs)
        definite_only = isinstance(solver, DirectSolver) and solver.pattern.symmetric  # by Cholesky
        if not (equations.mechanics.conservative(at_rest=True) and definite_only):
            return None
        equations.prepare()
        x = model.unknowns.picked(q)
        if equations.constraints is not None:
            equations.reaction(q)  # which finds their loads
        values = matrix_values(equations, x, solver, model.unknowns.residual_weight())
        if equations.constraints is not None:
            values = _with_loaded_contacts_closed(here, equations, x, values)
        return cls(equations, x, solver.pattern, values, _minima(model, solver, values, problem.running))

    def without_ways_down(self, rows: Tensor) -> Tensor:
        """Return which robots (B,) of some rows are at no saddle: at a minimum, or free to move without any force."""
        return resisting(self.equations.solver(), self.values, rows, least=-1.0)


def _minima(model: Model, solver: Solver, values: Tensor, rows: Tensor) -> Tensor:
    """Return which of some rows (B,) have matrices that are positive definite, but for motions that move no node.

    A round rod between hinges, or a rope, may turn about its own axis: nobody calls that unstable.
    """
    minima = resisting(solver, values, rows)
    others = rows & ~minima
    if values.dtype != torch.float64 or not bool(others.any()):
        return minima
    neutral = resisting(solver, values, others, least=-1.0)
    return minima | _spinning(model, solver, values, neutral) if bool(neutral.any()) else minima


def _spinning(model: Model, solver: Solver, values: Tensor, rows: Tensor) -> Tensor:
    """Return which of some rows (B,) that are at no saddle move no node in what nothing resists."""
    nodes = (model.unknowns.index < 3 * model.body.n_nodes).to(values.device)
    moved = torch.linalg.vector_norm(softest_motion(solver, values, rows)[:, nodes], dim=1)
    return rows & (moved < SPINS)


def _with_loaded_contacts_closed(problem: StepProblem, equations: StepEquations, x: Tensor, values: Tensor) -> Tensor:
    """Return the values (nnz, B) of a matrix in which contacts that bear a load are firm.

    Those that touch without a load may open.
    """
    constraints = equations.constraints
    assert constraints is not None
    least = problem.method.tolerance(torch.zeros_like(constraints.time))[constraints.robot]
    return with_contacts_closed(equations, x, values, constraints.load[:, 0] > least)


def with_contacts_closed(equations: StepEquations, x: Tensor, values: Tensor, which: Tensor) -> Tensor:
    """Return the values (nnz, B) of a matrix at x (B, n_free) in which some contacts (S,) are firm.

    It is positive definite where the matrix itself is along all motions that keep these contacts closed.
    """
    constraints = equations.constraints
    assert constraints is not None
    diagonal = values[equations.solver().diagonal(values.device)]
    largest = largest_entry(diagonal, equations.model.unknowns.residual_weight())
    stiffness = torch.where(which, FIRM * largest[constraints.robot], 0.0).unsqueeze(1)
    return stiffened(equations, values, constraints.jacobian(equations.contacts_at(x))[:, :1], stiffness)
