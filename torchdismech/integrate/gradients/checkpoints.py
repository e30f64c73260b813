"""`torch.utils.checkpoint` around a step: whether one is at work, and what a step keeps out of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["apart_from_checkpoints", "saved_elsewhere", "within_checkpoint"]


def apart_from_checkpoints() -> AbstractContextManager[Any]:
    """Let autograd save tensors itself meanwhile, not by `torch.utils.checkpoint`.

    A checkpoint counts what is saved, and takes all that it covers once more where a derivative is asked for. What a
    step finds of its own is none of that: it asks for derivatives of users' forces while it is solved.
    """
    if not saved_elsewhere():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_same, _same)


def saved_elsewhere() -> bool:
    """Return whether what autograd saves goes through hooks, as within `torch.utils.checkpoint`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def within_checkpoint() -> bool:
    """Return whether `torch.utils.checkpoint` keeps what autograd saves, and takes all once more for a gradient."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and hooks[0].__module__ == checkpoint.__module__


def _same(tensor: Tensor) -> Tensor:
    return tensor
