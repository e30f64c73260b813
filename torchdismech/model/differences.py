"""Derivatives that users write held against differences, and what trials of their functions share."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.robot.state import State
from torchdismech.values import tensor_of

__all__ = [
    "asked",
    "extent_of",
    "is_of_kink",
    "differs",
    "rounding",
    "said_of_kink",
    "same",
    "tolerance",
    "trial_numbers",
    "wide_by",
]

SAME, SAME_IN_FLOAT32 = 1e-9, 1e-4  # relative: sums of the same numbers in another order


def trial_numbers(like: Tensor, seed: int) -> Tensor:
    """Return normally distributed numbers like a tensor, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like)


def asked(state: State, by_dof: Tensor) -> Tensor:
    """Return numbers (B, n), zero at held tangents: these are never unknowns, so no step asks for derivatives there."""
    unknowns = by_dof.shape[1] - 3 * state.n_held
    return torch.cat([by_dof[:, :unknowns], torch.zeros_like(by_dof[:, unknowns:])], dim=1)


def same(found: Tensor, expected: Tensor) -> bool:
    """Return whether numbers are the same to the bit; NaN is the same as NaN."""
    return bool(((found == expected) | (found.isnan() & expected.isnan())).all())


def rounding(like: Tensor) -> float:
    """Return by how much, relative, sums may differ whose numbers are added in another order."""
    return SAME if like.dtype == torch.float64 else SAME_IN_FLOAT32


def differs(found: Tensor, expected: Tensor, rounded: Tensor, rows: Tensor, wide: Tensor | float = 0.0) -> Tensor:
    """Return where derivatives (.., B) are off differences, which are rounded like `rounded`, in some rows (B,).

    `wide` are differences over a step that is longer by `wide_by`.
    """
    noise = 10 * torch.finfo(found.dtype).eps * rounded.abs().amax()
    size = max(float(expected.abs().amax()), float(tensor_of(wide).abs().amax().nan_to_num(0, 0)))
    return ((found - expected).abs() > tolerance(found) * size + noise) & rows


def tolerance(like: Tensor) -> float:
    """Return the relative error of differences that is left to strong curvature and kinks nearby."""
    return 1e-4 if like.dtype == torch.float64 else 5e-2


def wide_by(like: Tensor) -> float:
    """Return how much longer a step is over which differences are as large as those of ordinary states.

    Where a derivative is zero, as at rest, differences over a short step are all truncation, which falls as its square.
    """
    return 10 * tolerance(like) ** -0.5


def extent_of(state: State, field: str) -> float:
    """Return the scale of trial steps: a tenth of the robots' extent [m] for q, for velocity its size, at least 1."""
    if field == "velocity":
        return max(1.0, float(state.velocity.abs().max()))
    x = state.positions
    return 0.1 * float((x.amax(1) - x.amin(1)).max())


def is_of_kink(found: Tensor, expected: Tensor, jump: Tensor, off: Tensor) -> bool:
    """Return whether derivatives that are off differences lie between those to either side, which differ by `jump`."""
    return bool(((found - expected).abs() <= 0.6 * jump.abs())[off].all())


def said_of_kink(function: str) -> str:
    """Return a sentence on what has a kink at a state, as its differences to both sides say."""
    return (
        f"{function} seems to have a kink at this state: differences to its two sides disagree, as of relu or abs at "
        "rest, and steps need a derivative that does not jump; take a smooth function, such as softplus for relu, or "
        "sqrt(x**2 + eps**2) - eps for abs"
    )
