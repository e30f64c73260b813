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
    seventh of the time in which torch is imported. So afterwards they count as old, as if they had been looked through:
    else the next two collections would do that, for a tenth of a second each.
    """
    collects, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    try:
        yield
    finally:
        if not frozen:  # what a program has frozen itself stays so
            gc.freeze()
            gc.unfreeze()  # to the oldest generation
        if collects:
            gc.enable()
