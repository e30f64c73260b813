"""Comparison of users' derivatives with finite differences, and what the trials of users' functions share."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.robot.state import State
from torchdismech.values import tensor_of

__all__ = [
    "without_held_tangents",
    "extent_of",
    "is_of_kink",
    "differs",
    "rounding",
    "kink_sentence",
    "same",
    "tolerance",
    "trial_numbers",
    "wide_step_ratio",
]

SAME, SAME_IN_FLOAT32 = 1e-9, 1e-4  # relative difference of sums of the same numbers in another order


def trial_numbers(like: Tensor, seed: int) -> Tensor:
    """Return normally distributed numbers with the shape, dtype and device of a tensor, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like)


def without_held_tangents(state: State, by_dof: Tensor) -> Tensor:
    """Return numbers (B, n) with zeros at held tangents, where steps need no derivatives: they are never unknowns."""
    unknowns = by_dof.shape[1] - 3 * state.n_held
    return torch.cat([by_dof[:, :unknowns], torch.zeros_like(by_dof[:, unknowns:])], dim=1)


def same(value: Tensor, expected: Tensor) -> bool:
    """Return whether tensors are equal to the bit, where NaN equals NaN."""
    return bool(((value == expected) | (value.isnan() & expected.isnan())).all())


def rounding(like: Tensor) -> float:
    """Return the relative difference that sums may have if their numbers are added in another order."""
    return SAME if like.dtype == torch.float64 else SAME_IN_FLOAT32


def differs(derivative: Tensor, expected: Tensor, rounded: Tensor, rows: Tensor, wide: Tensor | float = 0.0) -> Tensor:
    """Return where a derivative (.., B) is off the differences `expected`, in the rows (B,) that count.

    Parameters
    ----------
    rounded : numbers of the size of those whose rounding the differences carry.
    wide : differences over a step that is longer by `wide_step_ratio`, of which the largest counts for the scale.
    """
    noise = 10 * torch.finfo(derivative.dtype).eps * rounded.abs().amax()
    size = max(float(expected.abs().amax()), float(tensor_of(wide).abs().amax().nan_to_num(0, 0)))
    return ((derivative - expected).abs() > tolerance(derivative) * size + noise) & rows


def tolerance(like: Tensor) -> float:
    """Return the relative error that differences may have by strong curvature and kinks nearby."""
    return 1e-4 if like.dtype == torch.float64 else 5e-2


def wide_step_ratio(like: Tensor) -> float:
    """Return the ratio of a wide step, over which differences are of ordinary size, to the short step of a comparison.

    Where a derivative is zero, as at rest, differences over the short step are truncation error alone, which falls as
    the square of the step, and would be no scale for an error.
    """
    return 10 * tolerance(like) ** -0.5


def extent_of(state: State, field: str) -> float:
    """Return the scale of trial steps: a tenth of the robots' extent [m] for q, for velocity its size, at least 1."""
    if field == "velocity":
        return max(1.0, float(state.velocity.abs().max()))
    x = state.positions
    return 0.1 * float((x.amax(1) - x.amin(1)).max())


def is_of_kink(derivative: Tensor, expected: Tensor, jump: Tensor, off: Tensor) -> bool:
    """Return whether derivatives that are off lie between the one-sided differences (`jump` apart), as at a kink."""
    return bool(((derivative - expected).abs() <= 0.6 * jump.abs())[off].all())


def kink_sentence(function: str) -> str:
    """Return the sentence of a message that a function seems to have a kink at the state."""
    return (
        f"{function} seems to have a kink at this state: differences to its two sides disagree, as of relu or abs at "
        "rest, and steps need a derivative that does not jump; take a smooth function, such as softplus for relu, or "
        "sqrt(x**2 + eps**2) - eps for abs"
    )
