"""`ConvexEnergy`, a learned energy that is convex for any weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from models.options import Positive, PositiveEach, Strains, Widths
from models.strains import scaled_strains, strain_sizes
from torchdismech.autograd import AutogradOn
from torchdismech.elastic import Energy
from torchdismech.elastic.energy import Strain

__all__ = ["ConvexEnergy"]


class ConvexEnergy(Energy):
    """An input-convex network less its tangent at zero: convex, nowhere negative, zero with zero slope at zero strain.

    Layers z_1 = softplus(A_1 s + b_1), z_k+1 = softplus(W_k z_k + A_k s + b_k) with W_k >= 0 keep f(s) = w . z_L convex
    for w >= 0 (Amos, Xu and Kolter 2017). psi(s) = scale * (f(s) - f(0) - s . f'(0)). Even in the strains (`even`): s
    and -s are averaged, as a straight rod of a symmetric section has it.

    The last weights are |w|: an untrained network (w = 0) is exactly zero. The slope of |w| at zero is taken from the
    right, so that it can learn from there.

    It can also be a dissipation, as a function of the rates of strain.

    Parameters
    ----------
    strains : number of strains that it sees, the first ones of the stencil.
    scale : energy for an output of one [J/m; W/m of a dissipation].
    size : strain that counts as one: one number, or one for each strain (1/m for curvature and twist).
    hidden : widths of the hidden layers.
    even : whether psi(-s) = psi(s).
    """

    records = True
    size: Tensor

    def __init__(
        self,
        strains: Strains = 3,
        scale: Positive = 0.02,
        size: Positive | PositiveEach = 10.0,
        hidden: Widths = (24, 24),
        even: bool = True,
    ):
        super().__init__()
        self.strains, self.scale, self.even = int(strains), float(scale), bool(even)
        self.register_buffer("size", strain_sizes(self.strains, size), persistent=False)
        self.direct = nn.ModuleList(
            nn.Linear(self.strains, width, dtype=torch.float64, device="cpu") for width in hidden
        )
        pairs = zip(hidden[:-1], hidden[1:], strict=True)
        # softplus(-4) = 0.018: small first weights, whose sum over the layer before is of order one
        self.passed = nn.ParameterList(
            nn.Parameter(torch.randn(after, before, dtype=torch.float64, device="cpu") - 4) for before, after in pairs
        )
        self.last = nn.Parameter(torch.zeros(hidden[-1], dtype=torch.float64, device="cpu"))
        for layer in self.direct:
            # units that are flat up to a strain between zero and `size`, and bend there, so that laws other than
            # quadratic ones are within reach
            nn.init.normal_(layer.weight, std=3.0)  # type: ignore[arg-type]
            nn.init.uniform_(layer.bias, -4.0, 0.0)  # type: ignore[arg-type]

    def density(self, strain: Strain) -> Tensor:
        """Return psi (S, B), at least 0."""
        s = scaled_strains(strain, self.size)
        with AutogradOn():
            zero = torch.zeros(self.strains, dtype=s.dtype, device=s.device, requires_grad=True)
            at_zero = self._network(zero)
            (slope,) = torch.autograd.grad(at_zero, zero, create_graph=True)
        if self.even:  # the tangents of the two halves cancel
            return self.scale * (0.5 * (self._network(s) + self._network(-s)) - at_zero)
        return self.scale * (self._network(s) - at_zero - s @ slope)

    def _network(self, s: Tensor) -> Tensor:
        """Return the convex f (...) of strains (..., strains)."""
        z = softplus(self.direct[0](s))
        for direct, passed in zip(self.direct[1:], self.passed, strict=True):
            z = softplus(z @ softplus(passed).t() + direct(s))
        return z @ torch.where(self.last < 0, -self.last, self.last)
