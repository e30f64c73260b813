"""CasADi, which only planning needs: imported at its first use."""

from __future__ import annotations

from types import ModuleType

from torchdismech.errors import InputError

__all__ = ["casadi"]


def casadi() -> ModuleType:
    """Return the package CasADi; refuse to plan without it."""
    try:
        import casadi
    except ImportError as error:
        raise InputError(
            "planning through contact: expected the package casadi, which is not installed; "
            "pip install 'torchdismech[plan]'"
        ) from error
    return casadi
