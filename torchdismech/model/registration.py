"""Finds users' tensors that require gradients but are not registered, so that steps would pass them none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.origin import class_name, is_of_user
from torchdismech.values import every_module, tensors_of

__all__ = ["refuse_unregistered", "unregistered"]

NOT_REGISTERED = "register it (nn.Parameter, register_buffer, nn.ModuleList) to have gradients pass through steps"


# known numbers of leaves that evaluations make for themselves
_fresh_leaf_counts: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()


def refuse_unregistered(model: nn.Module, value: Tensor, known: Sequence[Tensor], again: Callable[[], Tensor]) -> None:
    """Refuse a value of the model that depends on tensors which require gradients and are not the model's.

    A step passes gradients to tensors that are registered with the model, and to no others. Leaves that an evaluation
    makes for itself, for example to differentiate a network by its input, are accepted: a second evaluation has other
    ones.

    Parameters
    ----------
    known : other tensors that the value may depend on.
    again : evaluates the value once more; called only if there are leaves that may be made anew.
    """
    registered = [*(t for t in tensors_of(every_module(model)) if t is not None), *known]
    leaves = {id(t) for t in registered}
    inner = {t.grad_fn for t in registered if t.grad_fn is not None}
    others = [leaf for leaf in _leaves(value, inner) if id(leaf) not in leaves]
    if not others or len(others) in _fresh_leaf_counts.get(model, ()):
        return
    again_there = {id(leaf) for leaf in _leaves(again(), inner)}
    for leaf in others:
        if id(leaf) in again_there:
            places = list(unregistered(model)) or [f"a tensor of shape {tuple(leaf.shape)}"]
            raise InputError(f"{', '.join(places)}: requires gradients, but is not registered; {NOT_REGISTERED}")
    _fresh_leaf_counts.setdefault(model, set()).add(len(others))


def _leaves(value: Tensor, inner: set) -> Iterator[Tensor]:
    """Yield the leaves of autograd's graph that a value depends on, without going through the nodes in `inner`."""
    waiting, seen = [value.grad_fn], set(inner)
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(following for following, _ in node.next_functions)


def unregistered(model: nn.Module) -> Iterator[str]:
    """Yield the attributes of users' modules that hold tensors which require gradients without being registered."""
    for module in every_module(model):
        if is_of_user(module):
            for name, value in vars(module).items():
                if name not in ("_parameters", "_buffers", "_modules") and _requires_gradients(value):
                    yield f"{class_name(module)}.{name}"


def _requires_gradients(value, depth: int = 3) -> bool:
    """Return whether an attribute is, or contains, a tensor or a module that requires gradients."""
    if isinstance(value, Tensor):
        return value.requires_grad
    if isinstance(value, nn.Module):
        return any(p.requires_grad for p in value.parameters())
    if depth and isinstance(value, (list, tuple, set, dict)):
        return any(_requires_gradients(v, depth - 1) for v in (value.values() if isinstance(value, dict) else value))
    return False
