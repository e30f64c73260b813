"""Derivatives by autograd inside steps, also where the caller has switched gradients off."""

from __future__ import annotations

import torch

from torchdismech.errors import InputError

__all__ = ["AutogradOn"]


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
