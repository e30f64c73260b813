"""How an obstacle moves: a prescribed displacement over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.forces.base import acting, number, time_rounding, vector
from torchdismech.values import Given

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

    def __init__(self, times: Given, displacements: Given):
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
    def uniform(cls, velocity: Given, duration: float = 2.0**40) -> Path:
        """Return the path at a velocity (3,) or (B, 3) [m/s] from time 0 on, by default for good."""
        v = vector(velocity, "Path.uniform: velocity")
        return cls([0.0, duration], torch.stack([torch.zeros_like(v), duration * v]))

    def displacement(self, time: Tensor) -> Tensor:
        """Return the displacement (B, 3) at the times (B,) [m]."""
        begin, length, x0, way = self._piece(self._end_of_piece(time))
        return x0 + ((time - begin) / length).clamp(0, 1)[:, None] * way

    def velocity(self, time: Tensor) -> Tensor:
        """Return the velocity (B, 3) at the times (B,) [m/s].

        Where it jumps it is the one before: that is what an implicit step ending there sees, also if its time, which is
        a sum of steps, is a rounding past the jump (`time_rounding`). It is zero up to the first time and after the
        last, as loads are before their start and after their stop: what moves from the time 0 on has its velocity
        there, too (`acting`).
        """
        end = self._end_of_piece(time)
        if len(self.times) > 2:
            begin = self.times[end - 1]
            met = time - begin <= time_rounding(time, self.times[end] - begin)
            end = (end - met.long()).clamp_min(1)
        _, length, _, way = self._piece(end)
        moving = acting(time, self.times[0], self.times[-1])
        return torch.where(moving[:, None], way / length[:, None], 0.0)

    def _end_of_piece(self, time: Tensor) -> Tensor:
        """Return which of its `times` (B,) ends the piece that the times (B,) are in; the nearest one outside."""
        return torch.searchsorted(self.times, time.detach().contiguous()).clamp(1, len(self.times) - 1)

    def _piece(self, end: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return begin and length (B,) [s] of pieces by their ends (B,), and their first place and way (B, 3) [m]."""
        begin, places = self.times[end - 1], self.displacements
        row = () if places.dim() == 2 else (torch.arange(len(end), device=end.device) % places.shape[1],)
        x0 = places[end - 1, *row]
        return begin, self.times[end] - begin, x0, places[end, *row] - x0
