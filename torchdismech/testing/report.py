"""What a check found, and the comparisons that checks are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = [
    "DERIVATIVE",
    "SAME",
    "SYMMETRY",
    "Check",
    "Report",
    "comparison",
    "difference_step",
    "differences",
    "finite_check",
    "fixed_generator",
    "robots_check",
    "separation_check",
    "shape_check",
]

DERIVATIVE = 1e-6  # relative to the largest derivative; see the package
SAME = 1e-12  # relative; two ways to compute the same, in float64
SYMMETRY = 1e-9  # relative; positions are rounded anew when a robot is moved, and differences of them lose digits


@dataclass(frozen=True)
class Check:
    """One property, how far it is from holding, and how far it may be."""

    name: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether it holds; NaN never does."""
        return self.error <= self.tolerance


@dataclass
class Report:
    """What was checked of one term."""

    title: str
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all checks hold."""
        return all(check.ok for check in self.checks)

    def raise_if_failed(self) -> None:
        """Raise an AssertionError that shows the table if any check failed."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [self.title]
        for check in self.checks:
            verdict = "ok" if check.ok else "FAILED"
            lines.append(
                f"  {check.name:<{width}}  error {check.error:8.1e}  tolerance {check.tolerance:.0e}  {verdict}"
            )
        return "\n".join(lines)


def comparison(name: str, found: Tensor, expected: Tensor, tolerance: float = DERIVATIVE) -> Check:
    """Return the largest difference, in parts of the largest expected number."""
    if not expected.numel():
        return Check(name, 0.0, tolerance)
    scale = expected.abs().max().item() or 1.0
    return Check(name, (found - expected).abs().max().item() / scale, tolerance)


def shape_check(name: str, rows, counts: tuple[int, int], shape: tuple[int, ...]) -> Check:
    """Return how many of a matrix of tensors, `counts` rows and columns, are missing, too many or of another shape."""
    rows = [list(row) if isinstance(row, tuple | list) else [] for row in rows]
    wrong = abs(len(rows) - counts[0]) + sum(abs(len(row) - counts[1]) for row in rows)
    wrong += sum(tuple(value.shape) != shape for row in rows for value in row)
    many = f"{counts[0]} x {counts[1]}" if counts[0] > 1 else f"{counts[1]}"
    return Check(f"{name}: {many} of shape (S, B)", float(wrong), 0.0)


def finite_check(value: Tensor) -> Check:
    """Return how many numbers are not finite."""
    return Check("finite", float((~torch.isfinite(value)).sum()), 0.0)


def separation_check(function: Callable[[Tensor], Tensor], point: Tensor) -> Check:
    """Check that moving the first stencil leaves the outputs (.., S, B) of the others as they are."""
    moved = point.clone()
    moved[:, 0] *= 1.1
    return comparison("no stencil changes another", function(moved)[..., 1:, :], function(point)[..., 1:, :], SAME)


def robots_check(function: Callable[[Tensor], Tensor], point: Tensor) -> Check:
    """Check that moving the first robot leaves the outputs (.., S, B) of the others as they are."""
    moved = point.clone()
    moved[..., 0] *= 1.1
    return comparison("no robot changes another", function(moved)[..., 1:], function(point)[..., 1:], SAME)


def fixed_generator() -> torch.Generator:
    """Return random numbers that are the same each time."""
    return torch.Generator().manual_seed(0)


def difference_step(size: Tensor, least: float = 0.0) -> float:
    """Return the step of a central difference by variables of some size."""
    return torch.finfo(size.dtype).eps ** (1 / 3) * (max(size.abs().max().item(), least) or 1.0)


def differences(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """Return (k, outputs, S, B): the outputs' derivatives by each of the k variables, stencil by stencil."""
    columns = []
    least = 1e-3 * point.abs().max().item()  # what is zero up to rounding has no size of its own
    for k in range(point.shape[0]):
        step = torch.zeros_like(point)
        step[k] = difference_step(point[k], least)
        columns.append((function(point + step) - function(point - step)).detach() / (2 * step[k]))
    return torch.stack(columns)
