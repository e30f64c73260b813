"""References for controllers: strains that are constant, or given over time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdismech.control.strains import Strains
from torchdismech.errors import InputError, check_choice, refuse_other_kind, whole_number
from torchdismech.forces.over_time import between
from torchdismech.model import Model
from torchdismech.robot.state import State
from torchdismech.values import numbers

__all__ = ["Fixed", "Reference", "Table"]

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}  # relative error of times that are sums of many steps


class Reference(nn.Module):
    """Strains (B, m) over time, relative to the undeformed shape, in the units of `Strains`."""

    @abstractmethod
    def forward(self, time: Tensor) -> Tensor:
        """Return the strains (B, m), or (m,) for all robots, at the times (B,)."""

    def check_width(self, strains: Strains) -> None:  # noqa: B027  (references of users may not know theirs)
        """Refuse a reference with another number of strains; called when a controller is made, here without effect."""

    @abstractmethod
    def check(self, strains: Strains, batch: int, start: Tensor, stop: Tensor) -> None:
        """Refuse a reference that does not fit these strains or `batch` robots, or the times `start` to `stop` (B,)."""


class Fixed(Reference):
    """Constant strains: a shape to be held.

    Parameters
    ----------
    values : (m,), or (B, m); `Strains.of_shape` computes them from positions of the nodes.
    """

    values: Tensor

    def __init__(self, values: Tensor | Sequence):
        super().__init__()
        values = numbers(values, "reference")
        if values.dim() not in (1, 2):
            raise InputError(f"reference: expected strains (m,) or (B, m), got shape {tuple(values.shape)}")
        self.register_buffer("values", values)

    def forward(self, time: Tensor) -> Tensor:
        """Return the strains."""
        return self.values

    def check_width(self, strains: Strains) -> None:
        """Refuse values of another number of strains."""
        _refuse_other_width(self.values, strains)

    def check(self, strains: Strains, batch: int, start: Tensor, stop: Tensor) -> None:
        """Refuse values for another number of strains or robots, of another dtype or device, or that are not finite."""
        _refuse_misfit(self.values, len(self.values) if self.values.dim() == 2 else 1, strains, batch)


class Table(Reference):
    """Strains stored at some times and interpolated linearly.

    Parameters
    ----------
    times : (T,) growing [s], of any dtype.
    values : (T, m), or (T, B, m).
    beyond : before the first and after the last time, "refuse" runs that go there, or "hold" the value at that end.
    """

    times: Tensor
    values: Tensor

    def __init__(self, times: Tensor | Sequence, values: Tensor | Sequence, beyond: str = "refuse"):
        super().__init__()
        times, values = numbers(times, "reference: times"), numbers(values, "reference: values")
        check_choice("reference: beyond", beyond, ("refuse", "hold"))
        if times.dim() != 1 or not len(times) or values.dim() not in (2, 3) or len(values) != len(times):
            raise InputError(
                "reference: expected times (T,) and values (T, m) or (T, B, m), got "
                f"{tuple(times.shape)} and {tuple(values.shape)}"
            )
        if not bool(times.isfinite().all()) or not bool((times.diff() > 0).all()):
            raise InputError("reference: expected finite times that grow")
        self.beyond = beyond
        self.register_buffer("times", times)
        self.register_buffer("values", values)

    @classmethod
    def recorded(cls, frames: Iterable[Any], strains: Strains, model: Model, beyond: str = "refuse") -> Table:
        """Return the strains of a recorded run, from its frames as `runs.frames` yields them.

        Raises
        ------
        InputError
            Anything but frames, such as a `Trajectory`, which has the sections' frames of its last state only; no
            frames, as of an iterator that has been read before; a run in which a robot failed.
        """
        expected = "the frames of a run, as torchdismech.runs.frames(model, state, integrator, steps) yields them"
        refuse_other_kind("Table.recorded: frames", frames, Iterable, expected)
        times, values = [], []
        for frame in frames:
            state: Any = getattr(frame, "state", None)
            refuse_other_kind("Table.recorded: the state of a frame", state, State, f"a state in {expected}")
            times.append(state.time)
            values.append(strains.measured(state, model))
        if not times:
            raise InputError(f"Table.recorded: frames: expected {expected}, got none")
        time = torch.stack(times)
        if not bool((time == time[:, :1]).all()):
            raise InputError("reference: a robot of the recorded run failed, so its times are not those of the others")
        return cls(time[:, 0], torch.stack(values), beyond)

    def every(self, count: int) -> Table:
        """Return a coarser table: every `count`-th row from the first on, and the last one."""
        step = whole_number(count, "Table.every: count")
        rows = sorted({*range(0, len(self.times), step), len(self.times) - 1})
        return Table(self.times[rows], self.values[rows], self.beyond)

    def forward(self, time: Tensor) -> Tensor:
        """Return the strains (B, m) at the times (B,)."""
        finer = torch.promote_types(self.times.dtype, time.dtype)  # the table's times may have more digits
        return between(self.times.to(finer), self.values, time.to(finer))

    def check_width(self, strains: Strains) -> None:
        """Refuse values of another number of strains."""
        _refuse_other_width(self.values, strains)

    def check(self, strains: Strains, batch: int, start: Tensor, stop: Tensor) -> None:
        """Refuse values that do not fit, and, unless they are held, times that do not cover the run."""
        _refuse_misfit(self.values, self.values.shape[1] if self.values.dim() == 3 else 1, strains, batch)
        if self.times.device != self.values.device:
            raise InputError(
                f"reference: expected times on {self.values.device}, where the values are, got {self.times.device}; "
                f"take times.to({str(self.values.device)!r})"
            )
        first, last = float(self.times[0]), float(self.times[-1])
        begin, end = float(start.min()), float(stop.max())
        slack = ROUNDING[start.dtype] * max(abs(first), abs(last), abs(end))
        if self.beyond == "refuse" and (begin < first - slack or end > last + slack):
            raise InputError(
                f"reference: is known from {first:g} to {last:g} s and the run goes from {begin:g} to {end:g} s: "
                'expected times that cover it; or beyond="hold" holds the values at the ends'
            )


def _refuse_misfit(values: Tensor, robots: int, strains: Strains, batch: int) -> None:
    """Refuse values (.., m) of `robots` robots that do not fit the strains of a batch, or are not finite."""
    _refuse_other_width(values, strains)
    if robots not in (1, batch):
        raise InputError(f"reference: expected strains of {batch} robots, got those of {robots}")
    if values.dtype != strains.undeformed.dtype or values.device != strains.undeformed.device:
        expected = f"{strains.undeformed.dtype} on {strains.undeformed.device}"
        raise InputError(f"reference: expected {expected}, got {values.dtype} on {values.device}")
    if not bool(values.isfinite().all()):
        raise InputError("reference: holds numbers that are not finite")


def _refuse_other_width(values: Tensor, strains: Strains) -> None:
    """Refuse values (.., m) of another number of strains."""
    if values.shape[-1] != len(strains):
        counts = ", ".join(f"{len(index)} of {name}" for name, index in strains.elements.items())
        raise InputError(f"reference: expected {len(strains)} strains ({counts}), got {values.shape[-1]}")
