"""`Snapshot`: what a model holds at one moment, to tell quickly whether any of it has changed since."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from typing import Any
from weakref import ref

from torch import Tensor, nn

from torchdismech.origin import class_name, is_of_library
from torchdismech.values import Place, Values, every_module, per_robot

__all__ = ["HOOKS", "Snapshot", "labels", "own_tensors", "sources"]

# The attributes of every nn.Module that say what it holds; of the others (STANDARD) HOOKS are those for its hooks.
HELD = ("training", "_parameters", "_buffers", "_modules")
STANDARD = frozenset(vars(nn.Module())).difference(HELD)
HOOKS = tuple(sorted(name for name in STANDARD if name.endswith("_hooks") and "state_dict" not in name))


class Snapshot:
    """The modules of a model, their attributes, and where their tensors lie in memory, at one moment.

    A step asks several questions about a model whose answers stay the same from step to step: how many robots its
    tensors are for, which of them require gradients, which recording serves. They are answered once for a snapshot,
    and a new one is made when `is_current` returns False.

    It notices: another object in an attribute, parameter, buffer or module; a tensor of floating-point numbers with new
    memory, shape, strides or `requires_grad`; the first hook on a module of the library, and the removal of the last
    one. It does not notice: numbers inside tensors (see `versions`), changes inside lists or other objects, or anything
    about private buffers, whose names begin with "_", as long as the object is the same.

    Parameters
    ----------
    root : the module, usually the model. The snapshot does not keep it alive, but may be kept by it.
    kept_as : the name of the attribute of the root in which the snapshot is kept: it is not compared.

    Attributes
    ----------
    others : the submodules of the root at any depth, each once.
    parametrized : the modules some of whose tensors are made by parametrizations.
    requires_gradients : whether some tensors require gradients; of parametrized ones their sources count.
    trained : the tensors that require gradients, by their places; without the sources of parametrizations.
    hooked : whether a module of the library has a forward or backward hook.
    last_look : the occasion on which it was last found out whether the root had changed since, such as a backward pass;
        whether it had not; and names of what was exchanged.
    checked_keys : what has been checked against the root and fits it, such as shapes of states: a key for each.
    """

    def __init__(self, root: nn.Module, kept_as: str):
        self.others = every_module(root)[1:]
        modules = [root, *self.others]
        self._attributes = [itemgetter(*_names(module, kept_as)) for module in modules]
        self._counts = [len(vars(module)) for module in modules]
        self._kinds = [*map(type, modules)]
        dicts: list[dict[str, Any]] = [d for m in modules for d in (m._modules, m._parameters, m._buffers)]
        self._dicts, self._empty = [d for d in dicts if d], [d for d in dicts if not d]
        self._objects = self._objects_of([*map(vars, modules)])
        self._tensors = [tensor for module in modules for tensor in _compared_tensors(module) if _is_real(tensor)]
        self._places = _places(self._tensors)
        self.parametrized = [module for module in modules if "parametrizations" in module._modules]
        self.requires_gradients = any(tensor.requires_grad for tensor in self._tensors)
        self.checked_keys: set[Hashable] = set()
        self.last_look: tuple[Hashable, bool, list[str]] = (None, False, [])
        made_by = {id(other) for module in modules for other in _parametrizations(module)}
        read = [module for module in modules if id(module) not in made_by]
        self._hooks = [vars(module)[name] for module in read if is_of_library(module) for name in HOOKS]
        self.hooked = any(self._hooks)
        seen = {*map(id, self._tensors)}
        places = [(m, name, t) for m in read for own in own_tensors(m) for name, t in own.items() if id(t) in seen]
        self.trained = Values({(module, name): tensor for module, name, tensor in places if tensor.requires_grad})
        where = {id(module): place for place, module in enumerate(modules)}
        constants = [(where[id(module)], name, tensor) for module, name, tensor in places]
        self._constants = [constant for constant in constants if not constant[2].is_inference()]
        self._sources = [(where[id(module)], *source) for module in self.parametrized for source in sources(module)]
        self._root, self._numbers = ref(root), [(place, _numbers_of(module)) for place, module in enumerate(modules)]

    def is_current(self, root: nn.Module) -> bool:
        """Return whether the root still is as it was when the snapshot was made."""
        modules = [root, *self.others]
        attributes = [*map(vars, modules)]
        if [*map(type, modules)] != self._kinds or [*map(len, attributes)] != self._counts or any(self._empty):
            return False
        objects = self._objects_of(attributes)
        same = len(objects) == len(self._objects) and all(map(is_, objects, self._objects))
        return same and _places(self._tensors) == self._places and any(self._hooks) == self.hooked

    @cached_property
    def given_per_robot(self) -> Values:
        """The tensors that are given per robot, for a root without parametrized tensors; see `values.per_robot`."""
        root = self._root()
        assert root is not None
        return per_robot(root)

    def versions(self, sources: bool = False) -> list[int]:
        """Return torch's version counter of each public tensor, which grows whenever the tensor is changed in place.

        Parameters
        ----------
        sources : append the counters of the tensors from which parametrizations make others, for steps that make these
            anew.
        """
        listed = (self._constants, self._sources) if sources else (self._constants,)
        return [tensor._version for held in listed for _, _, tensor in held]

    def changed_since(self, versions: list[int]) -> list[str]:
        """Return the names of the tensors whose numbers were changed in place since `versions` were found."""
        now = self.versions(sources=len(versions) > len(self._constants))
        changed = [k for k, both in enumerate(zip(versions, now, strict=True)) if both[0] != both[1]]
        return self._labels([(*self._constants, *self._sources)[k][:2] for k in changed])

    def exchanged(self, given: Container[Place]) -> list[str]:
        """Return the names of the public tensors that were replaced by others, and of the public numbers that changed.

        Whole numbers of users' modules are left out: many of them count calls.

        Parameters
        ----------
        given : places to leave out, as the caller knows their tensors otherwise.
        """
        root = self._root()
        if root is None or self.is_current(root):
            return []
        modules = [root, *self.others]
        places = [
            (place, name)
            for place, before in self._numbers
            if before != (now := _numbers_of(modules[place]))
            for name in before
            if before[name] != now.get(name) and (modules[place], name) not in given
        ]
        return self._labels(places)

    def _labels(self, places: Sequence[tuple[int, str]]) -> list[str]:
        """Return the names for messages of (module number, attribute name) pairs, such as "Drag.coefficient"."""
        root = self._root()
        if root is None or not places:
            return []
        modules, names = [root, *self.others], labels(root)  # modules no longer in the root are named by their class
        return [
            f"{names.get(modules[place]) or class_name(modules[place])}.{name}{_hook_remark(modules[place], name)}"
            for place, name in places
        ]

    def _objects_of(self, attributes: list[dict[str, Any]]) -> list[Any]:
        """Return all objects that the modules hold: attributes (dictionaries among them), then submodules and tensors.

        It runs in each step, so its loops are all in C.

        Parameters
        ----------
        attributes : `vars` of each module.
        """
        try:
            objects = [*chain.from_iterable(map(call, self._attributes, attributes))]
        except KeyError:  # an attribute was replaced by one of another name
            return []
        return [*objects, *chain.from_iterable(map(dict.values, self._dicts))]


def _hook_remark(module: nn.Module, name: str) -> str:
    """Return the remark for a tensor that a hook of its module recomputes before each call; "" for any other."""
    if not module._forward_pre_hooks or name not in vars(module):
        return ""
    return (
        " (which a hook of its module makes anew in each call, as torch.nn.utils.weight_norm and prune do: take "
        "torch.nn.utils.parametrizations instead, or prune.remove it)"
    )


def _numbers_of(module: nn.Module) -> dict[str, Any]:
    """Return a module's public tensors, each as ("tensor", id), and its public numbers and truths, by name.

    Whole numbers are those of the library's modules alone.
    """
    kinds = (float, bool, int) if is_of_library(module) else (float, bool)
    numbers: dict[str, Any] = {}
    for held in (vars(module), *own_tensors(module)):
        for name, value in held.items():
            if name.startswith("_") or name == "training":
                continue
            if isinstance(value, Tensor):
                numbers[name] = ("tensor", id(value))
            elif type(value) in kinds:
                numbers[name] = value
    return numbers


def _compared_tensors(module: nn.Module) -> list[Tensor]:
    """Return a module's own parameters and its public buffers, without those that are None."""
    parameters, buffers = own_tensors(module)
    public = [tensor for name, tensor in buffers.items() if not name.startswith("_")]
    return [tensor for tensor in (*parameters.values(), *public) if tensor is not None]


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _names(module: nn.Module, kept_as: str) -> list[str]:
    return [name for name in vars(module) if name not in STANDARD and name != kept_as]


