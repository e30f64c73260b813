"""Static equilibrium."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.integrate.balance import Balance
from torchdismech.integrate.base import Integrator, StepInfo
from torchdismech.integrate.supports import refuse_unheld
from torchdismech.model import Model, StepStart
from torchdismech.solve.linear.base import DirectSolver
from torchdismech.solve.newton import matrix_values
from torchdismech.state import Control, State

__all__ = ["Static"]


class _StaticBalance(Balance):
    """0 = elastic force + share of the external force, at velocity zero."""

    inertial = False
    mass_gain, position_gain, velocity_gain = 0.0, 1.0, 0.0

    def __init__(self, model: Model, start: StepStart, clamped_q: Tensor, share: float):
        super().__init__(model, start if share == 1 else model.with_share(start, share), clamped_q, 0.0)
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
    state's to those that the control sets. Time does not advance; velocity and acceleration become zero.

    What is found is a balance of forces. Where the loads have a potential (gravity, point forces, a penalty's contact)
    the search goes down the potential energy, but a start that is balanced already is left as it is: a straight column
    stays straight under any load. `StepInfo.stable` tells minima, which last, from saddles, which the smallest push
    ends, and a warning names robots on a saddle. Push those a little to the side, by `Control.force` or by the q they
    start from. What nothing holds against its loads is refused.

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
        refuse_unheld(model, state, control, running, self.force_tolerance)
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
        after = state.merged(at, going)
        return after, dataclasses.replace(info, stable=self._stable(model, after, control, going))

    @torch.no_grad()
    def _stable(self, model: Model, state: State, control: Control, rows: Tensor) -> Tensor | None:
        """Return which equilibria (B,) are minima of the potential energy; None where that cannot be told."""
        balance = self.equations(model, state, control, 0.0)
        solver = model.solver_for(state.batch, balance.start.pairs)
        definite_only = isinstance(solver, DirectSolver) and solver.pattern.symmetric  # by Cholesky
        if not (balance.has_potential and definite_only):
            return None
        balance.prepare()
        x = state.q.index_select(1, model.free_index)
        return solver.factor(matrix_values(balance, x, solver, model.residual_weight()), rows=rows).ok & rows

    def step(self, *args, **options) -> tuple[State, StepInfo]:
        """Return the equilibrium and how the search went, as `Integrator.step`; warn of robots on a saddle."""
        after, info = super().step(*args, **options)
        if info.stable is not None and bool((saddle := info.converged & ~info.stable).any()):
            robots = saddle.nonzero().flatten().tolist()
            shown = ", ".join(map(str, robots[:10])) + ", ..." * (len(robots) > 10)
            warnings.warn(
                f"Static: the equilibrium of robot {shown} is no minimum of the potential energy, so the smallest push "
                "ends it: it is a saddle, or a part is free to move; start from a shape that is pushed a little aside",
                RuntimeWarning,
                stacklevel=2,
            )
        return after, info

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
