"""Copies of the laws, shapes and paths that users give to contacts, so that each contact has its own.

A user may give one `Penalty` to a floor and to a ball, or to the floors of two models. Each gets a copy with its own
constants, so that setting them by a control, or training them, changes one contact alone.
"""

from __future__ import annotations

import copy
from itertools import chain
from typing import TypeVar

from torch import nn

from torchdismech.ownership import mark_owned, refuse_shared

__all__ = ["own_copy", "take_trained"]

Part = TypeVar("Part", bound=nn.Module)


def own_copy(part: Part) -> Part:
    """Return a copy of a law, shape or path; if it requires gradients, itself, as an optimiser may hold its tensors."""
    return part if _is_trained(part) else copy.deepcopy(part)


def take_trained(label: str, *parts: nn.Module | None) -> None:
    """Register a contact as the owner of those parts that require gradients, of which it has no copies.

    Raises
    ------
    InputError
        Such a part belongs to another contact already, which would share its constants.
    """
    trained = [part for part in parts if part is not None and _is_trained(part)]
    refuse_shared(label, trained)
    mark_owned(trained)


def _is_trained(part: nn.Module) -> bool:
    return any(tensor.requires_grad for tensor in chain(part.parameters(), part.buffers()))
