"""The numbers of a model as data: which tensors its modules hold, and how they are evaluated with others.

Forces and energies are ordinary `nn.Module`s, which read their tensors as attributes. A step that needs other numbers
(those of a part of the batch, those that a control sets, the leaves of a backward pass) takes them as `Values` and is
evaluated `with values.in_place():`. That is to a model what `torch.func.functional_call` is to a single call. The model
is changed meanwhile, so evaluations take turns (`Model.lock`). What reads a model to keep it, at any time, reads it
`with originals_in_place():`, also where a signal handler asks in the midst of an evaluation.

A module says by `per_robot` which of its tensors may be given per robot. Such a tensor has two dimensions or more, the
first the robots, or one more for each dimension that `robot_dimension` puts before them. One of fewer dimensions, or
with one robot, is for all.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from operator import attrgetter, is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchdismech.errors import InputError, shown

__all__ = [
    "Given",
    "Place",
    "Values",
    "batch_sizes",
    "evaluated",
    "every_module",
    "leading",
    "numbers",
    "originals_in_place",
    "others_stand_in",
    "per_robot",
    "places_by_batch_size",
    "problem_of_bounds",
    "real",
    "refuse_no_robots",
    "refuse_out_of_bounds",
    "refuse_table",
    "refuse_unfitting",
    "requiring_gradients",
    "row_of",
    "split",
    "tensor_at",
    "tensor_of",
    "tensors_of",
    "where_rows",
]

Place = tuple[nn.Module, str]  # a module and the name of one of its tensors
Row = float | Tensor | np.ndarray | Sequence[float | Sequence[float]]
Given = float | np.number | Tensor | np.ndarray | Sequence[Row]  # numbers as users give them

NOTHING = torch.empty(0, device="cpu")
TREES = 2  # of a module: with its parametrizations, and without while their values are in place


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
        return [_robot_axis(*place, tensor) for place, tensor in self]

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
            axis = _robot_axis(*place, tensor)
            found[place] = tensor if axis is None else taken(tensor, axis)
        return Values(found)

    def split(self, size: int, count: int) -> list[Values]:
        """Return the values of `count` parts of `size` robots each (see `split`)."""
        parts = {}
        for place, tensor in self:
            axis = _robot_axis(*place, tensor)
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
        with _exchanges() as exchange:
            for (module, name), tensor in self:
                if id(module) not in given:
                    exchange(_ExchangedTensor(module, name, tensor))
            if given:
                with torch.set_grad_enabled(torch.is_grad_enabled() or any(t.requires_grad for _, t in self)):
                    for module in given.values():
                        exchange(_ExchangedParametrizations(module, self.tensors))
            for (module, name), tensor in self:
                if id(module) in given:
                    exchange(_ExchangedTensor(module, name, tensor))
            yield


def _is_made(module: nn.Module, name: str) -> bool:
    """Return whether a module's tensor is made by a parametrization."""
    return "parametrizations" in module._modules and name in module.parametrizations  # type: ignore[operator]


class _ExchangedTensor:
    """A tensor that takes the place of a parameter or buffer.

    Like `_ExchangedParametrizations`, it can be put in place and taken back at any time, whether it is there or not.
    """

    __slots__ = ("_before", "_held", "module", "name", "other")

    def __init__(self, module: nn.Module, name: str, tensor: Tensor):
        self.module, self.name, self.other = module, name, tensor
        self._held: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
        self._before = self._held[name]

    def stands(self) -> bool:
        return self.other is not self._before and self._held[self.name] is self.other

    def put(self) -> None:
        self._held[self.name] = self.other

    def take_back(self) -> None:
        self._held[self.name] = self._before


