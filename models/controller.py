"""`CurvatureController`, a learned feedback on natural curvature."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.mlp import mlp
from torchdismech import Control, Model, State

__all__ = ["CurvatureController"]


class CurvatureController(nn.Module):
    """Feedback on natural curvature: a perceptron sets each spring's from the spring's strains and rates, and time.

    It sees the spring's curvatures and twist less their natural values, the relative velocity of its two outer nodes,
    and sine and cosine of time. Its output, bounded by `amplitude`, is added to the natural curvature of the control
    (of the model, where the control has none); an untrained one adds exactly zero. Planar robots keep the curvature out
    of their plane. A `Controller` of `rollout` and `unroll`.

    Parameters
    ----------
    amplitude : largest change of each natural curvature (dimensionless, integrated over the spring's length).
    period : of the sine and cosine of time [s].
    speed : velocity that counts as one [m/s].
    hidden : widths of the hidden layers.
    """

    def __init__(
        self, amplitude: float = 0.1, period: float = 1.0, speed: float = 1.0, hidden: tuple[int, ...] = (32,)
    ):
        super().__init__()
        self.amplitude, self.period, self.speed = float(amplitude), float(period), float(speed)
        self.network = mlp(8, 2, tuple(hidden))

    def forward(self, state: State, control: Control, model: Model) -> Control:
        """Return the control with its natural curvature changed."""
        own = model.natural_strains(state.batch)
        curvature = own.natural_curvature if control.natural_curvature is None else control.natural_curvature
        assert curvature is not None
        change = self.amplitude * torch.tanh(self.network(self._seen(state, own, model)))
        if model.in_plane is not None:
            change = torch.where(model.in_plane.curvatures[: change.shape[1]], change, 0.0)
        return control.replace(natural_curvature=curvature + change)

    def _seen(self, state: State, own: Control, model: Model) -> Tensor:
        """Return the inputs of the perceptron for each spring, (B, S, 8)."""
        before, _, after = torch.as_tensor(model.springs, device=state.q.device).unbind(1)
        strains = model.strains(state)
        # springs at clamps with a direction come last; no control sets their natural strains
        kappa1, kappa2, tau = (strains[name][:, : len(before)] for name in ("kappa1", "kappa2", "tau"))
        assert own.natural_curvature is not None and own.natural_twist is not None
        bent = [kappa1 - own.natural_curvature[..., 0], kappa2 - own.natural_curvature[..., 1]]
        twisted = tau - own.natural_twist
        parting = (state.node_velocities[:, after] - state.node_velocities[:, before]) / self.speed
        phase = (2 * torch.pi / self.period) * state.time[:, None].expand_as(twisted)
        return torch.stack([*bent, twisted, *parting.unbind(-1), phase.sin(), phase.cos()], dim=-1)
