"""How a command ends that is given what it cannot use: with one sentence and an exit status.

Importing this imports nothing heavy, so that a command can answer signals before it imports what is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["refusing"]

REFUSED = 2  # exit status: the input cannot be used


@contextmanager
def refusing() -> Iterator[None]:
    """Turn refused input into one sentence and exit status 2."""
    from torchdismech.errors import InputError

    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(REFUSED) from None
