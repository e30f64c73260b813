"""`ReducedModel`: what models of few coordinates share, arms and chains whose points lie in a row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, SimulationError, Status, any_of, refuse_other_kind, shape_or_kind, warn
from torchdismech.geometry.checks import LARGE
from torchdismech.model.appearance import Appearance
from torchdismech.model.initial import initial_motion
from torchdismech.robot.materials import positive
from torchdismech.robot.state import BatchState, Control
from torchdismech.values import Given, Place, numbers, places_by_batch_size, refuse_no_robots

__all__ = ["ReducedModel", "report_failures", "values_of", "vector_of"]


def report_failures(status: Tensor, control: Control, time: Tensor, throw: bool) -> None:
    """Warn of numbers in a control that are not finite, if a step failed; or raise a `SimulationError`, if asked to.

    Without `throw`, the status is read only on a CPU and if the control sets something, so that a GPU is not waited
    for.

    Parameters
    ----------
    status : (B,) of the step.
    time : (B,) at the start of the step [s].
    throw : whether to raise for every failed step.
    """
    if not throw and (not time.is_cpu or not (control.tensors() or control.values)):
        return
    failed = status != int(Status.CONVERGED)
    if not bool(failed.any()):
        return
    cause, occasion = control.not_finite(failed, time), f"step from t = {float(time.max()):g} s"
    if throw:
        raise SimulationError.from_status(status, occasion, cause)
    if cause is not None:
        warn(f"{occasion}: {cause}", RuntimeWarning)


class ReducedModel(nn.Module):
    """A model whose constants are its own tensors, named in `per_robot`; one of them is `length`.

    A subclass sets words for messages (`one` and `called`, what one of its robots is and several are called;
    `stepped_by`, the integrators that step them; `driven_by`, what the force of a control acts on) and `state_kind`.
    """

    one: str
    called: str
    driven_by: str
    state_kind: type[BatchState]
    stepped_by: str
    length: Tensor

    @property
    @abstractmethod
    def per_robot(self) -> tuple[str, ...]:
        """Names of the tensors that may be given per robot."""

    @property
    @abstractmethod
    def n_dofs(self) -> int:
        """Number of coordinates of a robot."""

    @property
    def batch(self) -> int | None:
        """Number of robots that constants, those of obstacles included, are given for; None where they serve any."""
        counts = sorted(places_by_batch_size(self))
        if len(counts) > 1:
            raise InputError(f"constants are given for different numbers of robots: {counts}")
        return counts[0] if counts else None

    @property
    @abstractmethod
    def n_pieces(self) -> int:
        """Number of pieces between neighbouring points."""

    def refuse_mixed_dtypes(self) -> None:
        """Refuse constants of different dtypes, with which steps would be less precise in parts."""
        names: dict[torch.dtype, list[str]] = {}
        for name in self.per_robot:
            names.setdefault(getattr(self, name).dtype, []).append(name)
        if len(names) > 1:
            dtypes = "; ".join(f"{', '.join(which)} in {dtype}" for dtype, which in names.items())
            raise InputError(
                f"{type(self).__name__}: expected all constants in one dtype, got {dtypes}. Numbers and lists are "
                "torch.float64: give tensors as tensor.double(), and for single precision take model.float() afterwards"
            )

    def warn_of_size(self) -> None:
        """Warn where robots are so long that their lengths seem to be in millimetres."""
        longest = float(self.length.detach().sum(-1).max())
        if longest > LARGE:
            warn(f"{self.called}: they are {longest:.4g} m long. If lengths are in millimetres give them in m")

    def constants(self) -> dict[str, Place]:
        """Return the constants by name, each as (module, attribute), for `trainable.scaled` and `shifted`."""
        return {name: (self, name) for name in self.per_robot}

    @abstractmethod
    def points(self, q: Tensor) -> Tensor:
        """Return the positions (B, N, 3) [m] of the points at coordinates (B, n)."""

    def refuse_other_coordinates(self, **given: Tensor) -> None:
        """Refuse tensors, given by name, that are not (B, n), or that are for different numbers of robots."""
        for name, value in given.items():
            if not isinstance(value, Tensor) or value.dim() != 2 or value.shape[1] != self.n_dofs:
                expected = f"a tensor of shape (B, {self.n_dofs})"
                raise InputError(f"{name}: expected {expected}, got {shape_or_kind(value)}")
        robots = {name: len(value) for name, value in given.items()}
        counts = {*robots.values(), *([] if self.batch is None else [self.batch])}
        if len(counts) > 1:
            own = "" if self.batch is None else f", the model's constants of {self.batch}"
            raise InputError(f"{', '.join(given)}: of {', '.join(map(str, robots.values()))} robots{own}")

    def initial_motion(
        self, batch: int | None, q: Tensor | Sequence[float] | None, velocity: Tensor | Sequence[float] | None
    ) -> tuple[Tensor, Tensor]:
        """Return q and velocity (B, n), each given as (n,) or (B, n), or zero where it is None.

        The batch size defaults to that of q, velocity or the model's own constants.
        """
        at, moving = initial_motion(batch, q, velocity, self.batch, self.n_dofs, self.length)
        return torch.zeros_like(moving) if at is None else at, moving

    def check_batch(self, state: BatchState, control: Control) -> None:
        """Refuse states that do not fit the model, and controls that set more than a force or one that does not fit."""
        refuse_other_kind("state", state, self.state_kind, f"that of {self.called}, such as model.initial_state()")
        if state.q.shape[1:] != (self.n_dofs,):
            raise InputError(f"state.q: expected shape (B, {self.n_dofs}), got {tuple(state.q.shape)}")
        if self.batch not in (None, state.batch):
            raise InputError(f"the state is of {state.batch} robots, the model's constants of {self.batch}")
        state.check_like(self.dtype, self.device)
        if control.values:
            raise InputError(f"Control.values: {self.one} takes none; build it with constants of each robot")
        for name in control.tensors():
            if name != "force":
                raise InputError(f"Control.{name}: {self.one} has none; {self.driven_by} are its force")
        control.check({"force": tuple(state.q.shape)}, self.dtype, self.device)

    @property
    def rod_edges(self) -> np.ndarray:
        """Indices (K, 2) of the two points that each piece joins."""
        order = np.arange(self.n_pieces)
        return np.stack([order, order + 1], axis=1)

    @property
    def triangles(self) -> np.ndarray:
        """Triangles (0, 3): there are none."""
        return np.zeros((0, 3), dtype=np.int64)

    def appearance(self) -> Appearance:
        """Return how the robots look beside their points; models with obstacles override it."""
        return Appearance(None, [])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the constants."""
        return self.length.dtype

    @property
    def device(self) -> torch.device:
        """Device of the constants."""
        return self.length.device


