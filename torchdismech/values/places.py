"""The places of a model: its modules, their tensors, and which of these are given per robot.

A module names in `per_robot` the tensors that may have other numbers for each robot. Such a tensor has the robots in
its dimension `robot_dimension` (0 where the module does not say; 1 for tables over time) and at least one more
dimension after it. It is for all robots if it has fewer dimensions, or only one robot there.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter, is_
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.origin import class_name, is_of_torch

__all__ = [
    "Place",
    "batch_sizes",
    "constants_in_words",
    "declared",
    "every_module",
    "given_per_robot",
    "places_by_batch_size",
    "robot_axis",
    "row_of",
    "tensor_at",
    "tensors_of",
]

Place = tuple[nn.Module, str]  # a module and the name of one of its tensors

SHOWN = 3  # constants of more numbers than this are shown as their shape
TREES = 2  # trees cached for a module: one with its parametrizations, one while plain values stand in for them


def tensors_of(modules: Iterable[nn.Module]) -> list[Tensor | None]:
    """Return the own parameters and buffers of modules, one module after the other; None for one that is not set."""
    tensors: list[Tensor | None] = []
    for module in modules:
        if module._parameters:  # most modules have no parameters, or no buffers
            tensors += module._parameters.values()
        if module._buffers:
            tensors += module._buffers.values()
    return tensors


def constants_in_words(module: nn.Module) -> str:
    """Return the constants in a module's `per_robot` for print: their numbers, or their shapes where these are many."""
    named = {name: getattr(module, name, None) for name in declared(module, "per_robot", ())}
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    return ", ".join(f"{n}={t.tolist() if t.numel() <= SHOWN else tuple(t.shape)}" for n, t in tensors.items())


def tensor_at(module: nn.Module, name: str) -> Tensor | None:
    """Return a tensor of a module by its name, several times as fast as `getattr` for most."""
    if name in module._buffers:
        return module._buffers[name]
    return module._parameters[name] if name in module._parameters else getattr(module, name)


def declared(module: nn.Module, name: str, default):
    """Return an attribute that a module or its class declares, else the default.

    It runs in each step, and `getattr` is slow where neither has the attribute.
    """
    return getattr(module, name) if name in module.__dict__ or hasattr(type(module), name) else default


def row_of(place: Place) -> tuple[int, ...]:
    """Return the shape of one robot's part of a constant; (1,) where that is one number."""
    own = getattr(*place)
    return tuple(own.shape[1:] if own.dim() > 1 else own.shape or (1,))


def given_per_robot(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's own tensors that are given per robot, by name; those of submodules are left out."""
    names = declared(module, "per_robot", ())
    if not names:
        return {}
    axis = declared(module, "robot_dimension", 0)
    tensors = {name: tensor_at(module, name) for name in names}
    return {name: t for name, t in tensors.items() if t is not None and _is_per_robot(t, axis)}


def _is_per_robot(tensor: Tensor, axis: int) -> bool:
    """Return whether a tensor that may be given per robot is so; `axis` is the dimension of the robots."""
    return tensor.dim() >= 2 + axis and tensor.shape[axis] > 1


def robot_axis(module: nn.Module, name: str, tensor: Tensor) -> int | None:
    """Return the dimension in which a module's tensor has the robots; None where it is for all robots."""
    axis = declared(module, "robot_dimension", 0)
    return axis if name in declared(module, "per_robot", ()) and _is_per_robot(tensor, axis) else None


def batch_sizes(module: nn.Module) -> set[int]:
    """Return the batch sizes (above 1) for which a module's own tensors are given."""
    own = given_per_robot(module)
    return {t.shape[declared(module, "robot_dimension", 0)] for t in own.values()} if own else set()


def places_by_batch_size(module: nn.Module) -> dict[int, Place]:
    """Return the batch sizes (above 1) for which a module and its submodules have tensors, with a place for each."""
    own_axis = declared(module, "robot_dimension", 0)
    places: dict[int, Place] = {}
    for name, own_tensor in given_per_robot(module).items():
        places.setdefault(own_tensor.shape[own_axis], (module, name))
    for part, name, axis in _tree_of(module).places():
        tensor = tensor_at(part, name)
        if tensor is not None and _is_per_robot(tensor, axis):
            places.setdefault(tensor.shape[axis], (part, name))
    return places


def every_module(module: nn.Module) -> list[nn.Module]:
    """Return a module and its submodules, each once, a module before those inside it.

    It runs several times in each step, so the list is cached until modules are added, removed or exchanged.
    """
    return [module, *_tree_of(module).others]


_trees: WeakKeyDictionary[nn.Module, list[_Tree]] = WeakKeyDictionary()


def _tree_of(module: nn.Module) -> _Tree:
    trees = _trees.setdefault(module, [])
    for tree in trees:
        if tree.stands(module):
            return tree
    trees.insert(0, _Tree(module))
    del trees[TREES:]
    return trees[0]


class _Tree:
    """The submodules of a module, without the module itself, which the cache would keep alive."""

    def __init__(self, root: nn.Module):
        modules = {id(root): root}
        waiting = [(class_name(root), root)]
        while waiting:
            label, parent = waiting.pop()
            for name, child in parent._modules.items():
                if child is not None and id(child) not in modules:
                    _refuse_compiled(f"{label}.{name}", child)
                    modules[id(child)] = child
                    waiting.append((f"{label}.{name}" if is_of_torch(child) else class_name(child), child))
        self.others = list(modules.values())[1:]
        self._children = self._children_below(root)
        self._places: list[tuple[nn.Module, str, int]] | None = None

    def stands(self, root: nn.Module) -> bool:
        """Return whether the module still has the same submodules in the same places."""
        children = self._children_below(root)
        return len(children) == len(self._children) and all(map(is_, children, self._children))

    def places(self) -> list[tuple[nn.Module, str, int]]:
        """Return (module, name, robots' dimension) of the submodules' tensors that may be given per robot."""
        if self._places is None:
            self._places = [
                (module, name, declared(module, "robot_dimension", 0))
                for module in self.others
                for name in declared(module, "per_robot", ())
            ]
        return self._places

    def _children_below(self, root: nn.Module) -> list[nn.Module | None]:
        below = map(attrgetter("_modules"), [root, *self.others])
        return [*chain.from_iterable(map(dict.values, below))]


def _refuse_compiled(label: str, module: nn.Module) -> None:
    """Refuse modules of TorchScript and of torch.compile, whose tensors or derivatives steps cannot reach."""
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            f"{label}: expected a module of Python, got one of TorchScript (torch.jit.script, torch.jit.trace), whose "
            "tensors steps cannot reach; give the nn.Module that it was made from"
        )
    if type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith("torch."):  # slow to import
        raise InputError(
            f"{label}: expected a module of Python, got what torch.compile made of one, which cannot be differentiated "
            "row by row as steps need it; give the module itself, and let steps compile it (finalize(compile=True)) or "
            "record it (`records = True` in the class of the force or energy)"
        )
