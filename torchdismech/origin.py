"""Whose code a module is: of this library, of torch, or of a user.

A module with parametrized tensors is of a class that torch made of its own for it. It is taken for what it was before:
`register_parametrization` changes what a tensor is made of, and not who wrote the module.
"""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

__all__ = ["class_name", "class_of", "function_is_of_library", "is_of_library", "is_of_torch", "is_of_user"]

LIBRARY, TORCH = __name__.partition(".")[0], nn.__name__.partition(".")[0]


def class_of(module: nn.Module) -> type:
    """Return the class of a module as its author wrote it, also where its tensors are parametrized."""
    return type_before_parametrizations(module)


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class as its author wrote it."""
    return class_of(module).__name__


def is_of_library(module: nn.Module) -> bool:
    """Return whether this library brings the class of a module; those in the module are not looked at."""
    return _package(class_of(module)) == LIBRARY


def is_of_torch(module: nn.Module) -> bool:
    """Return whether torch brings the class of a module; those in the module are not looked at."""
    return _package(class_of(module)) == TORCH


def is_of_user(module: nn.Module) -> bool:
    """Return whether neither this library nor torch brings the class of a module; those in it are not looked at."""
    return _package(class_of(module)) not in (LIBRARY, TORCH)


def function_is_of_library(function: object) -> bool:
    """Return whether a function, or another object that can be called, is defined in this library."""
    return _package(function) == LIBRARY


def _package(defined: object) -> str:
    """Return the name of the package in which a class or a function is defined; "" where it does not say so."""
    return str(getattr(defined, "__module__", "")).partition(".")[0]