def values_of(value: Given, name: str, count: int, above_zero: bool = False, from_zero: bool = False) -> Tensor:
    """Return a constant as a tensor that broadcasts against (B, count); refuse other shapes and signs.

    A tensor or array (1,) counts as a number, a list of one does not.
    """
    tensor = numbers(value, name)
    refuse_no_robots(tensor, name)
    shape = tuple(tensor.shape)
    number = shape == () or (shape == (1,) and not isinstance(value, Sequence))
    if not (number or shape == (count,) or (len(shape) == 2 and shape[1] in (1, count))):
        expected = any_of("a number", f"({count},)", "(B, 1)", f"(B, {count})")
        raise InputError(f"{name}: expected {expected}, got shape {shape}")
    if above_zero:
        positive(tensor.detach(), name)
    elif not bool(torch.isfinite(tensor).all()) or (from_zero and bool((tensor < 0).any())):
        kind = "finite numbers from 0 up" if from_zero else "finite numbers"
        raise InputError(f"{name}: expected {kind}, got {value}")
    return tensor


def vector_of(value: Given, name: str) -> Tensor:
    """Return a vector, (3,) or (B, 3); refuse a number, which would broadcast to all three axes."""
    shape = tuple(numbers(value, name).shape)
    if shape[-1:] != (3,) or len(shape) > 2:
        raise InputError(f"{name}: expected a vector, (3,) or (B, 3), got shape {shape}")
    return values_of(value, name, 3)