class _ExchangedParametrizations:
    """The parametrized tensors of a module as buffers: those that are given, and the present values of others."""

    def __init__(self, module: nn.Module, tensors: Mapping[Place, Tensor]):
        names = [*module.parametrizations]  # type: ignore[misc]
        present = {n: tensors[module, n] if (module, n) in tensors else getattr(module, n) for n in names}
        held = {name: module.__dict__[name] for name in ("_modules", "_buffers")}
        children = {n: child for n, child in held["_modules"].items() if n != "parametrizations"}
        self.module, self._kind, self._held = module, type(module), held
        self._other_kind = parametrize.type_before_parametrizations(module)
        self._other = {"_modules": children, "_buffers": {**held["_buffers"], **present}}

    def stands(self) -> bool:
        return self.module.__dict__["_modules"] is self._other["_modules"]

    def put(self) -> None:
        self.module.__dict__.update(self._other)
        _set_kind(self.module, self._other_kind)

    def take_back(self) -> None:
        self.module.__dict__.update(self._held)
        _set_kind(self.module, self._kind)


def _set_kind(module: nn.Module, kind: type) -> None:
    object.__setattr__(module, "__class__", kind)  # a module's own way first asks whether this is one of its tensors


_Exchanged = _ExchangedTensor | _ExchangedParametrizations


class _Standing(threading.local):
    """What this thread has put in places of models, one list for each `in_place()` that it is within."""

    def __init__(self) -> None:
        self.lists: dict[int, list[_Exchanged]] = {}


_standing = _Standing()


@contextmanager
def _exchanges() -> Iterator[Callable[[_Exchanged], None]]:
    """Yield what puts something in its place; all of it is taken back in the end.

    A signal handler may run between any two calls here, and read a model by `originals_in_place`: what stands in a
    place is on the list.
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
    """Let modules hold their own tensors in a block, though this thread has put others in their places.

    That is how a signal handler finds them, or a hook; other threads have to wait for their turn (`Model.lock`).
    """
    taken = []
    try:
        for exchanged in _newest_first():
            if exchanged.stands():  # a handler may come when some have been taken back already
                taken.append(exchanged)
                exchanged.take_back()
        yield
    finally:
        for exchanged in reversed(taken):
            exchanged.put()


def others_stand_in(module: nn.Module) -> bool:
    """Return whether this thread has put tensors that are not their own into a module and those in it."""
    parts = {id(part) for part in every_module(module)}
    return any(exchanged.stands() and id(exchanged.module) in parts for exchanged in _newest_first())


def _newest_first() -> list[_Exchanged]:
    return [exchanged for listed in reversed(list(_standing.lists.values())) for exchanged in reversed(listed)]


# ---- what a model holds ------------------------------------------------------------------------------------------


def per_robot(module: nn.Module) -> Values:
    """Return the tensors of a module, and of those in it, that are given for single robots.

    Parametrized tensors are evaluated, with all others of their module: gradients pass through what is made of them.
    """
    found: dict[Place, Tensor] = {}
    for part in every_module(module):
        own = _given_per_robot(part)
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


def tensors_of(modules: Iterable[nn.Module]) -> list[Tensor | None]:
    """Return the own parameters and buffers of modules, one module after the other; None where one is not set."""
    found: list[Tensor | None] = []
    for module in modules:
        if module._parameters:  # most have none, or no buffers
            found += module._parameters.values()
        if module._buffers:
            found += module._buffers.values()
    return found


def batch_sizes(module: nn.Module) -> set[int]:
    """Return the set of batch sizes (above 1) that a module's own tensors are given for."""
    own = _given_per_robot(module)
    return {t.shape[_declared(module, "robot_dimension", 0)] for t in own.values()} if own else set()


def row_of(place: Place) -> tuple[int, ...]:
    """Return the shape of what a robot has of a constant; (1,) of one number."""
    own = getattr(*place)
    return tuple(own.shape[1:] if own.dim() > 1 else own.shape or (1,))


