"""Path: the prescribed displacement of an obstacle over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, real_number
from torchdismech.forces.base import acting, time_rounding, vector
from torchdismech.forces.over_time import of_times, rising
from torchdismech.values import Given

__all__ = ["Path"]


class Path(nn.Module):
    """A displacement that is piecewise linear in time, and constant before the first time and after the last.

    Parameters
    ----------
    times : (T,) increasing [s].
    displacements : (T, 3), or (T, B, 3) with one path for each robot [m].
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
        self.register_buffer("times", rising(times, "Path.times", least=2))
        self.register_buffer("displacements", of_times(displacements, len(self.times), "Path.displacements"))

    @classmethod
    def uniform(cls, velocity: Given, duration: float = 2.0**40) -> Path:
        """Return the path with a constant velocity (3,) or (B, 3) [m/s] from time 0 on, by default without end."""
        v, end = vector(velocity, "Path.uniform: velocity"), real_number(duration, "Path.uniform: duration")
        return cls([0.0, end], torch.stack([torch.zeros_like(v), end * v]))

    def displacement(self, time: Tensor) -> Tensor:
        """Return the displacement (B, 3) at the times (B,) [m]."""
        begin, length, x0, way = self._piece(self._end_of_piece(time))
        return x0 + ((time - begin) / length).clamp(0, 1)[:, None] * way

    def velocity(self, time: Tensor) -> Tensor:
        """Return the velocity (B, 3) at the times (B,) [m/s].

        Where the velocity jumps, it is that before the jump, which an implicit step that ends there needs; so it is,
        too, if the time, a sum of steps, is past the jump by rounding alone (`time_rounding`). It is zero up to the
        first time and after the last, as loads are (`acting`), except that a path that begins at time 0 has its
        velocity at 0 already.
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
        """Return the indices (B,) of `times` that end the pieces in which the given times (B,) lie.

        Times before the first piece or after the last one count as in these.
        """
        return torch.searchsorted(self.times, time.detach().contiguous()).clamp(1, len(self.times) - 1)

    def _piece(self, end: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return begin and length (B,) [s], first displacement and its change (B, 3) [m] of pieces with these ends."""
        begin, places = self.times[end - 1], self.displacements
        row = () if places.dim() == 2 else (torch.arange(len(end), device=end.device) % places.shape[1],)
        x0 = places[end - 1, *row]
        return begin, self.times[end] - begin, x0, places[end, *row] - x0
