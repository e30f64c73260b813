"""Static equilibrium."""

from __future__ import annotations

import dataclasses
import warnings

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.integrator import Solver, StepInfo
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.scheme import Scheme
from torchdismech.integrate.settling import settled_step
from torchdismech.integrate.supports import refuse_unheld
from torchdismech.solve.linear.base import DirectSolver
from torchdismech.solve.newton import matrix_values
from torchdismech.state import Control, State

__all__ = ["Static"]

AT_REST = Scheme(velocity=(0, 0, 0), acceleration=(0, 0, 0), end_velocity=(0, 0, 0))


class Static(Solver):
    """The equilibrium that the loads lead to: one `step` ramps them from what holds now to their full size.

    External forces grow in equal shares, natural strains and clamped dofs move evenly from the model's own and the
    state's to those that the control sets; `Control.values` act from the first share on. Time does not advance;
    velocity and acceleration become zero.

    What is found is a balance of forces. Where the loads have a potential (gravity, point forces, a penalty's contact)
    the search goes down the potential energy, but a start that is balanced already is left as it is: a straight column
    stays straight under any load. `StepInfo.stable` tells minima, which last, from saddles, which the smallest push
    ends, and a warning names robots on a saddle. Push those a little to the side, by `Control.force` or by the q they
    start from. What nothing holds against its loads is refused.

    Parameters
    ----------
    load_steps : number of shares.
    Others as for `Solver`.
    """

    scheme = AT_REST

    def __init__(
        self,
        load_steps: int = 1,
        force_tolerance: float = 1e-8,
        relative_tolerance: float = 1e-8,
        max_iterations: int = 200,
        line_search: bool = True,
        chunk: int | str | None = "auto",
    ):
        super().__init__(force_tolerance, relative_tolerance, max_iterations, line_search, chunk)
        if load_steps < 1:
            raise InputError(f"load_steps: expected at least 1, got {load_steps}")
        self.load_steps = int(load_steps)
        self.step_evaluations = 10 * self.load_steps

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

    def attempts(self, equations: StepEquations) -> list[tuple[bool, str]]:
        """Return the one way in which equilibria are searched for."""
        return [(False, "descending" if equations.has_potential else "plain")]

    @property
    def _step_length(self) -> float:
        return 0.0

    def _advanced(self, problem: StepProblem) -> tuple[State, StepInfo]:
        """Return the equilibria of some robots and how the search went: the load ramp."""
        refuse_unheld(problem.model, problem.state, problem.control, problem.running, self.force_tolerance)
        problem = problem.replace(state=self.scheme.started(problem.state, 0.0))
        at, going = problem.state, problem.running
        info: StepInfo | None = None
        for k in range(1, self.load_steps + 1):
            share = k / self.load_steps
            control = _ramped(problem, share)
            at, part = settled_step(problem.replace(state=at, control=control, running=going, share=share))
            if info is not None:
                part = dataclasses.replace(part, iterations=part.iterations + info.iterations)
                part = part.merged(info, problem.running & ~going)
            info = part
            going = going & info.converged
        assert info is not None
        after = problem.state.merged(at, going)
        return after, dataclasses.replace(info, stable=_stable(problem.replace(state=after, running=going)))

    def _occasion(self, state: State) -> str:
        return "static equilibrium"


def _ramped(problem: StepProblem, share: float) -> Control:
    """Return the control at a share of the ramp."""
    control, state = problem.control, problem.state
    if share == 1:
        return control
    own = problem.model.natural_strains(state.batch).replace(clamped_q=state.q).tensors()
    ends = control.tensors()
    # forces are scaled with the other loads
    ramped = {name: end if name == "force" else own[name] + share * (end - own[name]) for name, end in ends.items()}
    return Control.of(ramped)


@torch.no_grad()
def _stable(problem: StepProblem) -> Tensor | None:
    """Return which equilibria (B,) are minima of the potential energy; None where that cannot be told."""
    model, state = problem.model, problem.state
    equations = problem.equations(model.contact.touching(state.q))
    solver = model.solver_for(state.batch, equations.start.pairs)
    definite_only = isinstance(solver, DirectSolver) and solver.pattern.symmetric  # by Cholesky
    if not (equations.has_potential and definite_only):
        return None
    equations.prepare()
    x = state.q.index_select(1, model.free_index)
    return solver.factor(matrix_values(equations, x, solver, model.residual_weight()), rows=problem.running).ok & (
        problem.running
    )
