"""The programs of a plan, solved by IPOPT in turn, each starting from the solution of the one before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchdismech.constant_curvature.planning.casadi import casadi
from torchdismech.constant_curvature.planning.plan import Plan, Stage
from torchdismech.constant_curvature.planning.program import stepwise_program
from torchdismech.constant_curvature.planning.transcription import PAIRS, PlannedStep, Task

__all__ = ["IPOPT", "Limits", "Motion", "Values"]

LAST = 100.0  # weight of the orientation error at the end of the motion
FASTEST = 2.0  # [rad] bound on the ball's rotation about each axis in a step
IPOPT: dict[str, Any] = {
    "print_level": 0,
    "sb": "yes",
    "mu_strategy": "adaptive",
    "bound_relax_factor": 0.0,
}
ROUGH = {"tol": 1e-2, "constr_viol_tol": 1e-6}  # for programs whose solution is the start of another one
FINE = {"tol": 1e-6, "constr_viol_tol": 1e-9}  # for the last program
RESUMED = {
    "warm_start_init_point": "yes",
    "mu_init": 1e-4,
    "warm_start_bound_push": 1e-7,
    "warm_start_bound_frac": 1e-7,
    "warm_start_slack_bound_push": 1e-7,
    "warm_start_slack_bound_frac": 1e-7,
    "warm_start_mult_bound_push": 1e-7,
}
Values = dict[str, np.ndarray]  # unknowns by name, each (N, size)


@dataclass(frozen=True)
class Limits:
    """Bounds of a plan: on elongations [m], on the normal contact force (from below) [N], on IPOPT's iterations."""

    elongations: tuple[float, float]
    least_normal: float
    iterations: int


