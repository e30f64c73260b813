"""What searches for roots of a batch share: the equations, options, iterates, and the loop."""

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
    "rows_that_go_on_alone",
]

RUNNING = -1  # the status of a row that has not ended yet
ROUNDS_TOGETHER = 3  # after so many a search looks whether most rows have ended, to go on with the others alone
MIN_UNKNOWNS = 2000  # unknowns that the others have together for that, or more: with fewer, calls are what costs
SHORTEST = 2.0**-12  # part of a step below which line searches give up


class System(Protocol):
    """Equations r(x) = 0 of a batch, with their matrix dr/dx on the solver's pattern.

    Attributes
    ----------
    descending : whether there is a `potential`, which steps are to descend.
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
        """Return the function of this system and tensors, compiled as a whole if it can be and is wanted."""
        ...

    def recording(self, function: Callable) -> Callable | None:
        """Return what does the same as a function of this system and tensors, with next to no calls; None: nothing."""
        ...

    def of_robots(self, robots: Tensor) -> AbstractContextManager[System]:
        """Give the system of some rows of the batch alone, by their numbers (R,), for as long as the context lasts."""
        ...

    def solver(self) -> Any:
        """Return the linear solver for the matrices of these rows."""
        ...

    def potential(self, x: Tensor) -> Tensor | None:
        """Return a potential (B,) whose gradient is r, or None where there is none or none is wanted.

        With a potential a step is judged by it, the matrix is shifted until it is positive definite, and so only minima
        are found. Without, the norm of r judges, and any root may be found.
        """
        ...

    def trust_radius(self) -> Tensor | float:
        """Return how far a step that descends the potential may change an unknown, in units of unknown / weight.

        Beside it other searches judge whether steps are short.
        """
        ...


@dataclass(frozen=True)
class NewtonOptions:
    """How a search for roots goes.

    Attributes
    ----------
    solver : linear solver on the pattern of the matrix.
    weight : (m,) of the unknowns' residuals in its norm.
    tolerance : (B,) the norm up to which a row counts as solved.
    max_iterations : Newton steps, at most.
    line_search : False takes every Newton step whole.
    shortest : part of a step below which a line search gives up; from 1 on it does where a whole step is no good one.
    unbounded : whether the matrix may be larger by any factor where a search begins than at the root, as that of a
        barrier. Then the rounding noise counts that is at the iterates themselves, and not that of the first.
    """

    solver: Any
    weight: Tensor
    tolerance: Tensor
    max_iterations: int
    line_search: bool = True
    shortest: float = SHORTEST
    unbounded: bool = False

    def rows(self, rows: Tensor, solver: Any) -> NewtonOptions:
        """Return these for some rows (R,) of the batch, with the solver for so many."""
        return dataclasses.replace(self, tolerance=self.tolerance[rows], solver=solver)

    def with_tolerance(self, tolerance: Tensor) -> NewtonOptions:
        """Return these with another tolerance (B,)."""
        return dataclasses.replace(self, tolerance=tolerance)

    def at_noise(self, x: Tensor, values: Tensor) -> NewtonOptions:
        """Return these with a tolerance that is not below the rounding noise at x (B, m), of a matrix (nnz, B)."""
        noise = rounding_noise(x, values, self.diagonal, self.weight)
        return self.with_tolerance(torch.maximum(self.tolerance, noise))

    @property
    def diagonal(self) -> Tensor:
        """Where the diagonal of the matrix stands in its values."""
        return self.solver.diagonal(self.weight.device)

    def norm(self, residual: Tensor) -> Tensor:
        """Return the weighted norm (B,) of residuals (B, m)."""
        return weighted_norms(residual, self.weight)


@dataclass(frozen=True)
class Iterate:
    """A point x with its residual, matrix and weighted residual norm."""

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
        """Return the iterates of some rows (R,)."""
        return Iterate(self.x[rows], self.residual[rows], self.values.index_select(1, rows), self.norm[rows])

    def merged(self, other: Iterate, take: Tensor) -> Iterate:
        """Return this with the rows where `take` (B,) holds replaced by those of `other`."""
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
    """Where Newton's method ended.

    Attributes
    ----------
    x : (B, m) the last accepted iterates; rows that did not run are as they came.
    status : (B,) `Status` values; rows that did not run are CONVERGED.
    iterations : (B,) Newton steps begun.
    residual : (B,) norm of the residual at x.
    tolerance : (B,) what the residual was held against: as asked for, but not below the rounding noise at x.
    last : the iterates, of which x are the unknowns; None where several searches were put together.
    """

    x: Tensor
    status: Tensor
    iterations: Tensor
    residual: Tensor
    tolerance: Tensor
    last: Iterate | None = None

    def followed_by(self, other: Root, rows: Tensor) -> Root:
        """Return this with `rows` (B,) replaced by where another search ended there; iterations add up."""
        return Root(
            torch.where(rows[:, None], other.x, self.x),
            torch.where(rows, other.status, self.status),
            self.iterations + torch.where(rows, other.iterations, 0),
            torch.where(rows, other.residual, self.residual),
            torch.where(rows, other.tolerance, self.tolerance),
        )

    def with_rows(self, rows: Tensor, part: Root) -> Root:
        """Return this with some rows (R,) replaced by where a search for these alone ended."""
        names = (field.name for field in dataclasses.fields(self) if field.name != "last")
        return Root(*(getattr(self, name).index_copy(0, rows, getattr(part, name)) for name in names))


class RootSearch(ABC):
    """Newton's method for a batch, a round at a time until no row runs; what a round does is up to each kind.

    Attributes
    ----------
    at : the last accepted iterates.
    status : (B,) RUNNING, or the `Status` that a row ended with.
    iterations : (B,) Newton steps begun.
    tolerance : (B,) norm of the residual up to which a row may count as solved: as asked for, or within the noise of
        rounding if that is larger and the last steps were short (see `noise`).
    """

    at: Iterate
    status: Tensor
    iterations: Tensor
    tolerance: Tensor

    def root(self) -> Root:
        """Return where the rows end."""
        more = bool((self.status == RUNNING).any())
        while more:
            more = self.round()
        return self._ends()

    @abstractmethod
    def round(self) -> bool:
        """Take a step in the rows that run; return whether some row still runs."""

    def _ends(self) -> Root:
        return Root(self.at.x, self.status, self.iterations, self.at.norm, self.tolerance, self.at)


class DividingSearch(RootSearch):
    """A search whose rows know nothing of each other: once most have ended, the others go on alone."""

    system: System

    def root(self) -> Root:
        """Return where the rows end."""
        more, rounds = bool((self.status == RUNNING).any()), 0
        while more:
            if rounds % ROUNDS_TOGETHER == 0 and (rows := self._rows_alone()) is not None:
                return self._ended_by(rows)
            more, rounds = self.round(), rounds + 1
        return self._ends()

    @abstractmethod
    def of_rows(self, rows: Tensor, system: System) -> DividingSearch:
        """Return the search of some rows (R,) alone, whose system is given, as far as it has come."""

    def divides(self) -> bool:
        """Return whether rows may go on without the others."""
        return True

    def _rows_alone(self) -> Tensor | None:
        """Return the rows (R,) that are to go on alone; None if all go on together."""
        return rows_that_go_on_alone(self.status == RUNNING, self.at.x.shape[1]) if self.divides() else None

    def _ended_by(self, rows: Tensor) -> Root:
        """Return where the rows end, of which these (R,) go on alone."""
        with self.system.of_robots(rows) as system:
            part = self.of_rows(rows, system).root()
        return self._ends().with_rows(rows, part)


def rows_that_go_on_alone(running: Tensor, unknowns: int) -> Tensor | None:
    """Return half of the rows, those that run (B,) among them; None if more of them run, or too few are left."""
    count = len(running) // 2
    if count * unknowns < MIN_UNKNOWNS or int(running.sum()) > count:
        return None
    # sizes by halves, so that solvers and kernels for few sizes serve: rows that have ended fill up
    return torch.sort(running, descending=True, stable=True).indices[:count].sort().values


def judged(status: Tensor, norm: Tensor, tolerance: Tensor) -> Tensor:
    """Return the status with running rows marked that converged or stopped being finite."""
    running = status == RUNNING
    status = torch.where(running & (norm <= tolerance), int(Status.CONVERGED), status)  # NaN <= tolerance is False
    return torch.where(running & ~(norm < torch.inf), int(Status.NOT_FINITE), status)
