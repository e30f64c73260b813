"""Whether everything is to run as plain Python and torch, as it stands in the files.

With TORCHDISMECH_PLAIN=1 in the environment of a process nothing is recorded, and no compiled code, kernels or
torch.compile take part, whatever models ask for: a debugger meets every operation of every step, on a CPU some 20 times
as slowly. It is for a look at a step, and for telling whether a result is due to what makes steps
fast. Results are the same to rounding.
"""

from __future__ import annotations

import os
from functools import cache

from torchdismech.errors import InputError

__all__ = ["PLAIN", "in_plain_torch"]

PLAIN = "TORCHDISMECH_PLAIN"


@cache
def in_plain_torch() -> bool:
    """Return whether the environment asks for it; read once in a process.

    Raises
    ------
    InputError : it says something else than 0 or 1.
    """
    given = os.environ.get(PLAIN, "0")
    if given not in ("", "0", "1"):
        raise InputError(f"{PLAIN}: expected 0 or 1 in the environment, got {given!r}")
    return given == "1"
