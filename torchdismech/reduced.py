"""What models of few coordinates share: arms and chains whose points lie in a row, with constants of their own."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.appearance import Appearance
from torchdismech.values import Place

__all__ = ["ReducedModel"]


class ReducedModel(nn.Module):
    """A model whose constants are its own tensors, named in `per_robot`, `length` among them."""

    length: Tensor

    @property
    @abstractmethod
    def per_robot(self) -> tuple[str, ...]:
        """Names of the tensors that may be given per robot."""

    @property
    @abstractmethod
    def n_pieces(self) -> int:
        """Pieces between its points."""

    def constants(self) -> dict[str, Place]:
        """Return the constants by name, each as (module, attribute): what `trainable.scaled` and `shifted` take."""
        return {name: (self, name) for name in self.per_robot}

    @property
    def rod_edges(self) -> np.ndarray:
        """Which of the points each piece joins (K, 2)."""
        order = np.arange(self.n_pieces)
        return np.stack([order, order + 1], axis=1)

    @property
    def triangles(self) -> np.ndarray:
        """Faces (0, 3): there are none."""
        return np.zeros((0, 3), dtype=np.int64)

    def appearance(self) -> Appearance:
        """Return what of the robots can be seen beside their points: obstacles, if they have some."""
        return Appearance(None, [])

    @property
    def dtype(self) -> torch.dtype:
        """Of its numbers."""
        return self.length.dtype

    @property
    def device(self) -> torch.device:
        """Where its numbers are."""
        return self.length.device
