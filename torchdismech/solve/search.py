"""The parts that all root searches of a batch share: protocol of the equations, options, iterates, and the loop.

Words used throughout `solve`: a *row* is one robot of the batch; a row *runs* until it has a `Status`; a *round* tries
one step in each running row; the *whole* step is the full Newton step, of which a line search may try a part.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from torchdismech.errors import Status
from torchdismech.native import taping
from torchdismech.rows import weighted_norms
from torchdismech.solve.noise import rounding_noise

__all__ = [
    "RUNNING",
    "DividingSearch",
    "Iterate",
    "NewtonOptions",
    "Root",
    "RootSearch",
    "System",
    "judged",
]

RUNNING = -1  # the status of a row that has not ended yet
ROUNDS_TOGETHER = 3  # rounds between two checks of whether enough rows have ended to go on with a smaller batch
MIN_UNKNOWNS = 2000  # least number of unknowns in the smaller batch: below it, calls cost more than arithmetic
SHORTEST = 2.0**-12  # fraction of a Newton step below which line searches give up


class System(Protocol):
    """Equations r(x) = 0 of a batch, with their Jacobian dr/dx ("the matrix") on the solver's pattern.

    Attributes
    ----------
    descending : whether steps are to descend the `potential`, which is then not None.
    """

    descending: bool

    def residual(self, x: Tensor) -> Tensor:
        """Return r (B, m)."""
        ...

    def residual_and_matrix(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return r (B, m) and the values (nnz, B) of dr/dx."""
        ...

    def advanced(self, x: Tensor, step: Tensor) -> Tensor:
        """Return x moved by the step (B, m): x + step, to first order."""
        ...

    def compiled(self, function: Callable) -> Callable:
        """Return `function(system, *tensors)` compiled as a whole, or the function itself where that is not wanted."""
        ...

    def recording(self, function: Callable) -> Callable | None:
        """Return the recording (CUDA graph or tape) of `function(system, *tensors)`, called alike; None without one."""
        ...

    def of_robots(self, robots: Tensor) -> AbstractContextManager[System]:
        """Return a context that gives the system of the rows with indices (R,) alone; it is valid inside only."""
        ...

    def solver(self) -> Any:
        """Return the linear solver for the matrices of this system's rows."""
        ...

    def potential(self, x: Tensor) -> Tensor | None:
        """Return a potential (B,) at x (B, m) whose gradient is r; None where steps are not to descend one.

        With a potential, a step is accepted by its decrease and an indefinite matrix is shifted until it is positive
        definite, so that only minima are found. Without, steps are judged by the norm of r, and any root may be found.
        """
        ...

    def trust_radius(self) -> Tensor | float:
        """Return the largest change of an unknown, divided by its weight, in a step that descends the potential.

        All searches measure by it whether a step is short (see `noise.short_length`).
        """
        ...


@dataclass(frozen=True)
class NewtonOptions:
    """Linear solver, norm, tolerances and limits of a root search.

    Attributes
    ----------
    solver : linear solver on the pattern of the matrix.
    weight : (m,) factors of the residuals in their norm: 1 for forces, 1 / length for torques.
    tolerance : (B,) norm of the residual up to which a row counts as solved.
    max_iterations : largest number of Newton steps.
    line_search : False takes every Newton step whole.
    shortest : fraction of a step below which the line search gives up. With 1 or more no parts are tried: a row fails
        as soon as its whole step is rejected.
    noise_at_each_iterate : whether the rounding noise is estimated at each iterate instead of once, at the first. That
        is for matrices that may be larger at the first iterate than at the root by any factor, as with a barrier.
    """

    solver: Any
    weight: Tensor
    tolerance: Tensor
    max_iterations: int
    line_search: bool = True
    shortest: float = SHORTEST
    noise_at_each_iterate: bool = False

    def rows(self, rows: Tensor, solver: Any) -> NewtonOptions:
        """Return the options of the rows with indices (R,), with a solver for a batch of that size."""
        return dataclasses.replace(self, tolerance=self.tolerance[rows], solver=solver)

    def with_tolerance(self, tolerance: Tensor) -> NewtonOptions:
        """Return the options with another tolerance (B,)."""
        return dataclasses.replace(self, tolerance=tolerance)

    def with_tolerance_above_noise(self, x: Tensor, values: Tensor) -> NewtonOptions:
        """Return the options with the tolerance raised to the rounding noise at x (B, m) where that is larger.

        Parameters
        ----------
        values : (nnz, B) of the matrix at x, from which the noise is estimated.
        """
        noise = rounding_noise(x, values, self.diagonal, self.weight)
        return self.with_tolerance(torch.maximum(self.tolerance, noise))

    @property
    def diagonal(self) -> Tensor:
        """Indices (m,) of the diagonal entries among the matrix values."""
        return self.solver.diagonal(self.weight.device)

    def norm(self, residual: Tensor) -> Tensor:
        """Return the weighted norm (B,) of residuals (B, m)."""
        return weighted_norms(residual, self.weight)


