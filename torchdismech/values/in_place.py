"""`Values`: tensors for places of a model, which is evaluated with them.

Forces and energies are ordinary `nn.Module`s, which read their tensors as attributes. A step that needs other numbers
(those of a part of the batch, those that a control sets, the leaves of a backward pass) takes them as `Values` and is
evaluated `with values.in_place():`. That is to a model what `torch.func.functional_call` is to a single call. The model
is changed meanwhile, so evaluations take turns (`Model.lock`). What reads a model to keep it, at any time, reads it
`with originals_in_place():`, also where a signal handler asks in the midst of an evaluation.
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
    """Tensors for places of a model, to be evaluated with.

    Parameters
    ----------
    tensors : by place.
    """

    def __init__(self, tensors: Mapping[Place, Tensor] | None = None):
        self.tensors = dict(tensors or {})

    def __len__(self) -> int:
        return len(self.tensors)

    def __or__(self, other: Values) -> Values:
        """Return these and others, the others where both have a place."""
        return Values({**self.tensors, **other.tensors})

    def with_tensors(self, tensors: Sequence[Tensor]) -> Values:
        """Return the same places with other tensors, in the same order."""
        return Values(dict(zip(self.tensors, tensors, strict=True)))

    def without_tensors(self) -> Values:
        """Return the places alone, to be given tensors later; what stands there now is not kept alive."""
        return Values(dict.fromkeys(self.tensors, NOTHING))

    def rows(self, start: int, size: int) -> Values:
        """Return the values of `size` robots from `start` on."""
        return self._of_robots(lambda tensor, axis: tensor.narrow(axis, start, size))

    def axes(self) -> list[int | None]:
        """Return for each of the tensors the dimension of the robots in it, None where it is for all."""
        return [robot_axis(*place, tensor) for place, tensor in self]

    def detached(self) -> Values:
        """Return the same numbers, through which no gradients go."""
        return Values({place: tensor.detach() for place, tensor in self})

    def taken(self, robots: Tensor) -> Values:
        """Return the values of the robots with these numbers (B,)."""
        return self._of_robots(lambda tensor, axis: tensor.index_select(axis, robots))

    def _of_robots(self, taken: Callable[[Tensor, int], Tensor]) -> Values:
        """Return the values with taken(tensor, dimension of the robots) in place of each that is given per robot."""
        found = {}
        for place, tensor in self:
            axis = robot_axis(*place, tensor)
            found[place] = tensor if axis is None else taken(tensor, axis)
        return Values(found)

    def split(self, size: int, count: int) -> list[Values]:
        """Return the values of `count` parts of `size` robots each (see `split`)."""
        parts = {}
        for place, tensor in self:
            axis = robot_axis(*place, tensor)
            parts[place] = [tensor] * count if axis is None else split(tensor, size, axis)
        return [Values({place: tensors[k] for place, tensors in parts.items()}) for k in range(count)]

    def __iter__(self) -> Iterator[tuple[Place, Tensor]]:
        return iter(self.tensors.items())

    def in_place(self) -> AbstractContextManager[None]:
        """Let the modules hold these tensors meanwhile, as if they were their own.

        If a value takes the place of a parametrized tensor, the other parametrized tensors of its module are evaluated
        once, from what stands in their parametrizations then.
        """
        return self._put_in_place() if self.tensors else nullcontext()

    @contextmanager
    def _put_in_place(self) -> Iterator[None]:
        given = {id(module): module for (module, name) in self.tensors if _is_made(module, name)}
        with exchanges() as exchange:
            for (module, name), tensor in self:
                if id(module) not in given:
                    exchange(ExchangedTensor(module, name, tensor))
            if given:
                with torch.set_grad_enabled(torch.is_grad_enabled() or any(t.requires_grad for _, t in self)):
                    for module in given.values():
                        exchange(ExchangedParametrizations(module, self.tensors))
            for (module, name), tensor in self:
                if id(module) in given:
                    exchange(ExchangedTensor(module, name, tensor))
            yield


def _is_made(module: nn.Module, name: str) -> bool:
    """Return whether a module's tensor is made by a parametrization."""
    return "parametrizations" in module._modules and name in module.parametrizations  # type: ignore[operator]


def per_robot(module: nn.Module) -> Values:
    """Return the tensors of a module, and of those in it, that are given for single robots.

    Parametrized tensors are evaluated, with all others of their module: gradients pass through what is made of them.
    """
    found: dict[Place, Tensor] = {}
    for part in every_module(module):
        own = given_per_robot(part)
        if own and parametrize.is_parametrized(part):
            own |= {name: getattr(part, name) for name in part.parametrizations}  # type: ignore[union-attr]
        found |= {(part, name): tensor for name, tensor in own.items()}
    return Values(found)


def evaluated(modules: Iterable[nn.Module]) -> Values:
    """Return what parametrizations make of the tensors of modules, such as `every_module` of one: the numbers of now.

    With these in place the modules are of their own kinds again, which compiled code knows.
    """
    parts = [part for part in modules if "parametrizations" in part._modules]
    return Values({(part, name): getattr(part, name) for part in parts for name in part.parametrizations})  # type: ignore[union-attr]


def requiring_gradients(modules: Sequence[nn.Module]) -> Values:
    """Return the parameters and buffers of modules that require gradients."""
    found = [tensor for tensor in tensors_of(modules) if tensor is not None and tensor.requires_grad]
    if not found:
        return Values()  # in most steps: where they stand takes longer to find
    own = ((part, item) for part in modules for held in (part._parameters, part._buffers) for item in held.items())
    return Values({(part, name): t for part, (name, t) in own if t is not None and t.requires_grad})


def leading(module: nn.Module, batch: int | None, size: int) -> AbstractContextManager[None]:
    """Let a module that is for `batch` robots hold the values of the first `size`; None is for any number."""
    return with_rows(module, batch, slice(0, size))


@contextmanager
def with_rows(module: nn.Module, batch: int | None, rows: slice) -> Iterator[None]:
    """Let a module that is for `batch` robots hold the values of some that are next to each other."""
    if batch is None:
        yield
        return
    with per_robot(module).rows(rows.start, min(batch, rows.stop) - rows.start).in_place():
        yield
