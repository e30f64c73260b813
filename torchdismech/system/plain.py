"""The switch that lets everything run as plain Python and torch, as it stands in the files.

With TORCHDISMECH_PLAIN=1 in the environment of a process nothing is recorded, and no compiled code, kernel or
torch.compile takes part, whatever models ask for. So a debugger meets every operation of every step, and one can tell
whether a result is due to the code that makes steps fast. On a CPU a step of one rod takes some 60 times as long, and
results are the same to rounding.
"""

from __future__ import annotations

import os
from functools import cache

from torchdismech.errors import InputError

__all__ = ["PLAIN", "in_plain_torch"]

PLAIN = "TORCHDISMECH_PLAIN"


@cache
def in_plain_torch() -> bool:
    """Return whether the environment sets TORCHDISMECH_PLAIN=1; it is read once in a process.

    Raises
    ------
    InputError : the variable is neither empty, 0 nor 1.
    """
    given = os.environ.get(PLAIN, "0")
    if given not in ("", "0", "1"):
        raise InputError(f"{PLAIN}: expected 0 or 1 in the environment, got {given!r}")
    return given == "1"
