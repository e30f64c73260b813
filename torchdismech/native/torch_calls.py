"""TorchCall: an operation of torch with what it was given and what it returned, and how it is carried out again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

from torchdismech.native.tensor_trees import storages_in, tensors_in

__all__ = ["TorchCall"]

COPIES = {"_to_copy", "clone"}


@dataclass(frozen=True)
class TorchCall:
    """A call that was made.

    Attributes
    ----------
    func, args, kwargs : as `__torch_dispatch__` gets them.
    result : what it returned.
    """

    func: OpOverload
    args: tuple
    kwargs: dict[str, Any]
    result: Any

    @property
    def name(self) -> str:
        """Torch's name of the operation, for all overloads."""
        return self.func._overloadpacket.__name__

    @property
    def in_place(self) -> bool:
        """Whether it writes to what it is given."""
        return self.func._schema.is_mutable

    @cached_property
    def results(self) -> list[Tensor]:
        """The tensors that it returned."""
        return tensors_in(self.result)

    @cached_property
    def reads(self) -> frozenset[int]:
        """The storages of what it is given."""
        return storages_in((self.args, self.kwargs))

    @property
    def writes(self) -> frozenset[int]:
        """The storages that it writes to, as they are now: in place all that it is given, as it does not say which."""
        return self.reads if self.in_place else storages_in(self.result)

    def on(self, replace: Callable[[Any], Any]) -> TorchCall:
        """Return the call on other tensors; `replace` takes args, kwargs and results with tensors in them."""
        return TorchCall(self.func, replace(self.args), replace(self.kwargs), replace(self.results))

    def again(self) -> Callable[[], Any]:
        """Return a call that carries out the operation and writes its results to where they are.

        Results may be fewer than the operation names: backward passes leave out what nobody asks for.
        """
        if self.in_place:
            return partial(self.func._op, *self.args, **self.kwargs)
        if self.name in COPIES:
            return partial(self.results[0].copy_, self.args[0])
        variant = _out_variant(self.func)
        if variant is None or len(variant[1]) != len(self.results):
            return partial(_copy_results, self.func, self.args, self.kwargs, self.results)
        func, names = variant
        return partial(func._op, *self.args, **self.kwargs, **dict(zip(names, self.results, strict=True)))


@lru_cache(None)
def _out_variant(func: OpOverload) -> tuple[OpOverload, list[str]] | None:
    """Return the overload that takes the same and writes to given tensors, and the names of these; None without one.

    Nor is there one of operations that return lists of tensors.
    """
    if any(str(result.type) != "Tensor" for result in func._schema.returns):
        return None
    taken = [(a.name, str(a.type)) for a in func._schema.arguments]
    packet = func._overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        out = [a.name for a in other._schema.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
        if out and len(out) == len(func._schema.returns) and rest == taken:
            return other, out
    return None


def _copy_results(func: OpOverload, args: tuple, kwargs: dict[str, Any], results: list[Tensor]) -> None:
    for result, new in zip(results, tensors_in(func(*args, **kwargs)), strict=True):
        result.copy_(new)
