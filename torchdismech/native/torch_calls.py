"""TorchCall: an operation of torch with its arguments and results, and a call that carries it out again."""

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
    """A call of an operation of torch that was made.

    Attributes
    ----------
    func, args, kwargs : the operation and its arguments, as `__torch_dispatch__` gets them.
    result : what the operation returned.
    """

    func: OpOverload
    args: tuple
    kwargs: dict[str, Any]
    result: Any

    @property
    def name(self) -> str:
        """Torch's name of the operation, without the overload."""
        return self.func._overloadpacket.__name__

    @property
    def in_place(self) -> bool:
        """Whether the operation writes to some of its arguments."""
        return self.func._schema.is_mutable

    @cached_property
    def results(self) -> list[Tensor]:
        """The tensors that the operation returned."""
        return tensors_in(self.result)

    @cached_property
    def reads(self) -> frozenset[int]:
        """The storages of the arguments."""
        return storages_in((self.args, self.kwargs))

    @property
    def writes(self) -> frozenset[int]:
        """The storages, as they are now, that it writes to: those of the results, or of all arguments if in place."""
        return self.reads if self.in_place else storages_in(self.result)

    def on(self, replace: Callable[[Any], Any]) -> TorchCall:
        """Return the call on other tensors: `replace` is applied to args, kwargs and results."""
        return TorchCall(self.func, replace(self.args), replace(self.kwargs), replace(self.results))

    def again(self) -> Callable[[], Any]:
        """Return a call that carries out the operation and writes to the memory of its results.

        There may be fewer results than the operation has outputs: backward passes leave out unneeded gradients.
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
    """Return the overload with the same arguments that writes to `out` tensors, and the names of these.

    None if there is no such overload, or if the operation returns lists of tensors.
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
