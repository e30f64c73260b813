"""What an installation runs on, as `torchdismech --version` prints it: versions, devices, compiler, linear solvers."""

from __future__ import annotations

import platform
import warnings
from importlib.util import find_spec

import torch

from torchdismech.native import SLOWER, Unavailable, library
from torchdismech.solve.linear import SOLVERS
from torchdismech.version import __version__

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Return the versions, devices, compiler and linear solvers that a bug report should name, by their labels."""
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
    """Return which compiler built the native library, which is built now if it has not been, or why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the returned text says the same
            return library().made_by
    except Unavailable as why:
        return f"no compiled code, and {SLOWER}: {why}"
