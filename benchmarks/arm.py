"""Cost of steps of the pneumatic arm, free and in scenario A, beside one arm in plain NumPy (`benchmarks.peer_arm`).

``python -m benchmarks arm`` prints the table: process CPU time on one thread. `python -m benchmarks.arm` prints what
does not fit into it: the share of complementarity problems that are solved without a guess, the error of large steps,
the cost of a backward pass, the time of a plan through contact (minutes; it needs CasADi).
"""

import math
import statistics
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.jobs import Job
from benchmarks.machine import now
from benchmarks.peer_arm import PeerArm
from benchmarks.table import Row
from studies.pneumatic_arm.planning import found
from studies.pneumatic_arm.scenarios import Scene, hanging, inclined_box
from torchdismech import Control
from torchdismech.constant_curvature import ArmIntegrator, ArmState
from torchdismech.contact import Complementarity

DT = 2e-3  # s
FREE, CONTACT = "arm, free", "arm, scenario A"
LAST = 1.9  # s, when the arm of scenario A slides
HALF = math.radians(45)
NORMAL, POINT = np.array([-math.sin(HALF), 0.0, math.cos(HALF)]), np.array([0.0, 0.0, -0.58])


def jobs(quick: bool, gpu: bool) -> list[Job]:
    """Return the jobs: each case by the peer and by us."""
    cases = [(FREE, 64 if quick else 1024), (CONTACT, 8 if quick else 64)]
    found = []
    for case, batch in cases:
        found.append(Job("arm", case, 1, "NumPy, Lemke", {"case": case, "batch": 1, "peer": True}, peer=True))
        found.append(Job("arm", case, batch, "torchdismech", {"case": case, "batch": batch, "peer": False}))
    return found


def rows(case: str, batch: int, peer: bool) -> list[Row]:
    """Return the row of a case."""
    torch.set_num_threads(1)
    return [_peer(case) if peer else _ours(case, batch)]


def sliding(batch: int) -> tuple[Scene, ArmState]:
    """Return scenario A with six disks a section, and a batch of its state shortly before the end, when it slides."""
    scene = inclined_box(half=True, disks=6, batch=batch)
    one = inclined_box(half=True, disks=6)
    state, integrator = one.start, ArmIntegrator(1e-2)
    for _ in range(round(LAST / integrator.dt)):
        state, _ = integrator.step(one.arm, state, one.schedule(state.time, one.arm), throw=True)
    return scene, state.rows(torch.zeros(batch, dtype=torch.long))


def _ours(case: str, batch: int) -> Row:
    with torch.no_grad():
        if case == FREE:
            arm = hanging([], 0)
            state = arm.initial_state(batch, q=torch.full((9,), 0.02, dtype=torch.float64))
            control = Control(force=torch.zeros(batch, 9, dtype=torch.float64))
        else:
            scene, state = sliding(batch)
            arm, control = scene.arm, scene.schedule(state.time, scene.arm)
        integrator, fine, active, count = ArmIntegrator(DT), batch, 0.0, 25

        def run(steps: int) -> None:
            nonlocal state, fine, active
            for _ in range(steps):
                state, info = integrator.step(arm, state, control)
                fine = min(fine, int(info.converged.sum()))
                active = float(info.contact["active"].double().mean()) if info.contact else 0.0

        seconds = _timed(run, count)
    return Row(case, batch, "torchdismech", DT, seconds / batch, converged=fine, note=f"{active:g} contacts an arm")


def _peer(case: str) -> Row:
    active, count = 0, 25
    if case == FREE:
        arm, q, v, force = PeerArm(0), np.full(9, 0.02), np.zeros(9), np.zeros(9)
    else:
        scene, state = sliding(1)
        arm, q, v = PeerArm(6, NORMAL, POINT), state.q[0].numpy(), state.velocity[0].numpy()
        control = scene.schedule(state.time, scene.arm)
        assert control.force is not None
        force = control.force[0].numpy()

    def run(steps: int) -> None:
        nonlocal q, v, active
        for _ in range(steps):
            q, v, active = arm.step(q, v, force, DT)

    return Row(case, 1, "NumPy, Lemke", DT, _timed(run, count), peer=True, note=f"{active:g} contacts an arm")


