"""`Values`: tensors by place, with which a model is evaluated instead of its own.

Forces and energies are ordinary `nn.Module`s, which read their tensors as attributes. A step that needs other numbers
(those of a part of the batch, those that a control sets, the leaves of a backward pass) holds them as `Values` and is
evaluated `with values.in_place():`. That is to a model what `torch.func.functional_call` is to a single call. The model
is changed within the block, so evaluations take turns (`Model.lock`). Code that saves or copies a model reads it
`with originals_in_place():`, also where a signal handler runs in the middle of an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchdismech.values.exchange import ExchangedParametrizations, ExchangedTensor, exchanges
from torchdismech.values.places import Place, every_module, given_per_robot, robot_axis, tensors_of
from torchdismech.values.rows import split

__all__ = ["Values", "evaluated", "leading", "per_robot", "requiring_gradients", "with_rows"]

NOTHING = torch.empty(0, device="cpu")


class Values:
    """Tensors by place of a model (a module and the name of its tensor), with which it can be evaluated.

    A tensor that is given per robot has the robots in the dimension that `places.robot_axis` says.

    Parameters
    ----------
    tensors : by place.
    """

    def __init__(self, tensors: Mapping[Place, Tensor] | None = None):
        self.tensors = dict(tensors or {})

    def __len__(self) -> int:
        return len(self.tensors)

    def __or__(self, other: Values) -> Values:
        """Return these and the others' tensors; where both have a place, the others' one."""
        return Values({**self.tensors, **other.tensors})

    def with_tensors(self, tensors: Sequence[Tensor]) -> Values:
        """Return these places with other tensors, given in the same order."""
        return Values(dict(zip(self.tensors, tensors, strict=True)))

    def without_tensors(self) -> Values:
        """Return these places with empty tensors, for `with_tensors` to fill later; no tensor is kept alive."""
        return Values(dict.fromkeys(self.tensors, NOTHING))

    def rows(self, start: int, size: int) -> Values:
        """Return the values of the robots from `start` to `start + size`."""
        return self._of_robots(lambda tensor, axis: tensor.narrow(axis, start, size))

    def axes(self) -> list[int | None]:
        """Return for each tensor the dimension in which it has the robots; None where it is for all robots."""
        return [robot_axis(*place, tensor) for place, tensor in self]

    def detached(self) -> Values:
        """Return the values with detached tensors."""
        return Values({place: tensor.detach() for place, tensor in self})

    def taken(self, robots: Tensor) -> Values:
        """Return the values of the robots with these indices (B,)."""
        return self._of_robots(lambda tensor, axis: tensor.index_select(axis, robots))

    def _of_robots(self, select: Callable[[Tensor, int], Tensor]) -> Values:
        """Return the values with select(tensor, robots' dimension) in place of each tensor that is given per robot."""
        tensors = {}
        for place, tensor in self:
            axis = robot_axis(*place, tensor)
            tensors[place] = tensor if axis is None else select(tensor, axis)
        return Values(tensors)

    def split(self, size: int, count: int) -> list[Values]:
        """Return the values of `count` chunks of `size` robots each, as `rows.split` makes them."""
        parts = {}
        for place, tensor in self:
            axis = robot_axis(*place, tensor)
            parts[place] = [tensor] * count if axis is None else split(tensor, size, axis)
        return [Values({place: tensors[k] for place, tensors in parts.items()}) for k in range(count)]

    def __iter__(self) -> Iterator[tuple[Place, Tensor]]:
        return iter(self.tensors.items())

    def in_place(self) -> AbstractContextManager[None]:
        """Let the modules hold these tensors in a `with` block, as if they were their own.

        If a value takes the place of a parametrized tensor, the other parametrized tensors of its module are evaluated
        once, from the parameters that stand in their parametrizations then.
        """
        return self._put_in_place() if self.tensors else nullcontext()

    @contextmanager
    def _put_in_place(self) -> Iterator[None]:
        parametrized = {id(module): module for (module, name) in self.tensors if _is_parametrized(module, name)}
        with exchanges() as exchange:
            for (module, name), tensor in self:
                if id(module) not in parametrized:
                    exchange(ExchangedTensor(module, name, tensor))
            if parametrized:
                with torch.set_grad_enabled(torch.is_grad_enabled() or any(t.requires_grad for _, t in self)):
                    for module in parametrized.values():
                        exchange(ExchangedParametrizations(module, self.tensors))
            for (module, name), tensor in self:
                if id(module) in parametrized:
                    exchange(ExchangedTensor(module, name, tensor))
            yield


def _is_parametrized(module: nn.Module, name: str) -> bool:
    """Return whether a module's tensor is the result of a parametrization."""
    return "parametrizations" in module._modules and name in module.parametrizations  # type: ignore[operator]


def per_robot(module: nn.Module) -> Values:
    """Return the tensors of a module and its submodules that are given per robot.

    Where a module has such a tensor, its parametrized ones are evaluated and returned, too, so that gradients reach the
    parameters that they are made of.
    """
    tensors: dict[Place, Tensor] = {}
    for part in every_module(module):
        own = given_per_robot(part)
        if own and parametrize.is_parametrized(part):
            own |= {name: getattr(part, name) for name in part.parametrizations}  # type: ignore[union-attr]
        tensors |= {(part, name): tensor for name, tensor in own.items()}
    return Values(tensors)


def evaluated(modules: Iterable[nn.Module]) -> Values:
    """Return the present values of all parametrized tensors of modules, such as `every_module` of one.

    With these in place the modules have their original classes, which compiled code knows.
    """
    parts = [part for part in modules if "parametrizations" in part._modules]
    return Values({(part, name): getattr(part, name) for part in parts for name in part.parametrizations})  # type: ignore[union-attr]


def requiring_gradients(modules: Sequence[nn.Module]) -> Values:
    """Return the parameters and buffers of modules that require gradients."""
    tensors = [tensor for tensor in tensors_of(modules) if tensor is not None and tensor.requires_grad]
    if not tensors:
        return Values()  # so in most steps; finding places takes longer
    own = ((part, item) for part in modules for held in (part._parameters, part._buffers) for item in held.items())
    return Values({(part, name): t for part, (name, t) in own if t is not None and t.requires_grad})


def leading(module: nn.Module, batch: int | None, size: int) -> AbstractContextManager[None]:
    """Let a module whose tensors are for `batch` robots hold those of the first `size` in a `with` block.

    `batch` None: the module is for any number of robots, and stays as it is.
    """
    return with_rows(module, batch, slice(0, size))


@contextmanager
def with_rows(module: nn.Module, batch: int | None, rows: slice) -> Iterator[None]:
    """Let a module whose tensors are for `batch` robots hold those of the robots in `rows`, in a `with` block."""
    if batch is None:
        yield
        return
    with per_robot(module).rows(rows.start, min(batch, rows.stop) - rows.start).in_place():
        yield
