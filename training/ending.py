"""How the commands of `training` end on input that they cannot use: a one-sentence error and exit status 2.

Importing this module imports nothing heavy, so a command can install its signal handlers before the slow imports.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["refusing"]

REFUSED = 2  # exit status: the input cannot be used


@contextmanager
def refusing() -> Iterator[None]:
    """Print the message of an `InputError` from the block to stderr, and exit with status 2."""
    from torchdismech.errors import InputError

    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(REFUSED) from None
