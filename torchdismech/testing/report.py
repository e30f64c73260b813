"""What a check found, and the comparisons that checks are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "DERIVATIVE",
    "ROUNDINGS",
    "SAME",
    "SYMMETRY",
    "Check",
    "Report",
    "Slope",
    "comparison",
    "difference_step",
    "differences",
    "finite_check",
    "fixed_generator",
    "robots_check",
    "rounding",
    "separation_check",
    "shape_check",
    "slope",
    "stacked",
]

DERIVATIVE = 1e-6  # relative to the largest derivative; see the package
SAME = 1e-12  # relative; two ways to compute the same, in float64
ROUNDINGS = 10.0  # of a function: its last digit is the sum of some roundings
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


def comparison(
    name: str, found: Tensor, expected: Tensor, tolerance: float = DERIVATIVE, doubt: Tensor | float = 0.0
) -> Check:
    """Return the largest difference, in parts of the largest expected number.

    Differences of no more than `doubt`, one for all numbers or of each, are within the tolerance: by so much rounding,
    or how it was found, may put off what is expected.
    """
    if not expected.numel():
        return Check(name, 0.0, tolerance)
    scale = torch.full_like(expected, expected.abs().max().item())
    if tolerance:
        scale = torch.maximum(scale, torch.as_tensor(doubt, device=expected.device).to(expected) / tolerance)
    scale = torch.where(scale == 0, 1.0, scale)
    return Check(name, ((found - expected).abs() / scale).max().item(), tolerance)


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


class Slope(NamedTuple):
    """A derivative by differences, and by how much each of its numbers may be off, of the same shape."""

    value: Tensor
    doubt: Tensor


def slope(along: Callable[[float], Tensor], step: float) -> Slope:
    """Return the central difference of a function of one number at 0.

    It may be off by what rounding of the function makes of it, which is about eps^(2/3) of the function over the size
    of the variable for a `difference_step`, and by what is left out: a third of the change to twice the step. Both
    count where the derivative is zero, as that of a cosine or a cubic force is in a straight rod.
    """
    ahead, behind = along(step).detach(), along(-step).detach()
    value = (ahead - behind) / (2 * step)
    wider = (along(2 * step).detach() - along(-2 * step).detach()) / (4 * step)
    rounding = ROUNDINGS * torch.finfo(value.dtype).eps * torch.maximum(ahead.abs(), behind.abs()).max() / step
    return Slope(value, (wider - value).abs() + rounding)


def stacked(slopes: Sequence[Slope], dim: int = 0) -> Slope:
    """Return derivatives in several directions as one tensor, along a new dimension."""
    value, doubt = (torch.stack(tensors, dim=dim) for tensors in zip(*slopes, strict=True))
    return Slope(value, doubt)


def differences(function: Callable[[Tensor], Tensor], point: Tensor) -> Slope:
    """Return (k, outputs, S, B): the outputs' derivatives by each of the k variables, stencil by stencil."""
    least = 1e-3 * point.abs().max().item()  # what is zero up to rounding has no size of its own

    def along(k: int, by: float) -> Tensor:
        moved = point.clone()
        moved[k] += by
        return function(moved)

    return stacked([slope(partial(along, k), difference_step(point[k], least)) for k in range(len(point))])


def rounding(function: Callable[[Tensor], Tensor], point: Tensor, size: Tensor | float) -> float:
    """Return by how much rounding of variables of some size may change a function: some times more than it does."""
    noise = torch.randn(point.shape, dtype=torch.float64, generator=fixed_generator(), device="cpu").to(point)
    moved = point + torch.finfo(point.dtype).eps * size * noise
    return ROUNDINGS * (function(moved) - function(point)).detach().abs().max().item()
