"""Users' modules that say `records`: which of them recordings may hold, and what is checked of them before each step.

A recording replays operations; the Python of a user's force, field, stencil, elastic law, shape or contact law does not
run again. So these are recorded only if their class says `records`. By this it promises that its results cannot change
without one of the following checks noticing (a force that is constant within a step may run outside of recordings
instead):

- the values of its parameters: these are inputs of a recording, as an optimiser may change them at any time;
- the addresses of its buffers;
- plain settings in its attributes, `training` among them;
- the modules in it, and whether they have hooks.

If one of the last three differs, the step is of another kind, with a recording of its own. A module that holds
something else in its attributes, such as a list, is refused, as that could change unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from torchdismech.fused.function import CONTAINERS
from torchdismech.origin import class_name, class_of, is_of_library
from torchdismech.snapshot import HOOKS

__all__ = ["PLAIN", "declares_records", "hooked", "is_foreign", "settings", "unseen"]

PLAIN = (bool, int, float, str, type(None))  # a recording compares such attributes by their values
# Attributes of these types, and tuples of them and of plain values, are compared by identity: none can change in place.
CONSTANT = (FunctionType, BuiltinFunctionType, torch.dtype, torch.device)
# attributes that every module has, and the list of names of a ParameterDict
INTERNALS = frozenset(vars(nn.ParameterDict()))


def declares_records(owner: nn.Module) -> bool:
    """Return whether a module's own class says `records`; what a base class says does not count."""
    return vars(class_of(owner)).get("records", False) is True


def is_foreign(module: nn.Module) -> bool:
    """Return whether a module is of a class that is not the library's."""
    return not is_of_library(module) and class_of(module) not in CONTAINERS


def unseen(modules: Iterable[nn.Module]) -> str | None:
    """Return what of a force, contact or elastic term could change without a recording noticing; None if nothing could.

    Parameters
    ----------
    modules : the force, contact or term, and the modules in it.
    """
    foreign = [module for module in modules if is_foreign(module)]
    said = {id(module) for owner in foreign if declares_records(owner) for module in owner.modules()}
    silent = [module for module in foreign if id(module) not in said]
    if silent:
        return f"{class_name(silent[0])}, which changes within a step and does not say `records` (see forces.Force)"
    for module in foreign:
        if hooked(module):
            return f"hooks on {class_name(module)}"
        for name, value in () if _is_layer(module) else vars(module).items():
            if name in INTERNALS or name in getattr(module, "set_once", ()):
                continue
            if not isinstance(value, PLAIN) and not _is_setting(value):
                what = f"{class_name(module)}.{name} ({type(value).__name__})"
                return f"{what}, which could change unseen: make it a number, a tuple, a registered tensor or a module"
    return None


def hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks, which are called before or after it."""
    return any(getattr(module, name) for name in HOOKS)


def settings(module: nn.Module) -> Iterator[Any]:
    """Yield the attributes of a module that are compared by identity: functions, dtypes, devices, tuples."""
    return (value for value in vars(module).values() if _is_setting(value))


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(part, PLAIN) or _is_setting(part) for part in value)
    return isinstance(value, CONSTANT)


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module is a layer of torch, all of whose attributes are settings; not a ParameterDict."""
    of_torch = class_of(module).__module__.startswith("torch.nn.")
    return of_torch and not isinstance(module, nn.ParameterDict)