def _timed(run: Callable[[int], None], count: int) -> float:
    """Return the process CPU time of a step, the least of three rounds [s]."""
    run(3)
    found = []
    for _ in range(3):
        began = now()
        run(count)
        found.append((now() - began) / count)
    return min(found)


def cold_problems(steps: int = 40) -> dict[str, float]:
    """Return the share of scenario A's complementarity problems that each solver solves without a guess."""
    shares = {}
    for method in ("interior_point", "fischer_burmeister"):
        scene, state = sliding(1)
        response = scene.arm.obstacles[0].law.response
        assert isinstance(response, Complementarity)
        response.method = method
        solved = 0
        with torch.no_grad():
            for _ in range(steps):
                state = state.replace(impulses=torch.zeros_like(state.impulses))
                control = scene.schedule(state.time, scene.arm)
                state, info = ArmIntegrator(DT, unsolved="take").step(scene.arm, state, control)
                solved += int(info.solved is not None and info.solved.all())
        shares[method] = solved / steps
    return shares


def backward_over_forward(batch: int = 64, steps: int = 100, rounds: int = 7) -> float:
    """Return the time of forward and backward passes over that of forward ones, for steps in contact (median)."""
    scene, state = sliding(batch)
    peak = scene.peak.clone().requires_grad_(True)
    which = torch.zeros(9, dtype=torch.float64)
    which[[3, 6]] = 1.0
    integrator = ArmIntegrator(DT)

    def forward(start: ArmState, count: int) -> tuple[ArmState, torch.Tensor]:
        """Return the state after so many steps, and which arms touched the face in all of them."""
        now_at, touching = start, torch.ones(batch, dtype=torch.bool)
        for _ in range(count):
            now_at, info = integrator.step(scene.arm, now_at, Control(force=(0.88 * peak * which).expand(batch, 9)))
            touching &= info.contact["active"] > 0
        return now_at, touching

    with torch.no_grad():
        state, _ = forward(state, 5)  # until the arms touch
    ratios = []
    for _ in range(rounds):
        with torch.no_grad():
            began = now()
            _, touching = forward(state, steps)
            alone = now() - began
        if not bool(touching.all()):
            raise RuntimeError(f"{int((~touching).sum())} of {batch} arms left the face within {steps} steps")
        began = now()
        end, _ = forward(state, steps)
        end.positions[:, -1].sum().backward()
        ratios.append((now() - began) / alone)
    return statistics.median(ratios)


def step_errors() -> dict[str, tuple[float, float]]:
    """Return CPU time of scenario A [s a simulated second] and the tip's distance from a fine run [m], by step size."""
    tips, costs = {}, {}
    for name, dt, scheme in (
        ("2.5e-4", 2.5e-4, "implicit"),
        ("1e-3", 1e-3, "implicit"),
        ("1e-4 with M", 1e-4, "explicit"),
    ):
        scene = inclined_box(half=True, disks=3)
        state, integrator = scene.start, ArmIntegrator(dt, scheme)
        began = now()
        with torch.no_grad():
            for _ in range(round(2.0 / dt)):
                state, _ = integrator.step(scene.arm, state, scene.schedule(state.time, scene.arm), throw=True)
        costs[name], tips[name] = (now() - began) / 2.0, state.positions[0, -1]
    return {name: (costs[name], float((tips[name] - tips["2.5e-4"]).norm())) for name in tips}


def planning(axis: str = "x") -> dict[str, float]:
    """Return the cost of a plan of 100 steps that turns a ball by 90 degrees, and how good the plan is."""
    began = now()
    plan = found(axis)
    return {
        "CPU minutes": (now() - began) / 60,
        "iterations": sum(stage.iterations for stage in plan.stages),
        "converged": float(plan.converged),
        "error": plan.error,
        "products": plan.residuals["complementarity"],
        "defects": plan.defect,
    }


def main() -> None:
    """Print the measurements that have no row in the table."""
    torch.set_num_threads(1)
    print("problems of scenario A solved cold:", cold_problems())
    print("forward and backward over forward, 100 steps, B = 64:", round(backward_over_forward(), 2))
    print("step: CPU s per simulated s, tip from a fine run [m]:", step_errors())
    print("plan about x, N = 100 (the paper: 13.6 minutes a problem, on another machine):", planning())


if __name__ == "__main__":
    main()
