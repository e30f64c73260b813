"""Which energies, laws and shapes belong to a model already: each belongs to one part of one model.

Its constants are named after that part. If two parts shared one, a control that sets a constant of one part would set
that of the other, training it would train both, and a conversion of one model to another dtype would change both.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakSet

from torch import nn
from torch.nn.utils import parametrize

from torchdismech.errors import InputError
from torchdismech.origin import class_name

__all__ = ["mark_owned", "refuse_shared"]

_owned: WeakSet[nn.Module] = WeakSet()


def mark_owned(parts: Iterable[nn.Module]) -> None:
    """Mark parts as belonging to a model from now on."""
    _owned.update(parts)


def refuse_shared(label: str, parts: Iterable[nn.Module]) -> None:
    """Refuse parts that belong to a model already, or that come twice in `parts`.

    Networks may be shared, so that they can be trained on several robots: a network here is a module all of whose
    parameters require gradients, none made by a parametrization. So modules without parameters may be shared, too.
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
