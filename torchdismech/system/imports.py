"""Faster imports of torch and of everything that imports it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collections"]


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch Python's garbage collector off while modules are imported.

    They make some hundred thousand objects, all of which stay; looking through them for garbage again and again takes a
    seventh of the time in which torch is imported. Afterwards they are moved to the oldest generation, as if they had
    been looked through: otherwise each of the next two collections would take a tenth of a second for that.
    """
    collects, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    try:
        yield
    finally:
        if not frozen:  # unfreezing would also release objects that the program has frozen itself
            gc.freeze()
            gc.unfreeze()  # moves all objects to the oldest generation
        if collects:
            gc.enable()
