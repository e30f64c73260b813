"""The places of a model: its modules, their tensors, and which of these are given for single robots.

A module says by `per_robot` which of its tensors may be given per robot. Such a tensor has two dimensions or more, the
first the robots, or one more for each dimension that `robot_dimension` puts before them. One of fewer dimensions, or
with one robot, is for all.
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

TREES = 2  # of a module: with its parametrizations, and without while their values are in place


def tensors_of(modules: Iterable[nn.Module]) -> list[Tensor | None]:
    """Return the own parameters and buffers of modules, one module after the other; None where one is not set."""
    found: list[Tensor | None] = []
    for module in modules:
        if module._parameters:  # most have none, or no buffers
            found += module._parameters.values()
        if module._buffers:
            found += module._buffers.values()
    return found


def tensor_at(module: nn.Module, name: str) -> Tensor | None:
    """Return a tensor of a module by its name, as `getattr` does, which takes several times as long for most."""
    if name in module._buffers:
        return module._buffers[name]
    return module._parameters[name] if name in module._parameters else getattr(module, name)


def declared(module: nn.Module, name: str, default):
    """Return what a module or its class declares: `getattr` is slow where neither does, and this runs in each step."""
    return getattr(module, name) if name in module.__dict__ or hasattr(type(module), name) else default


def row_of(place: Place) -> tuple[int, ...]:
    """Return the shape of what a robot has of a constant; (1,) of one number."""
    own = getattr(*place)
    return tuple(own.shape[1:] if own.dim() > 1 else own.shape or (1,))


def given_per_robot(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's own tensors that are given for single robots."""
    names = declared(module, "per_robot", ())
    if not names:
        return {}
    axis = declared(module, "robot_dimension", 0)
    tensors = {name: tensor_at(module, name) for name in names}
    return {name: t for name, t in tensors.items() if t is not None and _is_per_robot(t, axis)}


def _is_per_robot(tensor: Tensor, axis: int) -> bool:
    """Return whether a tensor that may be given per robot is; `axis` is the dimension of the robots."""
    return tensor.dim() >= 2 + axis and tensor.shape[axis] > 1


def robot_axis(module: nn.Module, name: str, tensor: Tensor) -> int | None:
    """Return the dimension of the robots in a module's tensor; None where it is for all robots."""
    axis = declared(module, "robot_dimension", 0)
    return axis if name in declared(module, "per_robot", ()) and _is_per_robot(tensor, axis) else None


def batch_sizes(module: nn.Module) -> set[int]:
    """Return the set of batch sizes (above 1) that a module's own tensors are given for."""
    own = given_per_robot(module)
    return {t.shape[declared(module, "robot_dimension", 0)] for t in own.values()} if own else set()


def places_by_batch_size(module: nn.Module) -> dict[int, Place]:
    """Return the batch sizes (above 1) that tensors of a module and of those in it are for, with a place of each."""
    own = declared(module, "robot_dimension", 0)
    found: dict[int, Place] = {}
    for name, given in given_per_robot(module).items():
        found.setdefault(given.shape[own], (module, name))
    for part, name, axis in _tree_of(module).places():
        tensor = tensor_at(part, name)
        if tensor is not None and _is_per_robot(tensor, axis):
            found.setdefault(tensor.shape[axis], (part, name))
    return found


def every_module(module: nn.Module) -> list[nn.Module]:
    """Return a module and those in it, each once, all before those in them.

    Runs several times in each step: modules are looked for again only where they hang together in another way.
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
    """The modules in a module, without that itself, which would stay alive."""

    def __init__(self, root: nn.Module):
        found = {id(root): root}
        waiting = [(class_name(root), root)]
        while waiting:
            label, parent = waiting.pop()
            for name, child in parent._modules.items():
                if child is not None and id(child) not in found:
                    _refuse_compiled(f"{label}.{name}", child)
                    found[id(child)] = child
                    waiting.append((f"{label}.{name}" if is_of_torch(child) else class_name(child), child))
        self.others = list(found.values())[1:]
        self._children = self._children_below(root)
        self._places: list[tuple[nn.Module, str, int]] | None = None

    def stands(self, root: nn.Module) -> bool:
        """Return whether the modules still hang together like this."""
        children = self._children_below(root)
        return len(children) == len(self._children) and all(map(is_, children, self._children))

    def places(self) -> list[tuple[nn.Module, str, int]]:
        """Return where tensors stand that may be given per robot, with the dimension of the robots."""
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
    """Refuse modules whose tensors or derivatives are out of reach: of TorchScript, and what torch.compile returns."""
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