class Motion:
    """The program of a motion in N steps, kinematic or dynamic.

    Parameters
    ----------
    task : what is planned.
    moving : whether the arm obeys its dynamics, driven by forces on its chambers; else it moves without forces.
    start : (n,) elongations at the beginning, where all is at rest [m].
    steps : number of steps N.
    limits : bounds of the plan.
    """

    def __init__(self, task: Task, moving: bool, start: np.ndarray, steps: int, limits: Limits):
        self.task, self.limits, self.steps = task, limits, steps
        self.equations = PlannedStep(task, moving)
        self.layout = self.equations.layout
        first = {name: np.zeros((1, size)) for name, size in self.layout.sizes.items()}
        first["q"][0], first["orientation"][0, 0], first["normal"][0] = start, 1.0, limits.least_normal
        self.first = first
        last_weight = np.zeros((steps, 1))
        last_weight[-1] = LAST
        step = self.equations.functions()
        self.rows = step.constraints.numel()
        self.program, self.derivatives = stepwise_program(step, self.layout.packed(first)[0], last_weight)

    def solved(
        self, guess: Values, relaxations: Sequence[float], fine: bool, progress: bool
    ) -> tuple[Values, list[Stage]]:
        """Return the unknowns for the last relaxation, and how the program was solved for each.

        Parameters
        ----------
        fine : whether to solve for the last relaxation to the tolerance of a plan.
        """
        start: dict[str, Any] = {"x0": self.layout.packed(guess).reshape(-1)}
        stages = []
        for number, relaxation in enumerate(relaxations):
            tolerance = FINE if fine and number == len(relaxations) - 1 else ROUGH
            start, stage = self._solution(start, relaxation, tolerance, number > 0, progress)
            stages.append(stage)
        return self.layout.unpacked(np.array(start["x0"]).reshape(self.steps, -1)), stages

    def _solution(
        self, start: dict[str, Any], relaxation: float, tolerance: dict[str, float], resumed: bool, progress: bool
    ) -> tuple[dict[str, Any], Stage]:
        """Return the solution, as the start of the next program, and how it was found."""
        ca = casadi()
        name = "dynamic" if self.equations.moving else "kinematic"
        options = IPOPT | {"max_iter": self.limits.iterations} | tolerance
        options |= RESUMED if resumed else {}
        bar = _bar(f"{name} plan, eps {relaxation:g}", progress)
        watch = _watch(self.program["x"].numel(), self.program["g"].numel(), bar)
        settings = {**self.derivatives, "ipopt": options, "print_time": False, "iteration_callback": watch}
        solver = ca.nlpsol("plan", "ipopt", self.program, settings)
        start_time = time.process_time()
        low, high = self._bounds()
        solution = solver(**start, lbx=low, ubx=high, **self._limits(relaxation))
        bar.close()
        stats = solver.stats()
        stage = Stage(name, relaxation, stats["return_status"], stats["iter_count"], time.process_time() - start_time)
        return {"x0": solution["x"], "lam_x0": solution["lam_x"], "lam_g0": solution["lam_g"]}, stage

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper bounds of all unknowns, each (N count,)."""
        sizes = self.layout.sizes
        low = {name: np.full((self.steps, size), -np.inf) for name, size in sizes.items()}
        high = {name: np.full((self.steps, size), np.inf) for name, size in sizes.items()}
        low["q"][:], high["q"][:] = self.limits.elongations
        high["spin"][:] = FASTEST / self.task.h
        low["spin"] = -high["spin"]
        for one, other in PAIRS.items():
            low[one][:] = low[other][:] = 0.0
        low["normal"][:] = self.limits.least_normal
        return self.layout.packed(low).reshape(-1), self.layout.packed(high).reshape(-1)

    def _limits(self, relaxation: float) -> dict[str, np.ndarray]:
        """Return the bounds of the constraints for `nlpsol`: products stay below eps, all others are zero."""
        products = sum(self.layout.sizes[name] for name in PAIRS)
        low, high = np.zeros((self.steps, self.rows)), np.zeros((self.steps, self.rows))
        low[:, -products:], high[:, -products:] = -np.inf, relaxation
        return {"lbg": low.reshape(-1), "ubg": high.reshape(-1)}

    # ---- guesses and results ---------------------------------------------------------------------------------------

    def straightforward(self) -> Values:
        """Return the first guess: the ball turns evenly to its target, and the arm stays where it is."""
        guess = {name: np.repeat(value, self.steps, 0) for name, value in self.first.items()}
        target = self.task.target * (1.0 if self.task.target[0] >= 0 else -1.0)
        angle = 2 * np.arctan2(np.linalg.norm(target[1:]), target[0])
        axis = target[1:] / max(float(np.linalg.norm(target[1:])), 1e-12)
        half = 0.5 * angle * np.linspace(0, 1, self.steps + 1)[1:, None]
        guess["orientation"] = np.hstack([np.cos(half), np.sin(half) * axis])
        guess["spin"][:] = axis * angle / (self.steps * self.task.h)
        normal = max(self.limits.least_normal, 0.1)
        guess["normal"][:], guess["margin"][:] = normal, self.task.ball.friction * normal
        guess["tangential"][:], guess["slip"][:], guess["sliding"][:] = 1e-3, 1e-2, 1e-2
        return guess

    def with_forces(self, motion: Values) -> Values:
        """Return a kinematic motion with the forces on the chambers that it takes, by inverse dynamics."""
        guess = {**motion, "force": np.zeros((self.steps, self.task.arm.n_dofs))}
        return {**guess, "force": self._quantities(guess)["force"]}

    def _quantities(self, values: Values) -> Values:
        """Return by name (N, size) the values of defects, definitions and products, and the force on the plate."""
        ca = casadi()
        before, now = self.layout.symbols("0"), self.layout.symbols()
        defects = self.equations.defects(before, now)
        definitions, products = self.equations.definitions(now), self.equations.products(now)
        quantities = {**defects, "contact": ca.vertcat(*definitions), "complementarity": ca.vertcat(*products)}
        quantities["pushed"] = self.equations.contact_force(now)
        function = ca.Function(
            "sides", [ca.vertcat(*before.values()), ca.vertcat(*now.values())], list(quantities.values())
        )
        rows = self.layout.packed(values)
        previous = np.vstack([self.layout.packed(self.first), rows[:-1]])
        values_of_steps = function.map(self.steps)(previous.T, rows.T)
        return {name: np.array(value).T for name, value in zip(quantities, values_of_steps, strict=True)}

    def plan(self, values: Values, stages: list[Stage]) -> Plan:
        """Return the plan for a solution."""
        quantities = self._quantities(values)
        largest = {name: float(np.abs(value).max()) for name, value in quantities.items() if name != "pushed"}
        largest["quaternion"] = float(np.abs(np.linalg.norm(values["orientation"], axis=1) - 1).max())
        with_start = {name: torch.from_numpy(np.vstack([self.first[name], values[name]])) for name in self.first}
        steps = {name: torch.from_numpy(value) for name, value in values.items()}
        return Plan(
            times=self.task.h * torch.arange(self.steps + 1, dtype=torch.float64, device="cpu"),
            q=with_start["q"],
            velocity=with_start["v"],
            orientation=with_start["orientation"],
            spin=with_start["spin"],
            force=steps["force"],
            normal=steps["normal"][:, 0],
            contact_force=torch.from_numpy(quantities["pushed"]),
            gap=steps["gap"][:, 0],
            target=torch.from_numpy(self.task.target),
            residuals=largest,
            stages=tuple(stages),
        )


def _bar(text: str, progress: bool) -> Any:
    from tqdm import tqdm

    return tqdm(desc=text, unit="iteration", disable=not progress)


def _watch(unknowns: int, constraints: int, bar: Any) -> Any:
    """Return a callback for IPOPT that moves the progress bar on at each iteration."""
    ca = casadi()
    shapes = {"x": unknowns, "f": 1, "g": constraints, "lam_x": unknowns, "lam_g": constraints, "lam_p": 0}

    class Watch(ca.Callback):  # type: ignore[name-defined]
        def __init__(self):
            super().__init__()
            self.construct("watch", {})

        def get_n_in(self):
            return ca.nlpsol_n_out()

        def get_n_out(self):
            return 1

        def get_name_in(self, i):
            return ca.nlpsol_out(i)

        def get_sparsity_in(self, i):
            return ca.Sparsity.dense(shapes[ca.nlpsol_out(i)], 1 if shapes[ca.nlpsol_out(i)] else 0)

        def eval(self, arguments):
            bar.set_postfix(cost=f"{float(arguments[1]):.6g}", refresh=False)
            bar.update()
            return [0]

    return Watch()
