"""Snapshot: what a model holds at one moment, so that one look tells whether any of it has changed since."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

from torch import Tensor, nn

from torchdismech.values import every_module

__all__ = ["Snapshot"]

# of the attributes that every module has, those that say what it holds; the others are its hooks
HELD = ("training", "_parameters", "_buffers", "_modules")
STANDARD = frozenset(vars(nn.Module())).difference(HELD)


class Snapshot:
    """The modules in a module, their attributes, and where their tensors are.

    A step asks several questions about a model whose answers stay the same from step to step: how many robots its
    tensors are for, which of them require gradients, which recording serves. They are answered once for a snapshot,
    which is made anew when `shows` says so. Seen are other objects in attributes, parameters, buffers and modules, and
    that a tensor of real numbers has got other memory, another shape or another `requires_grad`. Not seen are the
    numbers in a tensor, what changes within a list or another object, and what becomes of a private tensor, whose name
    begins with "_", as long as it is the same object.

    Parameters
    ----------
    root : the module. The snapshot does not keep it alive, but may be kept by it.
    kept_as : the name of the attribute of the root in which the snapshot is kept: it is not looked at.

    Attributes
    ----------
    others : the modules in the root, each once.
    parametrized : whether some tensors are made by parametrizations.
    requires_gradients : whether some tensors do; of those that are made, what they are made of.
    fitting : what has been found to fit the root, such as shapes of states.
    """

    def __init__(self, root: nn.Module, kept_as: str):
        self.others = every_module(root)[1:]
        modules = [root, *self.others]
        self._attributes = [itemgetter(*_names(module, kept_as)) for module in modules]
        self._counts = [len(vars(module)) for module in modules]
        self._kinds = [*map(type, modules)]
        self._dicts: list[dict[str, Any]] = []
        for module in modules:
            self._dicts += [module._modules, module._parameters, module._buffers]
        self._objects = self._objects_of(modules)
        own = chain.from_iterable((*module._parameters.items(), *module._buffers.items()) for module in modules)
        public = [tensor for name, tensor in own if tensor is not None and not name.startswith("_")]
        self._tensors = [tensor for tensor in public if tensor.is_floating_point() or tensor.is_complex()]
        self._places = _places(self._tensors)
        self.parametrized = any("parametrizations" in module._modules for module in modules)
        self.requires_gradients = any(tensor.requires_grad for tensor in self._tensors)
        self.fitting: set[Hashable] = set()

    def shows(self, root: nn.Module) -> bool:
        """Return whether the root is as it was."""
        modules = [root, *self.others]
        attributes = map(vars, modules)
        if [*map(type, modules)] != self._kinds or [*map(len, attributes)] != self._counts:
            return False
        objects = self._objects_of(modules)
        same = len(objects) == len(self._objects) and all(map(is_, objects, self._objects))
        return same and _places(self._tensors) == self._places

    def _objects_of(self, modules: list[nn.Module]) -> list[Any]:
        """Return what the modules hold; attributes first, among them the dictionaries of which the rest is."""
        try:
            attributes = [names(vars(module)) for names, module in zip(self._attributes, modules, strict=True)]
        except KeyError:  # one took the place of another
            return []
        return [*chain.from_iterable(attributes), *chain.from_iterable(map(dict.values, self._dicts))]


def _names(module: nn.Module, kept_as: str) -> list[str]:
    return [name for name in vars(module) if name not in STANDARD and name != kept_as]


def _places(tensors: list[Tensor]) -> tuple[list, list, list]:
    """Return where tensors are, how they are shaped, and whether they require gradients."""
    return [*map(Tensor.data_ptr, tensors)], [*map(SHAPE, tensors)], [*map(REQUIRES_GRADIENTS, tensors)]


SHAPE, REQUIRES_GRADIENTS = attrgetter("shape"), attrgetter("requires_grad")
