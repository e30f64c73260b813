"""Small vibrations of chains."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdismech.errors import InputError, refuse_other_model, whole_number
from torchdismech.rigid.chain import RigidChain

__all__ = ["natural_frequencies"]


def natural_frequencies(chain: RigidChain, count: int) -> Tensor:
    """Return the lowest frequencies (B, count) [Hz] of straight chains, undamped and without gravity, the motor held.

    Raises
    ------
    InputError
        More frequencies than the chain has, or a spring without stiffness.
    """
    refuse_other_model("natural_frequencies", chain, RigidChain)
    springs, count = chain.n_dofs - 1, whole_number(count, "count")
    if count > springs:
        raise InputError(f"count: expected 1 to {springs}, the frequencies that there are, got {count}")
    stiffness = chain.dynamics().stiffness[1:, 0].t()
    if not bool((stiffness > 0).all()):
        raise InputError("stiffness: expected all above 0; without it a spring does not vibrate")
    zero = chain.length.new_zeros(chain.batch or 1, chain.n_dofs)
    inertia = chain.mass_matrix(zero)[:, 1:, 1:]
    # the largest eigenvalues of K^-1/2 M K^-1/2, 1 / omega^2, are exact to rounding, however stiff other springs are
    scale = stiffness.rsqrt()
    longest = torch.linalg.eigvalsh(scale[:, :, None] * inertia * scale[:, None])[:, -count:].flip(1)
    return longest.rsqrt() / (2 * math.pi)
