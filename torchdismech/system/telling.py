"""What the library says by itself while it works: that something takes long, or is done in another way.

It is said on standard error. Users may silence it by the level of Python's logger "torchdismech", above INFO, and send
it elsewhere by a handler of that logger, with the level INFO.
"""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["tell"]

LOGGER = logging.getLogger("torchdismech")


def tell(text: str) -> None:
    """Tell the user, once for all processes, without tearing a progress bar."""
    if os.environ.get("RANK", "0") != "0":
        return
    if LOGGER.handlers:
        LOGGER.info(text)
    elif LOGGER.level <= logging.INFO:
        from tqdm import tqdm

        tqdm.write(f"torchdismech: {text}", file=sys.stderr)
