"""Field: a magnetic field B [T] of position and time; derivatives come from autograd unless a subclass writes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdismech.autograd import AutogradOn, slopes_by
from torchdismech.values import constants_in_words

__all__ = ["Field", "FieldDerivatives"]

FieldDerivatives = tuple[Tensor, Tensor, Tensor | None]


class Field(nn.Module):
    """A magnetic field B(position, time) [T].

    A subclass writes `forward`; if the field is the same everywhere, it sets `uniform` and writes `at` instead.

    Attributes
    ----------
    uniform : whether the field is the same everywhere.
    closed_form : whether `derivatives` are in closed form: then steps may be compiled.
    per_robot : names of parameters that may have a leading robot dimension, as in forces.
    """

    uniform = False
    closed_form = False
    per_robot: tuple[str, ...] = ()

    def extra_repr(self) -> str:
        """Return the field's constants for print."""
        return constants_in_words(self)

    def at(self, time: Tensor) -> Tensor:
        """Return a uniform field (B, 3) at the times (B,)."""
        raise TypeError(f"{type(self).__name__} has to define at(time), or to set uniform = False")

    def forward(self, position: Tensor, time: Tensor) -> Tensor:
        """Return the field (B, E, 3) at positions (B, E, 3) [m] and times (B,) [s]."""
        if not self.uniform:
            raise TypeError(f"{type(self).__name__} has to define forward(position, time)")
        return self.at(time).unsqueeze(1).expand_as(position)

    def derivatives(self, position: Tensor, time: Tensor, moment: Tensor | None = None) -> FieldDerivatives:
        """Return the field (B, E, 3), dB_i/dx_j (B, E, 3, 3), and d2(moment . B)/dx_i dx_j for a moment (B, E, 3).

        Where autograd records, the first two can be differentiated further.
        """
        recorded = torch.is_grad_enabled()
        with AutogradOn():
            x = position if recorded and position.requires_grad else position.detach().requires_grad_()
            field = self(x, time)
            rows = [slopes_by([x], field[..., i], create_graph=True)[0] for i in range(3)]
            gradient, curvature = torch.stack(rows, dim=-2), None
            if moment is not None:
                slope = (moment.detach().unsqueeze(-2) @ gradient).squeeze(-2)
                second = [slopes_by([x], slope[..., i], create_graph=False)[0] for i in range(3)]
                curvature = torch.stack(second, dim=-2).detach()
        return (field, gradient, curvature) if recorded else (field.detach(), gradient.detach(), curvature)

    def warn_of_near(self, position: Tensor, size: Tensor, what: str) -> None:
        """Warn where the field varies too much over an element to be evaluated at its middle only.

        This base class never warns; fields that may vary so fast override the method.

        Parameters
        ----------
        position, size : middles (E, 3) and lengths (E,) of magnetised elements, of the robot as built [m].
        what : the word for an element in the warning.
        """
