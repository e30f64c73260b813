"""Derivatives by autograd in the middle of steps, which are taken in any mode of torch but one."""

from __future__ import annotations

import torch

from torchdismech.errors import InputError

__all__ = ["AutogradOn"]


class AutogradOn(torch.enable_grad):
    """Let autograd record in a block, or in a function, also where gradients are off.

    Raises
    ------
    InputError
        Under `torch.inference_mode`, where nothing is recorded, whatever is asked for: derivatives would be zeros.
    """

    def __enter__(self) -> None:
        if torch.is_inference_mode_enabled():
            raise InputError(
                "derivatives that come from autograd are zeros under torch.inference_mode: take torch.no_grad in its "
                "place, which is as fast here; or write derivatives in closed form"
            )
        super().__enter__()
