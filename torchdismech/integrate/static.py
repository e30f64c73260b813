"""Static equilibrium."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.integrate.balance import Balance
from torchdismech.integrate.base import Integrator, StepInfo
from torchdismech.model import Model, StepStart
from torchdismech.state import Control, State

__all__ = ["Static"]


class _StaticBalance(Balance):
    """0 = elastic force + share of the external force, at velocity zero."""

    inertial = False
    mass_gain, position_gain, velocity_gain = 0.0, 1.0, 0.0

    def __init__(self, model: Model, start: StepStart, clamped_q: Tensor, share: float):
        super().__init__(model, start, clamped_q, 0.0)
        self.share = share

    def acceleration(self, q: Tensor) -> Tensor:
        return torch.zeros_like(q)

    def evaluated_at(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, torch.zeros_like(q), self.start.state.time

    def load_factor(self) -> float:
        return self.share


class Static(Integrator):
    """The equilibrium that the loads lead to: one `step` ramps them from what holds now to their full size.

    External forces grow in equal shares, natural strains and clamped dofs move evenly from the model's own and the
    state's to those that the control sets. With constant loads (gravity, point forces) the potential energy is
    minimised: the equilibrium found is stable. Time does not advance; velocity and acceleration become zero.

    Parameters
    ----------
    load_steps : number of shares.
    Others as for `Integrator`; there is no dt and there are no substeps.
    """

    def __init__(
        self,
        load_steps: int = 1,
        force_tolerance: float = 1e-8,
        relative_tolerance: float = 1e-8,
        max_iterations: int = 200,
        line_search: bool = True,
        chunk: int | str | None = "auto",
    ):
        super().__init__(1.0, force_tolerance, relative_tolerance, max_iterations, line_search, chunk=chunk)
        if load_steps < 1:
            raise InputError(f"load_steps: expected at least 1, got {load_steps}")
        self.load_steps = int(load_steps)
        self._share = 1.0  # of the loads; see `_at_share`

    def _stepped(self, model: Model, state: State, control: Control, running: Tensor) -> tuple[State, StepInfo]:
        """Return the equilibrium and how the search went."""
        at, going = state, running
        info: StepInfo | None = None
        for k in range(1, self.load_steps + 1):
            part_way = self._at_share(k / self.load_steps)
            at, part = part_way._attempt(model, at, part_way._ramped(model, state, control), 1.0, going)
            if info is not None:
                part = dataclasses.replace(part, iterations=part.iterations + info.iterations)
                part = part.merged(info, running & ~going)
            info = part
            going = going & info.converged
        assert info is not None
        return state.merged(at, going), info

    @property
    def _evaluations(self) -> int:
        return 10 * self.load_steps

    def _occasion(self, state: State) -> str:
        return "static equilibrium"

    def sample(self, schedule, state: State, model: Model) -> Control:
        """Return the control that `schedule` sets at the state's own time."""
        return schedule(state.time, model)

    def _at_share(self, share: float) -> Static:
        """Return a copy of this that lets a share of the loads act."""
        part_way = copy.copy(self)
        part_way._share = share
        return part_way

    def _ramped(self, model: Model, state: State, control: Control) -> Control:
        """Return the control at the present share of the ramp."""
        if self._share == 1:
            return control
        own = model.natural_strains(state.batch).replace(clamped_q=state.q, force=torch.zeros_like(state.q))
        ramped = {}
        for field in dataclasses.fields(Control):
            end, begin = getattr(control, field.name), getattr(own, field.name)
            # forces are scaled by the balance already
            ramped[field.name] = end if end is None or field.name == "force" else begin + self._share * (end - begin)
        return Control(**ramped)

    def _balance(self, model: Model, start: StepStart, clamped_q: Tensor, dt: float | Tensor) -> Balance:
        return _StaticBalance(model, start, clamped_q, self._share)

    def _ahead(self, model: Model, state: State, control: Control, dt: float) -> Tensor:
        return super()._ahead(model, state, control, 0.0)

    def _elapsed(self, dt: float | Tensor) -> None:
        return None

    def _attempts(self, balance: Balance) -> Iterator[tuple[bool, str]]:
        yield False, "descending" if balance.has_potential else "plain"

    def _after(self, balance: Balance, q: Tensor) -> State:
        zero = torch.zeros_like(q)
        return balance.model.moved(balance.start.state, q).replace(velocity=zero, acceleration=zero)
