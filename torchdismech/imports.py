"""Imports that take long: of torch, and of all that stands on it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collections"]


@contextmanager
def without_collections() -> Iterator[None]:
    """Let Python's garbage collector wait while modules are imported.

    They make some hundred thousand objects, all of which stay; looking through them for garbage again and again takes a
    seventh of the time in which torch is imported.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
