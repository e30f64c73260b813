"""Coefficients of Runge-Kutta methods, as blocks of stages that are solved together.

With q' = v and v' = a the stages of a block obey v = V + h A a, q = Q + h A v; V and Q come from the start of the step
and the blocks before. In the eigenvectors of A, Newton's matrix of a block, M + h A D + h^2 A^2 K for all stages, is
block diagonal, with a matrix M + h lambda D + h^2 lambda^2 K for each eigenvalue lambda of A: one real system for each
real eigenvalue and one complex system for each conjugate pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

__all__ = ["StageBlock", "radau_iia", "sdirk2"]


@dataclass(frozen=True)
class StageBlock:
    """Coefficients of s stages that are solved together.

    Attributes
    ----------
    before : coefficients (s, p) of the p stages of the blocks before.
    within : A (s, s), coefficients of the stages themselves.
    times : times of the stages as parts of the step (s,).
    """

    before: np.ndarray
    within: np.ndarray
    times: np.ndarray

    @property
    def eigenvalues(self) -> np.ndarray:
        """Eigenvalues of A (m,), one of each conjugate pair."""
        return self._decomposed[0]

    @cached_property
    def middle(self) -> int:
        """Index of the stage nearest to the middle of the stages' times."""
        return int(np.abs(self.times - 0.5 * (self.times[0] + self.times[-1])).argmin())

    @cached_property
    def _decomposed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Eigenvalues (m,), eigenvectors (s, m), rows (m, s) of the inverse of all of these, and weights (m,)."""
        values, vectors = np.linalg.eig(self.within)
        inverse = np.linalg.inv(vectors)
        kept = np.flatnonzero(values.imag >= 0)
        weight = np.where(values[kept].imag > 0, 2.0, 1.0)  # its conjugate, which is left out, adds the same real part
        return values[kept], vectors[:, kept], inverse[kept], weight

    @property
    def real(self) -> bool:
        """Whether all eigenvalues are real."""
        return bool((self.eigenvalues.imag == 0).all())

    def split(self, x: Tensor, transposed: bool = False) -> Tensor:
        """Return the components (J, m, B) of x (J, s, B) in eigenvectors of A or A^T; complex if eigenvalues are."""
        _, vectors, inverse, _ = self._decomposed
        parts = vectors.T if transposed else inverse
        if self.real:
            return _product(parts.real, x)
        return torch.complex(_product(parts.real, x), _product(parts.imag, x))

    def joined(self, parts: Tensor, transposed: bool = False) -> Tensor:
        """Return x (J, s, B) from its components (J, m, B) by `split`."""
        _, vectors, inverse, weight = self._decomposed
        vectors = inverse.T * weight if transposed else vectors * weight
        if self.real:
            return _product(vectors.real, parts)
        return _product(vectors.real, parts.real) - _product(vectors.imag, parts.imag)


def _product(matrix: np.ndarray, x: Tensor) -> Tensor:
    """Return a small matrix times stages (J, s, B)."""
    return torch.from_numpy(np.ascontiguousarray(matrix)).to(x) @ x


def radau_iia() -> tuple[StageBlock, ...]:
    """Return Radau IIA with three stages: order 5, L-stable; the last stage is the end of the step."""
    r = math.sqrt(6)
    within = np.array(
        [
            [(88 - 7 * r) / 360, (296 - 169 * r) / 1800, (-2 + 3 * r) / 225],
            [(296 + 169 * r) / 1800, (88 + 7 * r) / 360, (-2 - 3 * r) / 225],
            [(16 - r) / 36, (16 + r) / 36, 1 / 9],
        ]
    )
    return (StageBlock(np.zeros((3, 0)), within, within.sum(1)),)


def sdirk2() -> tuple[StageBlock, ...]:
    """Return SDIRK with two stages, solved one after the other: order 2, L-stable; the last is the end of the step."""
    gamma = 1 - math.sqrt(0.5)
    first = StageBlock(np.zeros((1, 0)), np.array([[gamma]]), np.array([gamma]))
    return first, StageBlock(np.array([[1 - gamma]]), np.array([[gamma]]), np.array([1.0]))
