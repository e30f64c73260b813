"""State of a fit on disk: tensors as safetensors, everything else as JSON; nothing that could run code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from torchdismech import InputError

__all__ = ["exists", "load", "save"]


def save(folder: Path, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts under a name; a kill at any moment leaves the old ones or the new ones.

    The tensors go to a file of their own, which the JSON file names: renaming the latter is what makes them count.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / f"{name}.json"
    old = json.loads(index.read_text())["tensors"] if index.exists() else None
    file = f"{name}-{'b' if old == f'{name}-a.safetensors' else 'a'}.safetensors"
    save_file({key: t.detach().cpu().contiguous() for key, t in tensors.items()}, folder / file)
    fresh = folder / f"{name}.json.new"
    fresh.write_text(json.dumps({"tensors": file, **facts}, indent=1))
    os.replace(fresh, index)
    if old is not None:
        (folder / old).unlink(missing_ok=True)


def exists(folder: Path, name: str) -> bool:
    """Return whether there is something saved under that name."""
    return (folder / f"{name}.json").exists()


def load(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the facts saved under a name."""
    index = folder / f"{name}.json"
    if not index.exists():
        raise InputError(f"{folder}: nothing saved under {name!r}; is this the folder of a run?")
    facts = json.loads(index.read_text())
    return load_file(folder / facts.pop("tensors")), facts