@dataclass(frozen=True)
class Iterate:
    """A point x (B, m) with its residual (B, m), matrix values (nnz, B) and weighted residual norm (B,)."""

    x: Tensor
    residual: Tensor
    values: Tensor
    norm: Tensor

    @classmethod
    def of(cls, system: System, x: Tensor, options: NewtonOptions) -> Iterate:
        """Return the iterate at x (B, m)."""
        residual, values = system.residual_and_matrix(x)
        return cls(x, residual, values, options.norm(residual))

    def rows(self, rows: Tensor) -> Iterate:
        """Return the iterates of the rows with indices (R,)."""
        return Iterate(self.x[rows], self.residual[rows], self.values.index_select(1, rows), self.norm[rows])

    def merged(self, other: Iterate, take: Tensor) -> Iterate:
        """Return a copy in which the rows where `take` (B,) is True come from `other`."""
        if take.is_cpu and not taping() and bool(take.all()):
            return other
        return Iterate(
            torch.where(take[:, None], other.x, self.x),
            torch.where(take[:, None], other.residual, self.residual),
            torch.where(take, other.values, self.values),
            torch.where(take, other.norm, self.norm),
        )


@dataclass(frozen=True)
class Root:
    """Result of a root search.

    Attributes
    ----------
    x : (B, m) the last accepted iterates; rows that did not run are returned as they came.
    status : (B,) `Status` values; rows that did not run are CONVERGED.
    iterations : (B,) Newton steps begun.
    residual : (B,) norm of the residual at x.
    tolerance : (B,) norm that counted as solved: the tolerance asked for, or the rounding noise where that is larger.
    last : the `Iterate` whose unknowns are x; None where the results of several searches were merged. Of rows that
        converged its matrix values may be those at the iterate before.
    """

    x: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor
    tolerance: Tensor
    last: Iterate | None = None

    def followed_by(self, other: Root, rows: Tensor) -> Root:
        """Return the result with the rows where `rows` (B,) is True taken from a later search; iterations add up."""
        return Root(
            torch.where(rows[:, None], other.x, self.x),
            torch.where(rows, other.status, self.status),
            self.iterations + torch.where(rows, other.iterations, 0),
            torch.where(rows, other.residual, self.residual),
            torch.where(rows, other.tolerance, self.tolerance),
        )

    def with_rows(self, rows: Tensor, part: Root) -> Root:
        """Return the result with the rows of indices (R,) replaced by `part`, the result of a search of these alone."""
        names = (field.name for field in dataclasses.fields(self) if field.name != "last")
        return Root(*(getattr(self, name).index_copy(0, rows, getattr(part, name)) for name in names))


class RootSearch(ABC):
    """Newton's method for a batch: rounds are taken until no row runs; subclasses say what a round does.

    Attributes
    ----------
    at : the last accepted iterates.
    status : (B,) RUNNING, or the `Status` that a row ended with.
    iterations : (B,) Newton steps begun.
    tolerance : (B,) norm of the residual up to which a row may count as solved: the tolerance asked for, or the
        rounding noise where that is larger, within which a row also has to take short steps (see `noise`).
    """

    at: Iterate
    status: Tensor
    iterations: Tensor
    tolerance: Tensor

    def root(self) -> Root:
        """Take rounds until no row runs; return the result."""
        more = bool((self.status == RUNNING).any())
        while more:
            more = self.round()
        return self._ends()

    @abstractmethod
    def round(self) -> bool:
        """Try a step in each row that runs; return whether some row still runs."""

    def _ends(self) -> Root:
        return Root(self.at.x, self.status, self.iterations, self.at.norm, self.tolerance, self.at)


class DividingSearch(RootSearch):
    """A search whose rows are independent: once at least half have ended, the rest go on as a smaller batch."""

    system: System

    def root(self) -> Root:
        """Take rounds, in ever smaller batches, until no row runs; return the result for all rows."""
        more, rounds = bool((self.status == RUNNING).any()), 0
        while more:
            if rounds % ROUNDS_TOGETHER == 0 and (rows := self._rows_alone()) is not None:
                return self._ended_by(rows)
            more, rounds = self.round(), rounds + 1
        return self._ends()

    @abstractmethod
    def of_rows(self, rows: Tensor, system: System) -> DividingSearch:
        """Return a search of the rows with indices (R,) alone, which goes on from this one's present state.

        Parameters
        ----------
        system : the equations of these rows.
        """

    def divides(self) -> bool:
        """Return whether the search may go on with some of its rows alone."""
        return True

    def _rows_alone(self) -> Tensor | None:
        """Return the indices (R,) of half the rows, all those that run among them, to go on with alone.

        None if all go on together: more than half run, or half the rows have fewer than `MIN_UNKNOWNS` unknowns.
        """
        running = self.status == RUNNING
        count = len(running) // 2
        if not self.divides() or count * self.at.x.shape[1] < MIN_UNKNOWNS or int(running.sum()) > count:
            return None
        # the batch is always halved, filled up with rows that have ended, so that solvers are made for few batch sizes
        return torch.sort(running, descending=True, stable=True).indices[:count].sort().values

    def _ended_by(self, rows: Tensor) -> Root:
        """Return the result for all rows, after a search of the rows with indices (R,) alone."""
        with self.system.of_robots(rows) as system:
            part = self.of_rows(rows, system).root()
        return self._ends().with_rows(rows, part)


def judged(status: Tensor, norm: Tensor, tolerance: Tensor) -> Tensor:
    """Return the status (B,) with running rows marked CONVERGED within the tolerance, or NOT_FINITE."""
    running = status == RUNNING
    status = torch.where(running & (norm <= tolerance), int(Status.CONVERGED), status)  # NaN <= tolerance is False
    return torch.where(running & ~(norm < torch.inf), int(Status.NOT_FINITE), status)
