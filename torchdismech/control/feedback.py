"""Feedback: controllers that measure, respond and act, with a sampling time, noise and delay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchdismech.control.noise import SEEDS, normal
from torchdismech.control.protocol import Memory, name_of
from torchdismech.control.recorded import RecordedAnswers
from torchdismech.errors import InputError, positive_number, real_number, shown
from torchdismech.model import Model
from torchdismech.robot.state import Control, State
from torchdismech.values import numbers, tensor_of, where_rows

__all__ = ["Feedback"]

MAX_STEPS = 10**9  # most steps from one sample to the next
RESERVED = ("step", "robot", "action", "seen")


class Feedback(nn.Module, ABC):
    """A sampled controller of robots of rods and shells, which turns measurements (B, m) into actions (B, k).

    A subclass defines what is measured, how it responds, what an action sets, and the action before the first sample
    (`measured`, `response`, `set_by`, `first_action`). It may remember more (`remembered`) and refuse runs (`check`).

    Its memory has "step" (B,), the number of steps taken; "action" (B, k), the action in force; with noise "robot"
    (B,), the robots' numbers; with a delay "seen" (B, delay, m), measurements not yet delivered; and what the subclass
    remembers.

    Parameters
    ----------
    dt : step of the integrator [s].
    every : sampling time [s], a whole number of steps; between samples the action is held. None: a sample each step.
    delay : number of steps by which measurements arrive late. Those from before a run are of the state at its start.
    noise : standard deviation of the noise added to a measurement, normal and independent in each sample: () or (m,),
        in the units of the measurement; None adds nothing.
    seed : of the noise.
    robots : (B,) numbers of the robots; by default 0, 1, .... A robot's noise depends on its number and on the seed,
        not on the others in the batch.
    """

    noise: Tensor | None
    robots: Tensor | None

    def __init__(
        self,
        dt: float,
        every: float | None = None,
        delay: int = 0,
        noise: Tensor | float | None = None,
        seed: int = 0,
        robots: Sequence[int] | Tensor | None = None,
    ):
        super().__init__()
        name = type(self).__name__
        dt = positive_number(dt, f"{name}: dt", "a number of seconds above 0, the integrator's step")
        for label, value in (("delay", delay), ("seed", seed)):
            if type(value) is not int or value < 0:
                raise InputError(f"{name}: {label}: expected a whole number from 0 on, got {value!r}")
        if seed >= SEEDS:
            raise InputError(f"{name}: seed: expected a whole number of less than 64 bits, got {seed}")
        self.dt, self.delay, self.seed = dt, delay, seed
        self.steps_a_sample = 1 if every is None else _steps_in(f"{name}: every", every, self.dt)
        deviation = None if noise is None else numbers(noise, f"{name}: noise").to(torch.float64)
        if deviation is not None and not bool((deviation >= 0).all() & deviation.isfinite().all()):
            raise InputError(f"{name}: noise: expected finite numbers from 0 on, got {noise}")
        self.register_buffer("noise", deviation)
        self.register_buffer("robots", None if robots is None else _whole_numbers(f"{name}: robots", robots))
        self._recorded = RecordedAnswers()

    # ---- for subclasses to define ----------------------------------------------------------------------------------

    @abstractmethod
    def measured(self, state: State, model: Model) -> Tensor:
        """Return the measurement (B, m) at a state, without noise and delay."""

    @abstractmethod
    def response(self, measured: Tensor, time: Tensor, action: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the next action (B, k) and the subclass's memory after the sample.

        It is called at every step; what it returns between samples is dropped.

        Parameters
        ----------
        measured : (B, m), with noise and delay.
        time : (B,) time of the sample [s]; the action holds from here to the next sample.
        action : (B, k) the action before.
        memory : the subclass's memory, from the sample before or, at first, from `remembered`.
        """

    @abstractmethod
    def set_by(self, action: Tensor, control: Control, model: Model) -> Control:
        """Return the control of a step with an action (B, k) set in it."""

    @abstractmethod
    def first_action(self, state: State, model: Model) -> Tensor:
        """Return the action (B, k) that holds before the first sample."""

    def remembered(self, state: State, model: Model, action: Tensor) -> Memory:
        """Return the subclass's memory before the first sample."""
        return {}

    # ---- a controller with memory ----------------------------------------------------------------------------------

    @property
    def sampling_time(self) -> float:
        """Time from one sample to the next [s]."""
        return self.steps_a_sample * self.dt

    def check(self, model: Model, state: State, dt: float, steps: int) -> None:
        """Refuse runs with another step than `dt`, and batches of another size than `robots`."""
        name = name_of(self)
        if abs(dt - self.dt) > 1e-9 * dt:
            raise InputError(f"{name}: is made for steps of dt = {self.dt:g} s, and the integrator takes {dt:g} s")
        if self.robots is not None and self.robots.shape != (state.batch,):
            raise InputError(
                f"{name}: robots: expected the numbers of {state.batch} robots, got {tuple(self.robots.shape)}"
            )

    def initial(self, model: Model, state: State) -> Memory:
        """Return the memory before the first step from a state."""
        count = torch.zeros(state.batch, dtype=torch.int64, device=state.q.device)
        action = self.first_action(state, model)
        memory: dict[str, Tensor] = {"step": count, "action": action}
        if self.noise is not None:
            memory["robot"] = torch.arange(state.batch, device=state.q.device) if self.robots is None else self.robots
        if self.delay:
            measured = self.measured(state, model)
            earlier = [self._noisy(measured, memory, count - back) for back in range(self.delay, 0, -1)]
            memory["seen"] = torch.stack(earlier, dim=1)
        remembered = self.remembered(state, model, action)
        if clashing := sorted(remembered.keys() & set(RESERVED)):
            raise InputError(f"{name_of(self)}: remembers {clashing[0]!r}, which is a name of its own; take another")
        return memory | dict(remembered)

    def forward(self, state: State, memory: Memory, control: Control, model: Model) -> tuple[Control, Memory]:
        """Return the control of the step from a state, and the memory after it."""
        replayed = self._recorded.replayed(self, self._answer, state, memory, control, model)
        return self._answer(state, memory, control, model) if replayed is None else replayed

    def _answer(self, state: State, memory: Memory, control: Control, model: Model) -> tuple[Control, Memory]:
        new_memory = dict(memory)
        measured = self._noisy(self.measured(state, model), memory, memory["step"])
        if self.delay:
            under_way = torch.cat([memory["seen"], measured[:, None]], dim=1)
            measured, new_memory["seen"] = under_way[:, 0], under_way[:, 1:]
        subclass_memory = {name: value for name, value in memory.items() if name not in RESERVED}
        action, remembered = self.response(measured, state.time, memory["action"], subclass_memory)
        sampled = {"action": action, **remembered}
        if self.steps_a_sample > 1:
            due = memory["step"] % self.steps_a_sample == 0
            for name, value in sampled.items():
                sampled[name] = where_rows(due, value, memory[name])
        new_memory |= sampled
        new_memory["step"] = memory["step"] + 1
        return self.set_by(new_memory["action"], control, model), new_memory

    def _noisy(self, measured: Tensor, memory: Memory, step: Tensor) -> Tensor:
        """Return a measurement (B, m) with the noise of the step `step` (B,)."""
        if self.noise is None:
            return measured
        noise = normal(self.seed, memory["robot"], step, measured.shape[1], measured.dtype)
        return measured + self.noise.to(measured) * noise


def _whole_numbers(label: str, robots: Sequence[int] | Tensor) -> Tensor:
    """Return the numbers of robots in int64; refuse others than whole numbers, which torch would truncate."""
    refusal = f"{label}: expected a whole number for each robot, got {shown(robots)}"
    try:
        tensor = tensor_of(robots)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(refusal) from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        raise InputError(refusal)
    return tensor.to(torch.int64)


def _steps_in(label: str, length: float, dt: float) -> int:
    """Return the number of steps dt in a time `length`; refuse one that is no whole number of them."""
    length = real_number(length, label, "a number of seconds")
    steps = round(length / dt) if 0 < length < MAX_STEPS * dt else 0
    if steps < 1 or abs(length / dt - steps) > 1e-6:
        near = max(steps, 1) * dt
        raise InputError(f"{label}: expected a whole number of steps of dt = {dt:g} s, got {length:g} s: take {near:g}")
    return steps
