"""Nonlinear programs over equal steps, with derivatives assembled from those of one step.

Cost and constraints are sums and lists over steps, of which each depends on the unknowns of a step and of the one
before. The functions of one step are built once, from CasADi scalars, and mapped over the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdismech.constant_curvature.planning.casadi import casadi

__all__ = ["Layout", "StepFunctions", "stepwise_program"]

Expression = Any  # of CasADi, which has no types


@dataclass(frozen=True)
class Layout:
    """Names and sizes of the unknowns of one step, in the order in which they are stored."""

    sizes: dict[str, int]

    @property
    def count(self) -> int:
        """Number of unknowns of a step."""
        return sum(self.sizes.values())

    def slice_of(self, name: str) -> slice:
        """Return the slice of an unknown among those of a step."""
        names = list(self.sizes)
        first = sum(self.sizes[other] for other in names[: names.index(name)])
        return slice(first, first + self.sizes[name])

    def symbols(self, suffix: str = "") -> dict[str, Expression]:
        """Return a CasADi symbol for each unknown, by name."""
        return {name: casadi().SX.sym(name + suffix, size) for name, size in self.sizes.items()}

    def packed(self, values: dict[str, np.ndarray]) -> np.ndarray:
        """Return values (N, size) by name as one array (N, count)."""
        return np.concatenate(
            [np.asarray(values[name], float).reshape(-1, size) for name, size in self.sizes.items()], 1
        )

    def unpacked(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of (N, count) by name, each (N, size)."""
        return {name: rows[:, self.slice_of(name)] for name in self.sizes}


@dataclass(frozen=True)
class StepFunctions:
    """What one step adds to a program, as CasADi expressions.

    Attributes
    ----------
    before, now : symbols of the unknowns of the step before and of this step, in one column each.
    parameters : symbols that differ between steps.
    cost : scalar.
    constraints : column, whose bounds are given to the solver.
    """

    before: Expression
    now: Expression
    parameters: Expression
    cost: Expression
    constraints: Expression


def stepwise_program(
    step: StepFunctions, first: np.ndarray, parameters: np.ndarray
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a program of N steps, and functions for its derivatives, as `casadi.nlpsol` takes them.

    Parameters
    ----------
    first : unknowns (count,) before the first step.
    parameters : (N, p) values of `step.parameters` in each step.
    """
    ca = casadi()
    steps, size = len(parameters), step.now.numel()
    rows = step.constraints.numel()
    unknowns, weight, prices = ca.vertcat(step.before, step.now), ca.SX.sym("weight"), ca.SX.sym("prices", rows)
    inputs = [step.before, step.now, step.parameters]
    cost, constraints = ca.cse([step.cost, step.constraints])
    costs, constraint_functions = ca.Function("costs", inputs, [cost]), ca.Function("sides", inputs, [constraints])
    slopes = ca.Function("slopes", inputs, [ca.gradient(cost, unknowns)])
    jacobians = ca.Function("jacobians", inputs, [ca.jacobian(constraints, unknowns)])
    bend = ca.triu(ca.hessian(weight * cost + ca.dot(prices, constraints), unknowns)[0])
    bends = ca.Function("bends", [*inputs, weight, prices], [bend])

    x, lam_f, lam_g, p = ca.MX.sym("x", size * steps), ca.MX.sym("lam_f"), ca.MX.sym("lam_g", rows * steps), ca.MX(0, 1)
    now = ca.reshape(x, size, steps)
    before = ca.horzcat(ca.DM(first), now[:, :-1])
    arguments = [before, now, ca.DM(parameters.T)]
    slope, jacobian = slopes.map(steps)(*arguments), jacobians.map(steps)(*arguments)
    bend = bends.map(steps)(*arguments, lam_f, ca.reshape(lam_g, rows, steps))
    gradient = ca.vec(slope[size:, :]) + ca.vertcat(ca.vec(slope[:size, 1:]), ca.DM.zeros(size))
    total, all_constraints = ca.sum2(costs.map(steps)(*arguments)), ca.vec(constraint_functions.map(steps)(*arguments))

    offset = size * (np.arange(steps) - 1)[:, None]  # index of the first unknown of the step before
    row, column = (np.array(x) for x in jacobians.sparsity_out(0).get_triplet())
    jac = _placed(
        jacobian, np.tile(row, (steps, 1)) + rows * np.arange(steps)[:, None], column + offset, rows * steps, x.numel()
    )
    row, column = (np.array(x) for x in bends.sparsity_out(0).get_triplet())
    hess = _placed(bend, row + offset, column + offset, x.numel(), x.numel())
    program = {"x": x, "f": total, "g": all_constraints}
    names = ["x", "p"]
    derivatives = {
        "grad_f": ca.Function("nlp_grad_f", [x, p], [total, gradient], names, ["f", "grad_f_x"]),
        "jac_g": ca.Function("nlp_jac_g", [x, p], [all_constraints, jac], names, ["g", "jac_g_x"]),
        "hess_lag": ca.Function(
            "nlp_hess_l", [x, p, lam_f, lam_g], [hess], [*names, "lam_f", "lam_g"], ["triu_hess_gamma_x_x"]
        ),
    }
    return program, derivatives


def _placed(blocks: Expression, row: np.ndarray, column: np.ndarray, rows: int, columns: int) -> Expression:
    """Return the sparse matrix with the blocks' entries at rows and columns (N, nnz), summed where these coincide.

    Entries at negative rows or columns belong to the given unknowns before the first step, and are left out.
    """
    ca = casadi()
    row, column = row.reshape(-1), column.reshape(-1)
    kept = np.flatnonzero((row >= 0) & (column >= 0))
    index = column[kept] * rows + row[kept]
    used, number = np.unique(index, return_inverse=True)
    sparsity = ca.Sparsity.triplet(rows, columns, (used % rows).tolist(), (used // rows).tolist())
    entries = ca.Sparsity.triplet(len(used), len(row), number.tolist(), kept.tolist())
    return ca.sparsity_cast(ca.mtimes(ca.DM(entries, 1.0), blocks.nz[:]), sparsity)
