"""The hook for external forces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.body import Body
from torchdismech.errors import InputError
from torchdismech.state import Control, State

__all__ = ["Block", "Derivatives", "Force", "acting", "number", "scalar", "vector"]

Derivatives = list[tuple[Tensor | None, Tensor | None]]


@dataclass(frozen=True)
class Block:
    """Where a force's derivatives stand: S small blocks, rows (S, r) and columns (S, c) of dof indices."""

    rows: np.ndarray
    cols: np.ndarray


class Force(nn.Module):
    """An external force F(state, control).

    A subclass writes `forward` and, if the force changes with position or velocity, `blocks` and `derivatives`.

    Parameters
    ----------
    explicit : evaluate the force once at the start of the step and hold it. Then it needs no derivatives; large time
        steps may become unstable.

    Attributes
    ----------
    symmetric : whether the derivatives by position and by velocity are symmetric matrices.
    conservative : whether the force changes with position alone and has a `potential`, which robust solvers descend.
    """

    symmetric = True
    conservative = False
    per_robot: tuple[str, ...] = ()  # names of parameters that may have a leading robot dimension
    body: Body

    def __init__(self, explicit: bool = False):
        super().__init__()
        self.explicit = explicit

    def bind(self, body: Body) -> None:
        """Learn the robot that the force acts on; called once by the builder."""
        if hasattr(self, "body"):
            raise InputError(f"{type(self).__name__}: belongs to another model already; make a new one for each model")
        self.body = body

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n) [N; N m on twist angles].

        `state.director` and `state.tangent` are anchors: transport them to the current tangents before use.
        """
        raise TypeError(f"{type(self).__name__} has to define forward(state, control)")

    def blocks(self) -> list[Block]:
        """Return where the derivatives stand; [] for a force without any."""
        return []

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the potential (B,) of a `conservative` force [J]: its gradient by position is minus the force."""
        raise TypeError(f"{type(self).__name__} is conservative: it has to define potential(state, control)")

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return for each of `blocks` (dF/dq, dF/dvelocity), each (B, S, r, c) or None for zero."""
        return []


def number(value) -> Tensor:
    """Return a force's parameter as a tensor in float64 (tensors keep their dtype)."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if not torch.isfinite(tensor).all():
        raise InputError(f"a force's parameter must be finite, got {value}")
    return tensor


def scalar(value, what: str) -> Tensor:
    """Return a parameter that is one number, () or (B, 1)."""
    tensor = number(value)
    if tensor.dim() and tensor.shape[1:] != (1,):
        raise InputError(
            f"{what}: expected one number, or one of each robot with shape (B, 1), got {tuple(tensor.shape)}"
        )
    return tensor


def vector(value, what: str) -> Tensor:
    """Return a parameter that is one vector, (3,) or (B, 3)."""
    tensor = number(value)
    if tensor.shape[-1:] != (3,) or tensor.dim() > 2:
        raise InputError(f"{what}: expected shape (3,) or (B, 3), got {tuple(tensor.shape)}")
    return tensor


def acting(time: Tensor, start: float, stop: float) -> Tensor:
    """Return where (B,) the times are in start < t <= stop.

    Open at the start, so that an implicit Euler step, which sees a force at its end, feels it for exactly
    (stop - start) / dt steps.
    """
    rounding = 1e-9 * (1 + time.abs())  # n * dt is off by some ulps
    return (time > start + rounding) & (time <= stop + rounding)
