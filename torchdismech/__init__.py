"""Many soft robots at once: rods and shells by discrete differential geometry, stepped implicitly in PyTorch.

The names in `public.py` are imported at their first use. So the command line can set up its process before torch is
imported, and answers signals from its first moment on.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torchdismech.system import threads
from torchdismech.system.imports import without_collections
from torchdismech.version import __version__ as __version__

threads.sleep_while_waiting()  # before torch is imported: its OpenMP reads once how to wait

if TYPE_CHECKING:
    from torchdismech.public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("__") or name == "__all__":  # inspecting tools ask any module for names like __wrapped__
        if find_spec(f"{__name__}.{name}") is not None:  # a submodule alone: importing it need not import torch
            return import_module(f"{__name__}.{name}")
        with without_collections():
            public = import_module("torchdismech.public")
        if hasattr(public, name):
            globals()[name] = getattr(public, name)  # from now on Python finds it without calling __getattr__
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("torchdismech.public").__all__})
