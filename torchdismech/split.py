"""Parts of a batch: tensors and modules for so many robots at a time.

A module says by `per_robot` which of its tensors may be given per robot. Such a tensor has two dimensions or more, the
first the robots, or one more for each dimension that `robot_dimension` puts before them. One of fewer dimensions, or
with one robot, is for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

__all__ = ["Splitter", "every_module", "leading", "robots", "split", "with_changes"]

M = TypeVar("M", bound=nn.Module)


def every_module(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and those in it, each once: a fifth of the time of `modules`, which makes names for them."""
    return _not_seen(module, set())


def _not_seen(module: nn.Module, seen: set[int]) -> Iterator[nn.Module]:
    seen.add(id(module))
    yield module
    for child in module._modules.values():
        if child is not None and id(child) not in seen:
            yield from _not_seen(child, seen)


def robots(module: nn.Module) -> set[int]:
    """Return the numbers of robots (above 1) that tensors of a module are given for."""
    tensors = [getattr(module, name) for name in _declared(module, "per_robot", ())]
    return {t.shape[_dimension(module)] for t in tensors if t is not None and _is_per_robot(module, t)}


def _declared(module: nn.Module, name: str, default):
    """Return what a module or its class declares: `getattr` is slow where neither does, and this runs in each step."""
    return getattr(module, name) if name in module.__dict__ or hasattr(type(module), name) else default


def _dimension(module: nn.Module) -> int:
    return _declared(module, "robot_dimension", 0)


def _is_per_robot(module: nn.Module, tensor: Tensor) -> bool:
    """Return whether a tensor that may be given per robot is."""
    dimension = _dimension(module)
    return tensor.dim() >= 2 + dimension and tensor.shape[dimension] > 1


def split(tensor: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    """Return parts of `size` robots each; the last goes back into the one before it where the robots do not divide.

    All parts have the same shape, so that one compiled kernel takes them. They are views but for such a last one.
    Autograd joins their gradients at once, at a cost that does not grow with the number of parts.
    """
    parts = list(tensor.split(size, dim))
    missing = size - parts[-1].shape[dim]
    if missing and len(parts) > 1:
        parts[-1] = torch.cat([parts[-2].narrow(dim, size - missing, missing), parts[-1]], dim)
    return parts


class Splitter:
    """Makes modules for parts of a batch: what is given per robot is split, all else is shared with the whole.

    Tensors that are trained by `torch.nn.utils.parametrize` are evaluated once, and gradients pass through the parts.

    Parameters
    ----------
    batch, size : robots of the whole and of a part, see `split`.
    start : the only part that is made begins with this robot; by default all are made.
    """

    def __init__(self, batch: int, size: int, start: int | None = None):
        self.size, self.start = size, start
        self.count = -(-batch // size) if start is None else 1
        self._made: dict[int, tuple[nn.Module, list[nn.Module]]] = {}

    def parts(self, module: nn.Module) -> list[nn.Module]:
        """Return the module of each part; the module itself where neither it nor what is in it knows single robots."""
        if id(module) not in self._made:  # kept with the module itself, so that no other gets its number
            self._made[id(module)] = (module, self._made_parts(module))
        return self._made[id(module)][1]

    def _split(self, tensor: Tensor, dim: int) -> list[Tensor]:
        return split(tensor, self.size, dim) if self.start is None else [tensor.narrow(dim, self.start, self.size)]

    def _made_parts(self, module: nn.Module) -> list[nn.Module]:
        tensors = {}
        for name in getattr(module, "per_robot", ()):
            value = getattr(module, name)
            if value is not None and _is_per_robot(module, value):
                tensors[name] = self._split(value, _dimension(module))
        children = {name: self.parts(child) for name, child in module.named_children()}
        if not tensors and all(part is child for name, child in module.named_children() for part in children[name]):
            return [module] * self.count
        trained = _trained(module)
        return [
            with_changes(
                module,
                {name: parts[k] for name, parts in tensors.items()},
                {name: parts[k] for name, parts in children.items()},
                trained,
            )
            for k in range(self.count)
        ]


def leading(module: M, batch: int | None, size: int) -> M:
    """Return a module for the first `size` robots of a batch; the module itself where it serves any number (None)."""
    return module if batch is None else cast(M, Splitter(batch, min(batch, size), start=0).parts(module)[0])


def _trained(module: nn.Module) -> dict[str, Tensor]:
    """Return the values of a module's parametrized tensors."""
    if not parametrize.is_parametrized(module):
        return {}
    return {name: getattr(module, name) for name in module.parametrizations}  # type: ignore[union-attr]


def with_changes(
    module: M,
    tensors: dict[str, Tensor],
    children: dict[str, nn.Module],
    trained: dict[str, Tensor] | None = None,
) -> M:
    """Return a copy with other tensors and children, all else shared; `trained` is no longer parametrized in it."""
    copy = object.__new__(type(module))
    copy.__dict__.update(module.__dict__)
    copy._modules = {**module._modules, **children}
    if trained:
        del copy._modules["parametrizations"]
        copy.__class__ = parametrize.type_before_parametrizations(module)
    tensors = {**(trained or {}), **tensors}
    # buffers, also in place of parameters: what is a part of a tensor is no leaf that an optimiser could change
    copy._parameters = {name: p for name, p in module._parameters.items() if name not in tensors}
    copy._buffers = {**module._buffers, **tensors}
    return copy
