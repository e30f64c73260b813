"""Residuals of predictions, and their derivatives by each number that is trained, for Gauss-Newton and error bars.

Derivatives are central differences; beside a bound that a constant must not cross they are one-sided. They count each
number in a unit, the change that may be expected of it: its prior's standard deviation, else a factor e, or the unit of
a shift. Each side of each difference is a robot of its own in one large batch, which takes an eighth of the time that
one prediction after the other does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from torchdismech.errors import InputError
from torchdismech.trainable import refuse_trained_out_of_bounds
from training.data import Window
from training.loss import counted
from training.optimization.evidence import Prior, StartJacobian
from training.robots.physics import PhysicsSystem
from training.system import predicted

__all__ = ["FittedNumber", "Residual", "Linearized", "fitted_numbers", "prior_of", "stays_in_bounds"]

STEP = 1e-2  # of the differences, in these units: its error is 1e-4, far above that of Newton's method
ROBOTS = 384  # that are predicted at a time: in larger batches a robot takes no less time


@dataclass(frozen=True)
class FittedNumber:
    """A single number that is trained: an element of the parameter of an entry in `[constants]`.

    Its unit is the change that may be expected of it; all derivatives and steps count in units.

    Attributes
    ----------
    name : such as "bending" or "rest_length[3]".
    entry : name in `[constants]`; index : flat index in the entry's parameter.
    unit : the prior's standard deviation, else 1: a factor e, or the unit of a shift; as a change of the parameter.
    precision : 1 where there is a prior, else 0; offset : how far the number is above the prior's mean, in units.
    value : of the constant; value_per_unit : change of the value by one unit.
    """

    name: str
    entry: str
    index: int
    unit: float
    precision: float
    offset: float
    value: float
    value_per_unit: float


def fitted_numbers(system: PhysicsSystem) -> list[FittedNumber]:
    """Return all numbers that are trained, entry by entry."""
    found = []
    for name, trained in system.entries.items():
        parameter = trained.parameter
        spread, value, mask = (t.flatten() for t in (trained.spread, trained.value, trained.mask))
        offset = ((parameter - trained.center) / trained.spread).detach().flatten()
        for k in mask.nonzero().flatten().tolist():
            has_prior = bool(spread[k].isfinite())
            unit = float(spread[k]) if has_prior else 1.0
            of_value = value[k] if value.numel() == parameter.numel() else trained.value_of_trained.double().mean()
            of_factor = trained.constant_kind == "factor"
            number = FittedNumber(
                name=name if parameter.numel() == 1 else f"{name}[{k}]",
                entry=name,
                index=k,
                unit=unit,
                precision=float(has_prior),
                offset=float(offset[k]),
                value=float(of_value),
                value_per_unit=abs(float(of_value)) * unit if of_factor else trained.unit * unit,
            )
            found.append(number)
    return found


def prior_of(numbers: list[FittedNumber], weight: float, like: Tensor) -> Prior:
    """Return the priors of numbers in their units, with a weight in the loss, as tensors of the kind of `like`."""
    precision, gradient = ([n.precision for n in numbers], [n.offset for n in numbers])
    return Prior(weight * like.new_tensor(precision), weight * like.new_tensor(gradient))


@dataclass(frozen=True)
class Linearized:
    """Residuals of windows and their derivatives.

    Attributes
    ----------
    good : (B,) bool: windows of which all predictions came to their end, those with numbers a little higher or lower
        included; all other fields are zero for the rest.
    residual : (B, T, C) [m]; measured : (B, T, C) bool, which residuals count.
    jacobian : (B, T, C, P) derivatives by the numbers, in their units.
    starts : fitted starts with the derivatives by these; None without.
    """

    good: Tensor
    residual: Tensor
    measured: Tensor
    jacobian: Tensor
    starts: StartJacobian | None


class Residual:
    """Residuals (B, T, C) of predictions of a window, of C = 3 M coordinates; zero where nothing was measured."""

    def __init__(self, system: PhysicsSystem, window: Window):
        self.system, self.window = system, window
        self.measured = counted(window, system).repeat_interleave(3, dim=2)

    @torch.no_grad()
    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return the residuals at the present values, and which predictions (B,) came to their end."""
        return self._residual_of(self.window)

    @torch.no_grad()
    def linearized(self, numbers: list[FittedNumber], progress: bool = False) -> Linearized:
        """Return the residuals at the present values, and their derivatives by numbers and by fitted starts.

        `progress` shows a progress bar of the derivatives by numbers, as that of error bars, which may take long.
        """
        now, good = self()
        of_numbers = tqdm(
            _parts(numbers, self._at_a_time), "error bars", unit="part", disable=not progress, leave=False
        )
        parts = [self._by_numbers(part) for part in of_numbers]
        jacobian, start = torch.cat([part for part, _ in parts], dim=-1), self.window.start
        good = torch.stack([good, *(whole for _, whole in parts)]).all(0)
        by_starts, starts_good = (None, good) if start is None else self._by_starts(start)
        good = good & starts_good
        everywhere = good[:, None, None]
        starts = None
        if start is not None and by_starts is not None:
            starts = StartJacobian(start, torch.where(everywhere[..., None], by_starts, 0.0))
        return Linearized(
            good,
            torch.where(everywhere, now, 0.0),
            self.measured & everywhere,
            torch.where(everywhere[..., None], jacobian, 0.0),
            starts,
        )

    @property
    def _at_a_time(self) -> int:
        """Number of derivatives in one batch of predictions."""
        return max(1, ROBOTS // (2 * len(self.window.time)))

    def _by_numbers(self, numbers: list[FittedNumber]) -> tuple[Tensor, Tensor]:
        """Return the derivatives (B, T, C, P) by numbers, and for which windows (B,) all predictions ended."""
        window, sides = _repeated(self.window, 2 * len(numbers)), [_sides(self.system, n) for n in numbers]
        with _perturbed(self.system, numbers, sides, len(self.window.time)):
            ends, good = self._residual_of(window)
        return self._differences(ends, good, ends.new_tensor([up + down for up, down in sides]))

    def _by_starts(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives (B, T, C, S) by starts (B, S), and for which windows (B,) all predictions ended."""
        found = []
        for part in _parts(list(range(start.shape[1])), self._at_a_time):
            sides = STEP * torch.eye(start.shape[1], device="cpu").to(start)[part]
            moved = torch.cat([start + sign * side for sign in (1, -1) for side in sides[:, None]])
            window = _repeated(self.window, 2 * len(part)).replace(start=moved)
            ends, good = self._residual_of(window)
            found.append(self._differences(ends, good, ends.new_full((len(part),), 2 * STEP)))
        return torch.cat([d for d, _ in found], dim=-1), torch.stack([whole for _, whole in found]).all(0)

    @staticmethod
    def _differences(ends: Tensor, good: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
        """Return differences (B, T, C, P), and for which windows (B,) all predictions are good.

        `ends` (2 P B, T, C) are residuals with each of P numbers higher, then with each lower; `widths` (P,) are the
        differences between the two.
        """
        count = len(widths)
        above, below = ends.unflatten(0, (2, count, -1))
        return (above - below).permute(1, 2, 3, 0) / widths, good.view(2 * count, -1).all(0)

    def _residual_of(self, window: Window) -> tuple[Tensor, Tensor]:
        """Return the residuals of a window, and which predictions came to their end.

        It is `self.window` repeated once or more, perhaps with other starts.
        """
        # paused, as kernels are compiled for one number of robots, and batches here have many different ones
        with self.system.model.compilation.paused():
            prediction = predicted(self.system, window)
        off = (prediction.positions - window.positions[:, self.system.given :]).flatten(2)
        seen = self.measured.repeat(len(off) // len(self.measured), 1, 1)
        return torch.where(seen & prediction.good[:, None, None], off, 0.0), prediction.good


def _sides(system: PhysicsSystem, number: FittedNumber) -> tuple[float, float]:
    """Return how far up and down a number is moved for its derivative [units]: to one side alone beside a bound."""
    up, down = (STEP if stays_in_bounds(system, [number], [side]) else 0.0 for side in (STEP, -STEP))
    return (up, down) if up or down else (STEP, STEP)  # the prediction refuses it then, in words


def stays_in_bounds(system: PhysicsSystem, numbers: Sequence[FittedNumber], steps: Sequence[float]) -> bool:
    """Return whether the constants of a robot would be within their bounds if numbers were moved by steps [units]."""
    flats = [system.entries[number.entry].parameter.data.view(-1) for number in numbers]
    before = [float(flat[number.index]) for flat, number in zip(flats, numbers, strict=True)]
    try:
        for flat, number, step in zip(flats, numbers, steps, strict=True):
            flat[number.index] += step * number.unit
        refuse_trained_out_of_bounds(system.model)
    except InputError:
        return False
    finally:
        for flat, number, value in zip(flats, numbers, before, strict=True):
            flat[number.index] = value
    return True


@contextmanager
def _perturbed(
    system: PhysicsSystem, numbers: list[FittedNumber], sides: list[tuple[float, float]], batch: int
) -> Iterator[None]:
    """Give each of 2 P groups of `batch` robots its own parameters, one of P numbers changed.

    The first P groups have it higher, the last P lower, by as many units as `sides` says. The parameters are restored
    afterwards.
    """
    count = len(numbers)
    moves: dict[str, Tensor] = {}
    for k, number in enumerate(numbers):
        flat = system.entries[number.entry].parameter.detach()
        move = moves.setdefault(number.entry, flat.new_zeros(2 * count, flat.numel()))
        move[k, number.index] = sides[k][0] * number.unit
        move[count + k, number.index] = -sides[k][1] * number.unit
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
    """Return a batch of windows repeated as a whole, (times B)."""
    return window.mapped(lambda tensor: tensor.repeat(times, *[1] * (tensor.dim() - 1)))


def _parts(items: list, size: int) -> list[list]:
    return [items[k : k + size] for k in range(0, len(items), size)]