def _places(tensors: list[Tensor]) -> tuple[list, ...]:
    """Return the addresses, shapes and strides of tensors, and whether they require gradients."""
    shaped = [*map(SHAPE, tensors)], [*map(Tensor.stride, tensors)]
    return [*map(Tensor.data_ptr, tensors)], *shaped, [*map(REQUIRES_GRADIENTS, tensors)]


def _parametrizations(module: nn.Module) -> list[nn.Module]:
    """Return the modules that make parametrized tensors of a module.

    Steps read only their results, so the tensors inside them are treated apart.
    """
    made_by = module._modules.get("parametrizations")
    return [] if made_by is None else every_module(made_by)


def own_tensors(module: nn.Module) -> tuple[dict, dict]:
    """Return a module's own parameters and buffers, without those of its submodules, as two dictionaries by name."""
    return module._parameters, module._buffers


def sources(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the tensors from which parametrizations make a module's tensors.

    Their names say what is made, such as "EI1 (Factor.log_factor)".
    """
    return [
        (f"{made} ({type(part).__name__}.{name})", tensor)
        for made, parametrization in module.parametrizations.items()  # type: ignore[union-attr, operator]
        for part in every_module(parametrization)
        for own in own_tensors(part)
        for name, tensor in own.items()
        if tensor is not None and not tensor.is_inference()
    ]


def labels(root: nn.Module) -> dict[nn.Module, str]:
    """Return the names for messages of a module and its submodules, in the order of `every_module`.

    A module is named by its class; a module inside a user's module by its path there, such as "Drag.net.0".
    """
    names, named_by_class = {root: class_name(root)}, {root} if is_of_library(root) else set()
    for module in every_module(root):
        for name, child in module._modules.items():
            if child is None or child in names:
                continue
            names[child] = class_name(child) if module in named_by_class else f"{names[module]}.{name}"
            if is_of_library(child) or (module in named_by_class and isinstance(child, (nn.ModuleList, nn.ModuleDict))):
                named_by_class.add(child)
    return {module: names[module] for module in every_module(root)}


SHAPE, REQUIRES_GRADIENTS = attrgetter("shape"), attrgetter("requires_grad")