def tensor_of(value: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor as it is, where it is, in a dtype if one is given; other numbers become a tensor on the CPU.

    On the CPU whatever torch's default device is: models are built there.
    """
    if isinstance(value, Tensor):
        return value if dtype is None else value.to(dtype)
    return torch.as_tensor(value, dtype=dtype, device="cpu")


def real(value: Any) -> Tensor:
    """Return a number as a tensor: one of floats as it is, all others in float64.

    Whole numbers would stay whole in a model, whose compiled loops take their bits for those of floats.

    Raises
    ------
    TypeError, ValueError, RuntimeError : the value is no number and no list of numbers, or complex (`InputError`).
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    if "complex" in str(getattr(value, "dtype", "")):  # torch would leave out the imaginary part
        raise InputError(f"expected real numbers, got {value.dtype}")
    return tensor_of(value, torch.float64)


def numbers(value: Any, where: str) -> Tensor:
    """Return numbers as a tensor, as `real` does, which gradients pass; refuse what is none in words."""
    try:
        return real(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where}: expected numbers, got {shown(value)}") from error


def refuse_no_robots(tensor: Tensor, where: str) -> None:
    """Refuse a constant of no robots, such as an empty selection of rows (0, 1), which would fit no state."""
    if tensor.dim() > 1 and not len(tensor):
        raise InputError(f"{where}: expected numbers of at least one robot, got shape {tuple(tensor.shape)}, of none")


def refuse_unfitting(label: str, place: Place, value: Tensor, batch: int) -> None:
    """Refuse a value that cannot stand in a place: expected is a row of each of `batch` robots.

    One number () for all is right where the constant is one number.
    """
    module, name = place
    refuse_table(label, place)
    if not isinstance(value, Tensor):
        raise InputError(f"{label}: expected a tensor, got {type(value).__name__}")
    own, row = getattr(module, name), row_of(place)
    number = row == (1,) and not value.dim()
    if not number and tuple(value.shape) != (batch, *row):
        expected = f"() or {(batch, *row)}" if row == (1,) else str((batch, *row))
        raise InputError(f"{label}: expected shape {expected}, got {tuple(value.shape)}")
    if value.dtype != own.dtype or value.device != own.device:
        raise InputError(f"{label}: expected {own.dtype} on {own.device}, got {value.dtype} on {value.device}")


def refuse_table(label: str, place: Place) -> None:
    """Refuse a place of a table over time, in which a step has nothing to set."""
    if _declared(place[0], "robot_dimension", 0):
        raise InputError(
            f"{label}: a table over time cannot be set in a step; set what it gives, or train it by trainable.shifted"
        )


def refuse_out_of_bounds(label: str, place: Place, value: Tensor, others: Mapping[Place, Tensor]) -> None:
    """Refuse numbers in a place that are not within the bounds that its module declares; NaN is within all.

    Names in `positive` are above zero, those in `not_negative` zero or more. `open_intervals` gives for names the two
    numbers that they lie between, and `not_below` pairs of names, of which the first is not below the second.

    Parameters
    ----------
    others : what stands in other places meanwhile.
    """
    module, name = place
    if name in _declared(module, "positive", ()) and bool((value <= 0).any()):
        raise InputError(f"{label}: expected more than 0, got {float(value.min()):g}")
    if name in _declared(module, "not_negative", ()) and bool((value < 0).any()):
        raise InputError(f"{label}: expected 0 or more, got {float(value.min()):g}")
    if problem := problem_of_bounds(place, value, others):
        raise InputError(f"{label}: {problem}")


def problem_of_bounds(place: Place, value: Tensor, others: Mapping[Place, Tensor]) -> str | None:
    """Return what of `open_intervals` and `not_below` a value in a place does not keep; None where it keeps both."""
    module, name = place
    intervals = _declared(module, "open_intervals", {})
    low, high = intervals.get(name, (-math.inf, math.inf))
    wrong = value[(value <= low) | (value >= high)]
    if name in intervals and wrong.numel():
        expected = f"more than {low:g}" if high == math.inf else f"a number between {low:g} and {high:g}"
        return f"expected {expected}, got {float(wrong[0]):g}"
    pairs = (pair for pair in _declared(module, "not_below", ()) if name in pair)
    return next(filter(None, (_problem_of_order(place, pair, value, others) for pair in pairs)), None)


def _problem_of_order(place: Place, pair: tuple[str, str], value: Tensor, others: Mapping[Place, Tensor]) -> str | None:
    """Return what is wrong where the first of two constants of a module is below the second."""
    module, name = place
    (other_name,) = set(pair) - {name}
    with torch.no_grad():
        other = others.get((module, other_name), tensor_at(module, other_name))
        if other is None:
            return None
        own, beside = torch.broadcast_tensors(value, other)
        wrong = own < beside if name == pair[0] else own > beside
        if not bool(wrong.any()):
            return None
    bound = "no less" if name == pair[0] else "no more"
    return f"expected {bound} than {other_name}, {float(beside[wrong][0]):g}, got {float(own[wrong][0]):g}"


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


def every_module(module: nn.Module) -> list[nn.Module]:
    """Return a module and those in it, each once, all before those in them.

    Runs several times in each step: modules are looked for again only where they hang together in another way.
    """
    return [module, *_tree_of(module).others]


def places_by_batch_size(module: nn.Module) -> dict[int, Place]:
    """Return the batch sizes (above 1) that tensors of a module and of those in it are for, with a place of each."""
    own = _declared(module, "robot_dimension", 0)
    found: dict[int, Place] = {}
    for name, given in _given_per_robot(module).items():
        found.setdefault(given.shape[own], (module, name))
    for part, name, axis in _tree_of(module).places():
        tensor = tensor_at(part, name)
        if tensor is not None and _is_per_robot(tensor, axis):
            found.setdefault(tensor.shape[axis], (part, name))
    return found


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
        waiting = [(type(root).__name__, root)]
        while waiting:
            label, parent = waiting.pop()
            for name, child in parent._modules.items():
                if child is not None and id(child) not in found:
                    _refuse_compiled(f"{label}.{name}", child)
                    found[id(child)] = child
                    of_torch = type(child).__module__.partition(".")[0] == "torch"
                    waiting.append((f"{label}.{name}" if of_torch else type(child).__name__, child))
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
            declared = ((m, _declared(m, "per_robot", ()), _declared(m, "robot_dimension", 0)) for m in self.others)
            self._places = [(module, name, axis) for module, names, axis in declared for name in names]
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


_trees: WeakKeyDictionary[nn.Module, list[_Tree]] = WeakKeyDictionary()


def _given_per_robot(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's own tensors that are given for single robots."""
    names = _declared(module, "per_robot", ())
    if not names:
        return {}
    axis = _declared(module, "robot_dimension", 0)
    tensors = {name: tensor_at(module, name) for name in names}
    return {name: t for name, t in tensors.items() if t is not None and _is_per_robot(t, axis)}


def _is_per_robot(tensor: Tensor, axis: int) -> bool:
    """Return whether a tensor that may be given per robot is; `axis` is the dimension of the robots."""
    return tensor.dim() >= 2 + axis and tensor.shape[axis] > 1


def tensor_at(module: nn.Module, name: str) -> Tensor | None:
    """Return a tensor of a module by its name, as `getattr` does, which takes several times as long for most."""
    if name in module._buffers:
        return module._buffers[name]
    return module._parameters[name] if name in module._parameters else getattr(module, name)


def _robot_axis(module: nn.Module, name: str, tensor: Tensor) -> int | None:
    """Return the dimension of the robots in a module's tensor; None where it is for all robots."""
    axis = _declared(module, "robot_dimension", 0)
    return axis if name in _declared(module, "per_robot", ()) and _is_per_robot(tensor, axis) else None


def _declared(module: nn.Module, name: str, default):
    """Return what a module or its class declares: `getattr` is slow where neither does, and this runs in each step."""
    return getattr(module, name) if name in module.__dict__ or hasattr(type(module), name) else default


# ---- parts of a batch --------------------------------------------------------------------------------------------


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


def where_rows(take: Tensor, first: Tensor, second: Tensor | float) -> Tensor:
    """Return the rows (B, ..) of `first` where `take` (B,) holds, else those of `second`, or one number."""
    return torch.where(take.view(-1, *[1] * (first.dim() - 1)), first, second)
