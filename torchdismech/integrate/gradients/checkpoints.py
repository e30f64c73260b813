"""Steps within `torch.utils.checkpoint`: whether a checkpoint is active, and what a step keeps out of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["apart_from_checkpoints", "saved_elsewhere", "within_checkpoint"]


def apart_from_checkpoints() -> AbstractContextManager[Any]:
    """Let autograd save tensors itself in the block, and not through `torch.utils.checkpoint`.

    A checkpoint counts the tensors that are saved, and runs all that it covers once more for a derivative. The
    derivatives of users' forces that a step takes while it is solved must not be counted: they are internal to the
    step.
    """
    if not saved_elsewhere():
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_same, _same)


def saved_elsewhere() -> bool:
    """Return whether tensors that autograd saves go through hooks, as within `torch.utils.checkpoint`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def within_checkpoint() -> bool:
    """Return whether `torch.utils.checkpoint` is active, which runs the step once more when a gradient is taken."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and hooks[0].__module__ == checkpoint.__module__


def _same(tensor: Tensor) -> Tensor:
    return tensor
