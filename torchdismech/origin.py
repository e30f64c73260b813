"""Whose code a module is: of this library, of torch, or of a user.

For a module with parametrized tensors torch makes a class of its own. Here such a module counts as an instance of its
original class: `register_parametrization` changes how a tensor is computed, not who wrote the module.
"""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

__all__ = ["class_name", "class_of", "function_is_of_library", "is_of_library", "is_of_torch", "is_of_user"]

LIBRARY, TORCH = __name__.partition(".")[0], nn.__name__.partition(".")[0]


def class_of(module: nn.Module) -> type:
    """Return the class of a module as its author wrote it, not the one that torch makes for parametrized tensors."""
    return type_before_parametrizations(module)


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class as its author wrote it."""
    return class_of(module).__name__


def is_of_library(module: nn.Module) -> bool:
    """Return whether the class of a module is defined in this library; its submodules do not matter."""
    return _package(class_of(module)) == LIBRARY


def is_of_torch(module: nn.Module) -> bool:
    """Return whether the class of a module is defined in torch; its submodules do not matter."""
    return _package(class_of(module)) == TORCH


def is_of_user(module: nn.Module) -> bool:
    """Return whether the class of a module is neither this library's nor torch's; its submodules do not matter."""
    return _package(class_of(module)) not in (LIBRARY, TORCH)


def function_is_of_library(function: object) -> bool:
    """Return whether a function, or another callable object, is defined in this library."""
    return _package(function) == LIBRARY


def _package(defined: object) -> str:
    """Return the name of the top-level package that defines a class or function; "" where it has no `__module__`."""
    return str(getattr(defined, "__module__", "")).partition(".")[0]
