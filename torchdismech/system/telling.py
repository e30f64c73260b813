"""Messages of the library about its work: that something takes long, or is done in another way.

They go to standard error. Users may silence them by setting the level of Python's logger "torchdismech" above INFO, and
redirect them by adding a handler to that logger, with its level at INFO.
"""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["tell"]

LOGGER = logging.getLogger("torchdismech")


def tell(text: str) -> None:
    """Print a message on standard error, or pass it to the logger's handlers; of several processes only the first does.

    It goes through tqdm, so that it does not tear a progress bar.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    if LOGGER.handlers:
        LOGGER.info(text)
    elif LOGGER.level <= logging.INFO:
        from tqdm import tqdm

        tqdm.write(f"torchdismech: {text}", file=sys.stderr)
