"""Tensors that temporarily replace those of modules: put in place, taken back, and the originals read meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from torchdismech.origin import class_of
from torchdismech.values.places import Place, every_module

__all__ = ["ExchangedParametrizations", "ExchangedTensor", "exchanges", "originals_in_place", "others_stand_in"]


class ExchangedTensor:
    """A tensor that takes the place of a module's parameter or buffer.

    Like `ExchangedParametrizations`, it can be put in place and taken back at any time, whether it is in place or not.
    """

    __slots__ = ("_before", "_held", "module", "name", "other")

    def __init__(self, module: nn.Module, name: str, tensor: Tensor):
        self.module, self.name, self.other = module, name, tensor
        self._held: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
        self._before = self._held[name]

    def in_place_now(self) -> bool:
        """Return whether the tensor is in place now."""
        return self.other is not self._before and self._held[self.name] is self.other

    def put(self) -> None:
        """Put the tensor in place."""
        self._held[self.name] = self.other

    def take_back(self) -> None:
        """Put the module's own tensor back."""
        self._held[self.name] = self._before


class ExchangedParametrizations:
    """The parametrized tensors of a module replaced by plain buffers, and its class by the original one.

    Tensors in `tensors` are taken from there; the other parametrized ones of the module have their present values.
    """

    def __init__(self, module: nn.Module, tensors: Mapping[Place, Tensor]):
        names = [*module.parametrizations]  # type: ignore[misc]
        present = {n: tensors[module, n] if (module, n) in tensors else getattr(module, n) for n in names}
        held = {name: module.__dict__[name] for name in ("_modules", "_buffers")}
        children = {n: child for n, child in held["_modules"].items() if n != "parametrizations"}
        self.module, self._kind, self._held = module, type(module), held
        self._other_kind = class_of(module)
        self._other = {"_modules": children, "_buffers": {**held["_buffers"], **present}}

    def in_place_now(self) -> bool:
        """Return whether the buffers are in place now."""
        return self.module.__dict__["_modules"] is self._other["_modules"]

    def put(self) -> None:
        """Put the buffers in place."""
        self.module.__dict__.update(self._other)
        _set_kind(self.module, self._other_kind)

    def take_back(self) -> None:
        """Put the module's own parametrizations back."""
        self.module.__dict__.update(self._held)
        _set_kind(self.module, self._kind)


def _set_kind(module: nn.Module, kind: type) -> None:
    object.__setattr__(module, "__class__", kind)  # faster than nn.Module's, which looks among its tensors first


_Exchanged = ExchangedTensor | ExchangedParametrizations


class _Standing(threading.local):
    """The exchanged tensors that this thread has put in place, one list for each `in_place()` block that it is in."""

    def __init__(self) -> None:
        self.lists: dict[int, list[_Exchanged]] = {}


_standing = _Standing()


@contextmanager
def exchanges() -> Iterator[Callable[[_Exchanged], None]]:
    """Yield a function that puts an exchanged tensor in place; all are taken back at the end of the block.

    A signal handler may run between any two calls here, and read a model within `originals_in_place`. So each one is on
    the list before it is put in place, and stays there until it is taken back.
    """
    listed: list[_Exchanged] = []
    _standing.lists[id(listed)] = listed

    def exchange(exchanged: _Exchanged) -> None:
        listed.append(exchanged)
        exchanged.put()

    try:
        yield exchange
    finally:
        for exchanged in reversed(listed):
            exchanged.take_back()
        del _standing.lists[id(listed)]


@contextmanager
def originals_in_place() -> Iterator[None]:
    """Let modules hold their own tensors in the block, though this thread has put others in their places.

    A signal handler or a hook reads a model within it. Other threads have to wait for their turn (`Model.lock`).
    """
    taken_back = []
    try:
        for exchanged in _newest_first():
            if exchanged.in_place_now():  # not so where a signal handler runs while some have been taken back already
                taken_back.append(exchanged)
                exchanged.take_back()
        yield
    finally:
        for exchanged in reversed(taken_back):
            exchanged.put()


def others_stand_in(module: nn.Module) -> bool:
    """Return whether this thread has other tensors in place now for a module or one of its submodules."""
    parts = {id(part) for part in every_module(module)}
    return any(exchanged.in_place_now() and id(exchanged.module) in parts for exchanged in _newest_first())


def _newest_first() -> list[_Exchanged]:
    return [exchanged for listed in reversed(list(_standing.lists.values())) for exchanged in reversed(listed)]
