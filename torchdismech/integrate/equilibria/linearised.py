"""Linearised: the matrix of a step at its root; where it is positive definite, the root is a minimum."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from torchdismech.integrate.candidates import constraints_at
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.search.closed_contacts import stiffened
from torchdismech.model import Model
from torchdismech.solve.linear import largest_entry, null_vectors, positive_definite
from torchdismech.solve.linear.base import DirectSolver, Solver
from torchdismech.solve.progress import matrix_values

__all__ = ["Linearised", "with_contacts_closed"]

# Of the largest entry of the matrix: stiffness of contacts that bear a load. Softer ones would give way, and of stiffer
# ones rounding would hide how soft the rest is.
FIRM = 1e3
SPINS = 1e-3  # part of a unit motion that nodes have by rounding where angles alone move


@dataclasses.dataclass(frozen=True)
class Linearised:
    """The equations of steps at their roots, their matrix there, and whether it is positive definite.

    Attributes
    ----------
    x, values : unknowns (B, n_free), and matrix values (nnz, B), with contacts that bear a load stiffened so that they
        stay closed.
    minima : (B,) whether a running robot's matrix is positive definite; rods that turn about their own axes are
        disregarded. False where nodes are free to move, as that would be up to rounding.
    """

    equations: StepEquations
    x: Tensor
    values: Tensor
    minima: Tensor

    @classmethod
    def at(cls, problem: StepProblem, q: Tensor) -> Linearised | None:
        """Return the equations of a step at its root q (B, n); None where the matrix cannot tell minima from saddles.

        That is where loads have no potential, not even at rest, and with iterative solvers.
        """
        model, q = problem.model, q.detach()
        here = problem.replace(state=problem.state.detach())
        equations = here.equations(model.contact.may_touch_at(q), constraints_at(here, q))
        solver = equations.solver()
        # a Cholesky factor exists only for a positive definite matrix
        definite_only = isinstance(solver, DirectSolver) and solver.pattern.symmetric
        if not (equations.mechanics.conservative(at_rest=True) and definite_only):
            return None
        equations.prepare()
        x = model.unknowns.of_dofs(q)
        if (constraints := equations.constraints) is not None:
            equations.reaction(q)  # leaves the loads of the constraints in `constraints.load`
        values = matrix_values(equations, x, solver, model.unknowns.residual_weight())
        if constraints is not None:  # contacts that touch without a load may open
            least = problem.method.tolerance(torch.zeros_like(constraints.time))[constraints.robot]
            values = with_contacts_closed(equations, x, values, constraints.load[:, 0] > least)
        return cls(equations, x, values, _minima(model, solver, values, problem.running))

    def not_at_saddle(self, rows: Tensor) -> Tensor:
        """Return the robots (B,) of some rows at no saddle: at a minimum, or free to move without any force."""
        return positive_definite(self.equations.solver(), self.values, rows, least=-1.0)


def _minima(model: Model, solver: Solver, values: Tensor, rows: Tensor) -> Tensor:
    """Return which of some rows (B,) have positive definite matrices, apart from motions that move no node.

    A round rod between hinges, or a rope, may turn about its own axis: nobody calls that unstable.
    """
    minima = positive_definite(solver, values, rows)
    others = rows & ~minima
    if values.dtype != torch.float64 or not bool(others.any()):
        return minima
    neutral = positive_definite(solver, values, others, least=-1.0)
    return minima | _spinning(model, solver, values, neutral) if bool(neutral.any()) else minima


def _spinning(model: Model, solver: Solver, values: Tensor, rows: Tensor) -> Tensor:
    """Return the robots (B,) of some rows, at no saddle, whose softest motion moves no node."""
    nodes = (model.unknowns.index < 3 * model.body.n_nodes).to(values.device)
    moved = torch.linalg.vector_norm(null_vectors(solver, values, rows)[:, nodes], dim=1)
    return rows & (moved < SPINS)


def with_contacts_closed(equations: StepEquations, x: Tensor, values: Tensor, which: Tensor) -> Tensor:
    """Return the matrix values (nnz, B) at x (B, n_free) with some contacts (S,) stiffened, so that they stay closed.

    Such a matrix is positive definite if the matrix itself is along all motions that keep these contacts closed.
    """
    constraints = equations.constraints
    assert constraints is not None
    diagonal = values[equations.solver().diagonal(values.device)]
    largest = largest_entry(diagonal, equations.model.unknowns.residual_weight())
    stiffness = torch.where(which, FIRM * largest[constraints.robot], 0.0).unsqueeze(1)
    return stiffened(equations, values, constraints.jacobian(equations.contacts_at(x))[:, :1], stiffness)
