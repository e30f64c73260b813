"""What runs here: versions, devices, compiler, linear solvers."""

from __future__ import annotations

import platform
import shlex
from importlib.util import find_spec

import torch

from torchdismech.native import Unavailable, compiler
from torchdismech.solve.linear import SOLVERS
from torchdismech.version import __version__

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Return what a report of trouble should name, by what it is."""
    return {
        "torchdismech": __version__,
        "Python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "device": _device(),
        "compiler": _compiler(),
        "solvers": ", ".join(SOLVERS) + ("; products by torch-sparse" if find_spec("torch_sparse") else ""),
    }


def _device() -> str:
    cpu = f"cpu, {torch.get_num_threads()} threads"
    if not torch.cuda.is_available():
        return cpu
    return f"{cpu}; cuda: {', '.join(torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count()))}"


def _compiler() -> str:
    try:
        return shlex.join(compiler())
    except Unavailable as why:
        return f"none, so batches on a CPU solve slower: {why}"
