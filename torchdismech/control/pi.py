r"""The PI law on natural strains, after section VII of the Py-DiSMech paper, completed where the text is open.

With the reference s_ref and the measured strains s, both relative to the undeformed shape, at the sample n

    e_n = S (s_ref(t_n) - s(t_n))
    z_n = z_{n-1} + T e_n
    u_{n+1} = F s_ref(t_n + T) + Kp e_n + Ki z_n,     |u_{n+1} - u_n| <= rate T,   |u_{n+1}| <= limit

u is the natural strain relative to the undeformed shape, which holds over the sampling time T; S smooths along rods.
With few actuators for many strains, each strain pattern a column of a matrix A, the law acts on A^+ e and A^+ s_ref in
place of e and s_ref, with the pseudoinverse A^+. It gives amplitudes a, with u = A a, and rates and limits hold for a,
see `PI`.

Anti-windup by clamping: where rate or limit clip u, and e points further in that direction, z keeps its value.
Back-calculation would divide by Ki, which may be zero, and has one more parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchdismech.control.elements import can_change
from torchdismech.control.feedback import Feedback
from torchdismech.control.neighbours import smoothed
from torchdismech.control.protocol import Memory
from torchdismech.control.references import Fixed, Reference, Table
from torchdismech.control.strains import Strains
from torchdismech.errors import InputError, real_number, refuse_other_kind, refuse_other_model
from torchdismech.geometry.checks import Indices
from torchdismech.model import Model
from torchdismech.robot.state import Control, State
from torchdismech.values import Place, numbers

__all__ = ["PI"]

Number = float | Tensor
# the strains (m, k) that actuators set, or by field the elements with an actuator each
Actuators = Tensor | Mapping[str, Indices]


class PI(Feedback):
    """Proportional-integral feedback from strains to natural strains.

    Units are those of `Strains`: stretch 1, curvature 1/m, twist rad/m, angles of hinges rad.

    Parameters
    ----------
    model : the robot.
    strains : the strains that are measured and controlled.
    reference : the strains to follow.
    dt : step of the integrator [s].
    Kp : proportional gain [1], () or (B,), zero or above. A rod that takes its natural shape within a step is stable
        for Kp + Ki T below 1, roughly; docs/control.md says more.
    Ki : integral gain [1/s], of the same shapes. `trainable.scaled(controller, ["Kp"], shape)` trains gains by a
        factor, which keeps them positive.
    feed_forward : F, whether the reference is added to the response, one for all or (B,).
    smoothing : number of passes of (1, 2, 1) / 4 along each rod that smooth the error before it is integrated; angles
        of hinges are not smoothed, as they are along no rod.
    actuators : (m, k) the strains that each actuator, such as a chamber, sets at 1; or by field the elements that have
        an actuator each, as indices or masks, as for `Strains`; by default all have. Strains without an actuator keep
        the natural strains that the control brings along, else the model's. `rate` and `limit` hold for every strain:
        an actuator is bounded so that each of its strains is within its bounds.
    rate : by field, the largest change of a natural strain per second, such as {"curvature": 50.0} [1/m per s].
    limit : by field, the largest absolute value of a natural strain. One that begins beyond gets there at the rate.
    least_length : part of the original rest lengths below which rest lengths never get: natural stretch is at least
        least_length - 1, and references or limits below that are refused.
    every, delay, noise, seed, robots : as for `Feedback`; noise also by field, such as {"curvature": 0.1} [1/m].

    Raises
    ------
    InputError
        A number out of its range, a reference of another number of strains. Whatever does not fit the robot is refused
        at the start of a run.
    """

    Kp: Tensor
    Ki: Tensor
    feed_forward: Tensor
    neighbours: Tensor
    low: Tensor
    high: Tensor
    most_change: Tensor
    actuators: Tensor | None
    inverse: Tensor | None
    not_negative = ("Kp", "Ki")

    def __init__(
        self,
        model: Model,
        strains: Strains,
        reference: Reference,
        dt: float,
        Kp: Number = 0.5,
        Ki: Number = 10.0,
        feed_forward: bool | Tensor = False,
        smoothing: int = 0,
        actuators: Actuators | None = None,
        rate: Mapping[str, float] | None = None,
        limit: Mapping[str, float] | None = None,
        least_length: float = 0.1,
        every: float | None = None,
        delay: int = 0,
        noise: Mapping[str, float] | Tensor | float | None = None,
        seed: int = 0,
        robots: Sequence[int] | Tensor | None = None,
    ):
        refuse_other_model("control.PI", model, Model)
        refuse_other_kind("PI: strains", strains, Strains, "control.Strains(model, fields)")
        refuse_other_kind(
            "PI: reference", reference, Reference, "Fixed(values), Table(times, values) or one of your own"
        )
        reference.check_width(strains)
        super().__init__(dt, every, delay, _noise(noise, strains), seed, robots)
        if self.noise is not None and self.noise.shape not in ((), (len(strains),)):
            raise InputError(f"PI: noise: expected a number, or shape ({len(strains)},), got {tuple(self.noise.shape)}")
        self.strains, self.reference = strains, reference
        for name, gain in (("Kp", Kp), ("Ki", Ki), ("feed_forward", _ones_where(feed_forward))):
            self.register_buffer(name, _per_robot(name, gain, strains.undeformed))
        if not bool(((self.feed_forward == 0) | (self.feed_forward == 1)).all()):
            raise InputError("PI: feed_forward: expected true or false, or 0 and 1 for each robot")
        self.register_buffer("neighbours", strains.neighbours(model), persistent=False)
        self.smoothing = _passes(smoothing, self.neighbours)
        matrix = None if actuators is None else _matrix(actuators, strains)
        self.register_buffer("actuators", matrix)
        self.register_buffer("inverse", None if matrix is None else torch.linalg.pinv(matrix))
        self.least_length = _share(least_length)
        low, high = self._bounds({} if limit is None else limit)
        change = strains.spread({} if rate is None else rate, "PI: rate") * self.sampling_time
        self.register_buffer("low", -self._for_actuators(-low))
        self.register_buffer("high", self._for_actuators(high))
        self.register_buffer("most_change", self._for_actuators(change))

    def _bounds(self, limit: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest natural strains, each (m,), from the limits by field and `least_length`."""
        strains = self.strains
        most = strains.spread(limit, "PI: limit")
        low = -most
        if "stretch" in strains.parts:
            part = strains.parts["stretch"]
            if "stretch" in limit and 1 - limit["stretch"] < self.least_length:
                raise InputError(
                    f"PI: limit: stretch: {limit['stretch']:g} leaves {1 - limit['stretch']:g} of the rest lengths, "
                    f"expected {self.least_length:g} (least_length) or more"
                )
            low[part] = low[part].clamp_min(self.least_length - 1)
        if self.actuators is not None:  # an actuator may set strains of both signs, so its bounds are symmetric
            most = torch.minimum(most, -low)
            low = -most
        return low, most

    def __repr__(self) -> str:
        """Return the controlled strains with their units, and the sampling time."""
        listed = self.strains.extra_repr()
        return f"PI of {listed}; a sample each {self.sampling_time:g} s"

    # ---- constants by name, for `trainable` ------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of strains."""
        return self.strains.undeformed.dtype

    @property
    def device(self) -> torch.device:
        """Device of the buffers."""
        return self.strains.undeformed.device

    def constants(self) -> dict[str, Place]:
        """Return the constants that an optimiser may train, by name, each as (module, attribute)."""
        return {name: (self, name) for name in self.not_negative}

    # ---- a controller ----------------------------------------------------------------------------------------------

    def check(self, model: Model, state: State, dt: float, steps: int) -> None:
        """Refuse runs with another step, batch size or robot, and references that do not fit or cover the run."""
        super().check(model, state, dt, steps)
        for name in ("Kp", "Ki", "feed_forward"):
            rows = getattr(self, name).shape[0]
            if rows not in (1, state.batch):
                raise InputError(f"PI: {name}: expected a number, or one for each of {state.batch} robots, got {rows}")
        self.strains.refuse_another(model)
        self.reference.check(self.strains, state.batch, state.time, state.time + steps * dt)
        self._refuse_short()

    def _refuse_short(self) -> None:
        """Refuse references whose stretch means rest lengths below `least_length`."""
        part = self.strains.parts.get("stretch")
        if part is None or not isinstance(self.reference, Fixed | Table):
            return
        least = float(self.reference.values[..., part].detach().min())
        if least < self.least_length - 1:
            raise InputError(
                f"reference: asks for {1 + least:g} of a rest length, expected {self.least_length:g} (least_length) or "
                "more"
            )

    def measured(self, state: State, model: Model) -> Tensor:
        """Return the strains (B, m)."""
        return self.strains.measured(state, model)

    def first_action(self, state: State, model: Model) -> Tensor:
        """Return the action (B, k) that comes closest to the model's natural strains."""
        return self._reduced(self.strains.natural(model, state.batch))

    def remembered(self, state: State, model: Model, action: Tensor) -> Memory:
        """Return the memory before the first sample: "integral", the integral of the error (B, k), zero."""
        return {"integral": torch.zeros_like(action)}

    def response(self, measured: Tensor, time: Tensor, action: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the next action (B, k), natural strains or actuators' amplitudes, and the error's integral (B, k)."""
        error = self._reduced(smoothed(self.reference(time) - measured, self.neighbours, self.smoothing))
        integral = memory["integral"] + self.sampling_time * error
        requested = self.Kp * error + self.Ki * integral
        ahead = self._reduced(self.reference(time + self.sampling_time))
        requested = requested + self.feed_forward * ahead
        # the rate holds last: from natural strains beyond the limit the way back takes its time, on both sides
        within = torch.minimum(torch.maximum(requested, self.low), self.high)
        bounded = torch.minimum(torch.maximum(within, action - self.most_change), action + self.most_change)
        held_back = (requested - bounded) * error > 0
        return bounded, {"integral": torch.where(held_back, memory["integral"], integral)}

    def set_by(self, action: Tensor, control: Control, model: Model) -> Control:
        """Return the control with the natural strains of an action (B, k); strains without an actuator keep theirs."""
        if self.actuators is None:
            return self.strains.set_by(action, control, model)
        strains = action @ self.actuators.t()
        strains = torch.where(self._acted(), strains, self.strains.natural(model, len(strains), control))
        return self.strains.set_by(strains, control, model)

    def leaves(self, model: Model, field: str) -> bool:
        """Return whether some strains of this field that can change are left to the control that is passed in."""
        part = self.strains.parts.get(field)
        acted = 0 if part is None else int(self._acted()[part].sum())
        return acted < int(can_change(model, field).sum())

    def _acted(self) -> Tensor:
        """Return the strains that have an actuator, bool (m,)."""
        if self.actuators is None:
            return torch.ones_like(self.strains.undeformed, dtype=torch.bool)
        return (self.actuators != 0).any(1)

    def _reduced(self, strains: Tensor) -> Tensor:
        """Return the actions (.., k) whose strains are the least-squares fit to strains (.., m)."""
        return strains if self.inverse is None else strains @ self.inverse.t()

    def _for_actuators(self, bound: Tensor) -> Tensor:
        """Return bounds (k,) on actions that keep all strains within their bounds (m,); all bounds are 0 or more."""
        if self.actuators is None:
            return bound
        shares = self.actuators.abs()
        # actuators that set the same strain share its bound
        room = bound[:, None] / shares.sum(1, keepdim=True)
        return torch.where(shares > 0, room, torch.inf).amin(0)


def _noise(given: Mapping[str, float] | Tensor | float | None, strains: Strains) -> Tensor | float | None:
    """Return the deviations of the noise, those by field as a vector (m,); the others as they are given."""
    if not isinstance(given, Mapping):
        return given
    if math.inf in given.values():
        raise InputError(f"PI: noise: expected finite numbers by field, got {dict(given)}")
    return strains.spread(given, "PI: noise").nan_to_num(posinf=0.0)


def _passes(given: int, neighbours: Tensor) -> int:
    """Return a number of passes that smooth; refuse any where no strain has a neighbour (2, m) other than itself."""
    if type(given) is not int or given < 0:
        raise InputError(f"PI: smoothing: expected a whole number of passes from 0 on, got {given!r}")
    if given and bool((neighbours == torch.arange(neighbours.shape[1], device=neighbours.device)).all()):
        raise InputError(
            f"PI: smoothing: expected 0, got {given}: none of these strains has a neighbour along a rod to be smoothed "
            "with"
        )
    return given


def _share(given: float) -> float:
    """Return the share of the rest lengths that is left at least; refuse one that is not between 0 and 1."""
    share = real_number(given, "PI: least_length")
    if not 0 < share < 1:
        raise InputError(f"PI: least_length: expected a share of the rest lengths between 0 and 1, got {share}")
    return share


def _ones_where(value: bool | Tensor) -> float | Tensor:
    """Return 1 for True and 0 for False, also in a tensor of bool; numbers come back unchanged."""
    if isinstance(value, bool):
        return float(value)
    return value.to(torch.float64) if isinstance(value, Tensor) and value.dtype is torch.bool else value


def _per_robot(name: str, gain: Number, like: Tensor) -> Tensor:
    """Return a gain as (1, 1) or (B, 1); refuse negative ones."""
    value = numbers(gain, f"PI: {name}").to(like)
    if value.dim() > 1:
        raise InputError(f"PI: {name}: expected a number or one for each robot (B,), got shape {tuple(value.shape)}")
    if not bool((value >= 0).all() & value.isfinite().all()):
        raise InputError(f"PI: {name}: expected finite numbers of 0 or more, got {value.min().item():g}")
    return value.reshape(-1, 1)


def _matrix(actuators: Actuators, strains: Strains) -> Tensor:
    """Return the strains (m, k) that each actuator sets at 1."""
    if isinstance(actuators, Mapping):
        identity = torch.eye(len(strains), dtype=strains.undeformed.dtype, device=strains.undeformed.device)
        return identity[:, strains.places(actuators, "PI: actuators")]
    matrix = numbers(actuators, "PI: actuators").to(strains.undeformed)
    if matrix.dim() != 2 or matrix.shape[0] != len(strains) or not matrix.shape[1]:
        raise InputError(f"PI: actuators: expected shape ({len(strains)}, actuators), got {tuple(matrix.shape)}")
    if not bool(matrix.isfinite().all()) or int(torch.linalg.matrix_rank(matrix)) < matrix.shape[1]:
        raise InputError("PI: actuators: expected finite columns of which none is a sum of the others")
    return matrix
