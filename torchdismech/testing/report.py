"""Check and Report, the results of checks, and the comparisons and finite differences that checks consist of."""

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

DERIVATIVE = 1e-6  # tolerance on derivatives, relative to the largest one; the package's docstring gives the reason
SAME = 1e-12  # relative tolerance on two ways to compute the same number in float64
ROUNDINGS = 10.0  # factor on an estimate of one rounding error, as a function accumulates several
SYMMETRY = 1e-9  # relative tolerance on symmetries: moved positions are rounded anew, and their differences lose digits


@dataclass(frozen=True)
class Check:
    """The result of checking one property: its error, and the tolerance on that."""

    name: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance; NaN never is."""
        return self.error <= self.tolerance


@dataclass
class Report:
    """The results of all checks of one object; printed, it is a table."""

    title: str
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all checks are ok."""
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
    """Compare two tensors: the error is the largest difference relative to the largest expected number.

    Parameters
    ----------
    doubt : uncertainty of the expected numbers, one for all or one for each; differences up to this are always within
        the tolerance.
    """
    if not expected.numel():
        return Check(name, 0.0, tolerance)
    scale = torch.full_like(expected, expected.abs().max().item())
    if tolerance:
        scale = torch.maximum(scale, torch.as_tensor(doubt, device=expected.device).to(expected) / tolerance)
    scale = torch.where(scale == 0, 1.0, scale)
    return Check(name, ((found - expected).abs() / scale).max().item(), tolerance)


def shape_check(name: str, rows, counts: tuple[int, int], shape: tuple[int, ...]) -> Check:
    """Check a nested list of tensors for its counts of rows and columns and the shape of each tensor.

    The error is the number of tensors that are missing, superfluous or of another shape.
    """
    rows = [list(row) if isinstance(row, tuple | list) else [] for row in rows]
    wrong = abs(len(rows) - counts[0]) + sum(abs(len(row) - counts[1]) for row in rows)
    wrong += sum(tuple(value.shape) != shape for row in rows for value in row)
    many = f"{counts[0]} x {counts[1]}" if counts[0] > 1 else f"{counts[1]}"
    return Check(f"{name}: {many} of shape (S, B)", float(wrong), 0.0)


def finite_check(value: Tensor) -> Check:
    """Check that all numbers are finite; the error is the number of those that are not."""
    return Check("finite", float((~torch.isfinite(value)).sum()), 0.0)


def separation_check(function: Callable[[Tensor], Tensor], point: Tensor) -> Check:
    """Check that changing the variables of the first spring does not change the outputs (.., S, B) of the others."""
    moved = point.clone()
    moved[:, 0] *= 1.1
    return comparison("no stencil changes another", function(moved)[..., 1:, :], function(point)[..., 1:, :], SAME)


def robots_check(function: Callable[[Tensor], Tensor], point: Tensor) -> Check:
    """Check that changing the variables of the first robot does not change the outputs (.., S, B) of the others."""
    moved = point.clone()
    moved[..., 0] *= 1.1
    return comparison("no robot changes another", function(moved)[..., 1:], function(point)[..., 1:], SAME)


def fixed_generator() -> torch.Generator:
    """Return a random generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


def difference_step(size: Tensor, least: float = 0.0) -> float:
    """Return the step for central differences: eps^(1/3) times the largest of `size` (at least `least`, or 1 if 0)."""
    return torch.finfo(size.dtype).eps ** (1 / 3) * (max(size.abs().max().item(), least) or 1.0)


class Slope(NamedTuple):
    """A derivative by finite differences, and the uncertainty of each of its numbers, of the same shape."""

    value: Tensor
    doubt: Tensor


def slope(along: Callable[[float], Tensor], step: float) -> Slope:
    """Return the central difference at 0 of a function of one number, with its uncertainty.

    The uncertainty is the sum of the rounding error (with a `difference_step`, about eps^(2/3) of the function over the
    size of the variable) and of the change when the step is doubled, three times the truncation error. It matters where
    the derivative is zero, as that of a cosine or a cubic force is in a straight rod.
    """
    ahead, behind = along(step).detach(), along(-step).detach()
    value = (ahead - behind) / (2 * step)
    wider = (along(2 * step).detach() - along(-2 * step).detach()) / (4 * step)
    rounding = ROUNDINGS * torch.finfo(value.dtype).eps * torch.maximum(ahead.abs(), behind.abs()).max() / step
    return Slope(value, (wider - value).abs() + rounding)


def stacked(slopes: Sequence[Slope], dim: int = 0) -> Slope:
    """Return derivatives in several directions stacked along a new dimension."""
    value, doubt = (torch.stack(tensors, dim=dim) for tensors in zip(*slopes, strict=True))
    return Slope(value, doubt)


def differences(function: Callable[[Tensor], Tensor], point: Tensor) -> Slope:
    """Return the derivatives (k, outputs, S, B) of a function by each of the k variables of each spring."""
    least = 1e-3 * point.abs().max().item()  # a variable that is zero up to rounding gives no useful step size

    def along(k: int, by: float) -> Tensor:
        moved = point.clone()
        moved[k] += by
        return function(moved)

    return stacked([slope(partial(along, k), difference_step(point[k], least)) for k in range(len(point))])


def rounding(function: Callable[[Tensor], Tensor], point: Tensor, size: Tensor | float) -> float:
    """Return an upper estimate of the change of a function when its variables, of this size, are rounded."""
    noise = torch.randn(point.shape, dtype=torch.float64, generator=fixed_generator(), device="cpu").to(point)
    moved = point + torch.finfo(point.dtype).eps * size * noise
    return ROUNDINGS * (function(moved) - function(point)).detach().abs().max().item()
