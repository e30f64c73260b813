"""What a contact has of its own: copies of the laws, shapes and paths that it is given.

One `Penalty` may be given to a floor and to a ball, or to the floors of two models. Each gets constants of its own, so
that a control that sets those of one, or training them, does not change the other.
"""

from __future__ import annotations

import copy
from itertools import chain
from typing import TypeVar

from torch import nn

from torchdismech.ownership import own, refuse_shared

__all__ = ["of_its_own", "take_trained"]

Part = TypeVar("Part", bound=nn.Module)


def of_its_own(part: Part) -> Part:
    """Return a copy of what a contact is given; itself where it requires gradients, as an optimiser may hold it."""
    return part if _is_trained(part) else copy.deepcopy(part)


def take_trained(label: str, *parts: nn.Module | None) -> None:
    """Let those of a contact's parts that require gradients, which are no copies, belong to it alone.

    Raises
    ------
    InputError
        One belongs to another contact, which would share its constants.
    """
    trained = [part for part in parts if part is not None and _is_trained(part)]
    refuse_shared(label, trained)
    own(trained)


def _is_trained(part: nn.Module) -> bool:
    return any(tensor.requires_grad for tensor in chain(part.parameters(), part.buffers()))
