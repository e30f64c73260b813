"""Checkpoints of a fit: a file of safetensors each, with facts as JSON in its header; loading one runs no code.

A file names no other file, so none can lead out of its folder. It carries the number of its format and a checksum over
its content, so a damaged file is refused.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_bytes
from torch import Tensor

from torchdismech import InputError
from training.files import made_folder, write

__all__ = ["batches", "exists", "load", "save"]

FORMAT = "1"


def save(folder: Path, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts to NAME.safetensors, atomically: a kill leaves the old file or the new one."""
    made_folder(folder)
    plain = {key: t.detach().cpu().contiguous() for key, t in tensors.items()}
    text = json.dumps(facts)
    header = {"format": FORMAT, "facts": text, "sha256": _checksum(plain, text)}
    write(_path(folder, name), as_bytes(plain, header))


def exists(folder: Path, name: str) -> bool:
    """Return whether there is something saved under that name."""
    return _path(folder, name).exists()


def load(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the facts saved under a name.

    Raises
    ------
    InputError
        There is no such file, it is of another format, or it is damaged.
    """
    path = _path(folder, name)
    if (folder / f"{name}.json").exists() and not path.exists():
        raise InputError(f"{folder}: {name}.json was written by an earlier version: begin anew in another --out")
    if not path.is_file():
        raise InputError(f"{folder}: nothing saved under {name!r}; is this the folder of a run?")
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is no dict)
    except (OSError, SafetensorError, RuntimeError, ValueError, TypeError) as error:
        raise InputError(f"{path}: damaged, not a file of tensors: {_first_line(error)}; {_instead(name)}") from error
    if header.get("format") != FORMAT:
        raise InputError(
            f"{path}: expected a checkpoint of format {FORMAT}, got {header.get('format', 'none')!r}; {_instead(name)}"
        )
    text = header.get("facts", "")
    if header.get("sha256") != _checksum(tensors, text):
        raise InputError(f"{path}: damaged: what it holds does not have the checksum written with it; {_instead(name)}")
    try:
        return tensors, dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: damaged: its facts are no JSON table; {_instead(name)}") from error


def batches(folder: Path, name: str) -> int:
    """Return the number of batches after which the weights of that name were saved."""
    total = load(folder, name)[1].get("total")
    if not isinstance(total, int) or not 0 <= total < 2**53:
        raise InputError(f"{_path(folder, name)}: expected after how many batches, got {total!r:.80}")
    return total


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.safetensors"


def _instead(name: str) -> str:
    """Return what a user can do about a checkpoint that cannot be used."""
    other = "the best weights are in best.safetensors" if name == "last" else "see which others the folder has"
    return f"restore it from a copy, or begin anew in another --out ({other})"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _checksum(tensors: dict[str, Tensor], text: str) -> str:
    """Return SHA-256 over the facts and over name, dtype, shape and bytes of each tensor."""
    digest = hashlib.sha256(f"{FORMAT} {len(text)} {text}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name!r} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
