"""Tensors and storages in nested tuples, lists and dicts, as operations of torch take and return them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["storages_in", "tensors_in"]


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists and dicts, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [tensor for branch in tree for tensor in tensors_in(branch)]


def storages_in(tree: Any) -> frozenset[int]:
    """Return the addresses where the storages of all tensors in a tree begin, except for empty tensors."""
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors_in(tree) if tensor.numel())
