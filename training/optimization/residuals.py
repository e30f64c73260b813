"""How far predictions are off, and how that changes with each number that is trained.

Derivatives are by central differences, in units in which each number may be expected to change by about one: its
prior's standard deviation, else a factor e, or the unit of a shift. Each side of each difference is a robot of its own
in one large batch, which takes an eighth of the time that one prediction after the other does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from training.data import Window
from training.loss import counted
from training.optimization.evidence import Prior, StartSlopes
from training.robots.physics import PhysicsSystem

__all__ = ["Number", "Residual", "Slopes", "numbers_of", "prior_of"]

STEP = 1e-2  # of the differences, in these units: its error is 1e-4, far above that of Newton's method
ROBOTS = 384  # that are predicted at a time: more take no less time each


@dataclass(frozen=True)
class Number:
    """A single number that is trained: its place in an entry of `[constants]`, its unit there, what it stands for.

    Attributes
    ----------
    name : such as "bending" or "rest_length[3]".
    entry : the name in `[constants]`; index : the place in its parameter, counted through.
    unit : in which it may be expected to change by about one, in that of the parameter.
    prior : 1 where something is known before, else 0; pull : how far it is above its mean, in standard deviations.
    value : what it stands for; spread_of_one : by how much one unit changes that.
    """

    name: str
    entry: str
    index: int
    unit: float
    prior: float
    pull: float
    value: float
    spread_of_one: float


def numbers_of(system: PhysicsSystem) -> list[Number]:
    """Return all numbers that are trained."""
    found = []
    for name, trained in system.entries.items():
        parameter = trained.parameter
        spread, value, mask = (t.flatten() for t in (trained.spread, trained.value, trained.mask))
        pull = ((parameter - trained.center) / trained.spread).detach().flatten()
        for k in mask.nonzero().flatten().tolist():
            label = name if parameter.numel() == 1 else f"{name}[{k}]"
            known = bool(spread[k].isfinite())
            unit = float(spread[k]) if known else 1.0
            own = float(value[k] if value.numel() == parameter.numel() else trained.value_of_trained.double().mean())
            factor = trained.constant_kind == "factor"
            of_one = abs(own) * unit if factor else trained.unit * unit
            found.append(Number(label, name, k, unit, float(known), float(pull[k]), own, of_one))
    return found


def prior_of(numbers: list[Number], weight: float, like: Tensor) -> Prior:
    """Return what is known of numbers before anything is measured, counted as `weight` of it."""
    known, pull = (weight * like.new_tensor(x) for x in ([n.prior for n in numbers], [n.pull for n in numbers]))
    return Prior(known, pull)


@dataclass(frozen=True)
class Slopes:
    """Residuals and their derivatives, where all of the predictions came to their end.

    Attributes
    ----------
    good : (B,) bool: windows of which all did; what follows is zero in the others.
    residual : (B, T, C) [m]; measured : (B, T, C) bool, which of these count.
    columns : (B, T, C, P) by the numbers, in their units; starts : by what is fitted of starts, None without.
    """

    good: Tensor
    residual: Tensor
    measured: Tensor
    columns: Tensor
    starts: StartSlopes | None


class Residual:
    """Residuals (B, T, C) of predictions of a window, of C = 3 M coordinates; zero where nothing was measured."""

    def __init__(self, system: PhysicsSystem, window: Window):
        self.system, self.window = system, window
        self.measured = counted(window, system).repeat_interleave(3, dim=2)

    @torch.no_grad()
    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return the residuals now, and which predictions (B,) came to their end."""
        return self._of(self.window)

    @torch.no_grad()
    def slopes(self, numbers: list[Number]) -> Slopes:
        """Return the residuals now and their derivatives by numbers, and by what is fitted of starts."""
        now, good = self()
        parts = [self._by_numbers(part) for part in _parts(numbers, self._at_a_time)]
        columns, start = torch.cat([columns for columns, _ in parts], dim=-1), self.window.start
        good = torch.stack([good, *(whole for _, whole in parts)]).all(0)
        by_starts, starts_good = (None, good) if start is None else self._by_starts(start)
        good = good & starts_good
        everywhere = good[:, None, None]
        starts = None
        if start is not None and by_starts is not None:
            starts = StartSlopes(start, torch.where(everywhere[..., None], by_starts, 0.0))
        return Slopes(
            good,
            torch.where(everywhere, now, 0.0),
            self.measured & everywhere,
            torch.where(everywhere[..., None], columns, 0.0),
            starts,
        )

    @property
    def _at_a_time(self) -> int:
        """How many derivatives are taken at a time."""
        return max(1, ROBOTS // (2 * len(self.window.time)))

    def _by_numbers(self, numbers: list[Number]) -> tuple[Tensor, Tensor]:
        """Return the derivatives (B, T, C, P) by numbers, and which windows (B,) could be predicted for all."""
        window = _repeated(self.window, 2 * len(numbers))
        with _apart(self.system, numbers, len(self.window.time)):
            return self._differences(*self._of(window), len(numbers))

    def _by_starts(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives (B, T, C, S) by the starts (B, S), and which windows (B,) could be predicted."""
        found = []
        for part in _parts(list(range(start.shape[1])), self._at_a_time):
            sides = STEP * torch.eye(start.shape[1]).to(start)[part]
            moved = torch.cat([start + sign * side for sign in (1, -1) for side in sides[:, None]])
            window = _repeated(self.window, 2 * len(part)).replace(start=moved)
            found.append(self._differences(*self._of(window), len(part)))
        return torch.cat([d for d, _ in found], dim=-1), torch.stack([whole for _, whole in found]).all(0)

    @staticmethod
    def _differences(ends: Tensor, good: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return (B, T, C, count) of both ends (2 count B, T, C), those above first, and which rows (B,) are whole."""
        above, below = ends.unflatten(0, (2, count, -1))
        return ((above - below) / (2 * STEP)).permute(1, 2, 3, 0), good.view(2 * count, -1).all(0)

    def _of(self, window: Window) -> tuple[Tensor, Tensor]:
        with self.system.model.compilation.paused():  # kernels are for one number of robots, and there are many here
            prediction = self.system.predict(window)
        off = (prediction.positions - window.positions[:, self.system.given :]).flatten(2)
        seen = self.measured.repeat(len(off) // len(self.measured), 1, 1)
        return torch.where(seen & prediction.good[:, None, None], off, 0.0), prediction.good


@contextmanager
def _apart(system: PhysicsSystem, numbers: list[Number], batch: int) -> Iterator[None]:
    """Let twice as many groups of `batch` robots as there are numbers have one of these a STEP higher, then lower."""
    count = len(numbers)
    moves: dict[str, Tensor] = {}
    for k, number in enumerate(numbers):
        flat = system.entries[number.entry].parameter.detach()
        move = moves.setdefault(number.entry, flat.new_zeros(2 * count, flat.numel()))
        move[k, number.index] = STEP * number.unit
        move[count + k, number.index] = -STEP * number.unit
    entries = {name: system.entries[name] for name in moves}
    before = {name: entry.parameter.data for name, entry in entries.items()}
    try:
        for name, entry in entries.items():
            entry.parameter.data = entry.for_robots(moves[name].repeat_interleave(batch, 0))
        yield
    finally:
        for name, entry in entries.items():
            entry.parameter.data = before[name]


def _repeated(window: Window, times: int) -> Window:
    """Return windows repeated as a whole (times B)."""

    def again(x: Tensor) -> Tensor:
        return x.repeat(times, *[1] * (x.dim() - 1))

    tensors = {name: again(getattr(window, name)) for name in ("positions", "valid", "inputs", "time")}
    history = {name: again(value) for name, value in window.history.items()}
    return window.replace(**tensors, history=history, start=None if window.start is None else again(window.start))


def _parts(items: list, size: int) -> list[list]:
    return [items[k : k + size] for k in range(0, len(items), size)]
