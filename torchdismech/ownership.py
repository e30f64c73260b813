"""Energies, laws and shapes that belong to one part of one model, as forces do: their constants go by its names.

Where two had one, a control that sets a constant of the one would set that of the other, training it would train both,
and a model in another dtype would change the numbers of the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakSet

from torch import nn
from torch.nn.utils import parametrize

from torchdismech.errors import InputError
from torchdismech.origin import class_name

__all__ = ["own", "refuse_shared"]

_owned: WeakSet[nn.Module] = WeakSet()


def own(parts: Iterable[nn.Module]) -> None:
    """Let parts belong to where they are from now on."""
    for part in parts:
        _owned.add(part)


def refuse_shared(label: str, parts: Iterable[nn.Module]) -> None:
    """Refuse parts that belong elsewhere already, or come twice.

    Networks may be shared, to be trained on several robots: all their parameters require gradients, and none is a
    constant. So may be what has no parameters.
    """
    seen: set[int] = set()
    for part in parts:
        if (part in _owned or id(part) in seen) and not _is_network(part):
            raise InputError(
                f"{label}: this {class_name(part)} belongs to another model, or to another part of this one, which "
                "would share its constants: make a new one for each; those of your own may hold one network"
            )
        seen.add(id(part))


def _is_network(part: nn.Module) -> bool:
    made = any(parametrize.is_parametrized(module) for module in part.modules())
    return not made and all(parameter.requires_grad for parameter in part.parameters())
