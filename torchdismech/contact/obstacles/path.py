"""How an obstacle moves: a prescribed displacement over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.forces.base import number, vector

__all__ = ["Path"]


class Path(nn.Module):
    """A displacement that is piecewise linear in time and held at both ends.

    Parameters
    ----------
    times : (T,) rising [s].
    displacements : (T, 3), or (T, B, 3) for one of each robot [m].
    """

    per_robot = ("displacements",)
    robot_dimension = 1
    times: Tensor
    displacements: Tensor

    def __init__(self, times, displacements):
        super().__init__()
        if isinstance(displacements, Tensor) and displacements.requires_grad:
            raise InputError(
                "Path.displacements: got a tensor that requires gradients, of which only the numbers are kept. Give it "
                "detached, and train it in the model, by the obstacle's name: "
                'trainable.shifted(model, ["NAME.displacements"], unit, shape) (docs/gradients.md)'
            )
        times, displacements = number(times, "Path.times"), number(displacements, "Path.displacements")
        if times.dim() != 1 or len(times) < 2 or not bool((times.diff() > 0).all()):
            raise InputError(f"Path.times: expected two or more rising numbers (T,), got {times.tolist()}")
        if displacements.dim() not in (2, 3) or len(displacements) != len(times) or displacements.shape[-1] != 3:
            raise InputError(
                f"Path.displacements: expected ({len(times)}, 3) or ({len(times)}, B, 3), "
                f"got {tuple(displacements.shape)}"
            )
        self.register_buffer("times", times)
        self.register_buffer("displacements", displacements)

    @classmethod
    def uniform(cls, velocity, duration: float = 2.0**40) -> Path:
        """Return the path at a velocity (3,) or (B, 3) [m/s] from time 0 on, by default for good."""
        v = vector(velocity, "Path.uniform: velocity")
        return cls([0.0, duration], torch.stack([torch.zeros_like(v), duration * v]))

    def at(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return displacement and velocity (B, 3) at the times (B,).

        Where the velocity jumps it is the one before: that is what an implicit step ending there sees.
        """
        last = len(self.times) - 1
        after = torch.searchsorted(self.times, time.detach().contiguous()).clamp(1, last)
        begin, end = self.times[after - 1], self.times[after]
        whole = self.displacements if self.displacements.dim() == 3 else self.displacements.unsqueeze(1)
        row = torch.arange(len(time), device=time.device) % whole.shape[1]
        x0, x1 = whole[after - 1, row], whole[after, row]
        share = ((time - begin) / (end - begin)).clamp(0, 1)[:, None]
        moving = (time > self.times[0]) & (time <= self.times[-1])
        velocity = torch.where(moving[:, None], (x1 - x0) / (end - begin)[:, None], 0.0)
        return x0 + share * (x1 - x0), velocity
