"""What the library says by itself while it works: that something takes long, or is done in another way."""

from __future__ import annotations

import os
import sys

__all__ = ["tell"]


def tell(text: str) -> None:
    """Tell the user, once for all processes, without tearing a progress bar."""
    from tqdm import tqdm

    if os.environ.get("RANK", "0") == "0":
        tqdm.write(f"torchdismech: {text}", file=sys.stderr)
