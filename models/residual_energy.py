"""`ResidualEnergy`, a learned energy of any shape, with no force at zero strain."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from models.mlp import mlp
from models.options import Positive, PositiveEach, Strains, Widths
from models.strains import scaled_strains, strain_sizes
from torchdismech.autograd import AutogradOn
from torchdismech.elastic import Energy
from torchdismech.elastic.energy import Strain

__all__ = ["ResidualEnergy"]


class ResidualEnergy(Energy):
    """psi(s) = scale * (f(s) - f(0) - s . f'(0)), f a perceptron: no force at zero strain, else of any shape.

    With `bounded` it is psi(s) = scale * (softplus(f(s)) - softplus(f(0))) |s|^2 / (1 + |s|^2), which is never below
    -scale * softplus(f(0)), however large the strains are.

    Claims: zero with zero slope at zero strain; exactly zero while untrained.

    Parameters
    ----------
    strains : number of strains that it sees, the first ones of the stencil.
    scale : energy for an output of one [J/m].
    size : strain that counts as one: one number, or one for each strain (1/m for curvature and twist).
    hidden : widths of the hidden layers.
    bounded : whether psi is bounded below by construction.
    features : (S, F) numbers of each spring that it may depend on, e.g. its place along the body; None for none.
    """

    records = True
    features: Tensor | None
    size: Tensor

    def __init__(
        self,
        strains: Strains = 3,
        scale: Positive = 0.02,
        size: Positive | PositiveEach = 10.0,
        hidden: Widths = (32, 32),
        bounded: bool = False,
        features: Tensor | None = None,
    ):
        super().__init__()
        self.strains, self.scale, self.bounded = int(strains), float(scale), bool(bounded)
        self.register_buffer("size", strain_sizes(self.strains, size), persistent=False)
        self.register_buffer("features", features, persistent=False)
        more = 0 if features is None else features.shape[1]
        self.network = mlp(self.strains + more, 1, tuple(hidden))

    def density(self, strain: Strain) -> Tensor:
        """Return psi (S, B) [J/m]."""
        s = scaled_strains(strain, self.size)
        zero = torch.zeros_like(s)
        if self.bounded:
            square = s.square().sum(-1)
            return self.scale * (softplus(self._network(s)) - softplus(self._network(zero))) * square / (1 + square)
        with AutogradOn():
            zero.requires_grad_()
            at_zero = self._network(zero)
            (slope,) = torch.autograd.grad(at_zero.sum(), zero, create_graph=True)
        return self.scale * (self._network(s) - at_zero - (slope * s).sum(-1))

    def _network(self, s: Tensor) -> Tensor:
        if self.features is not None:
            s = torch.cat([s, self.features[:, None].expand(-1, s.shape[1], -1)], dim=-1)
        return self.network(s).squeeze(-1)
