"""Derivatives by autograd inside steps, also where the caller has switched gradients off."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.errors import InputError

__all__ = ["AutogradOn", "slopes_by"]


class AutogradOn(torch.enable_grad):
    """Enable autograd in a block, or in a decorated function, also under `torch.no_grad`.

    Raises
    ------
    InputError
        Under `torch.inference_mode`, where autograd records nothing whatever is enabled: derivatives would be zeros.
    """

    def __enter__(self) -> None:
        if torch.is_inference_mode_enabled():
            raise InputError(
                "derivatives that come from autograd are zeros under torch.inference_mode: take torch.no_grad in its "
                "place, which is as fast here; or write derivatives in closed form"
            )
        super().__enter__()


def slopes_by(variables: Sequence[Tensor], values: object, create_graph: bool) -> list[Tensor]:
    """Return the derivatives of the sum of all values by each variable, in its shape; zeros where there is none."""
    if not (isinstance(values, Tensor) and values.requires_grad):
        return [torch.zeros_like(v) for v in variables]
    total = values.sum()
    slopes = torch.autograd.grad(total, variables, create_graph=create_graph, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(v) if s is None else s for s, v in zip(slopes, variables, strict=True)]
