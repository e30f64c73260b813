"""Scenario C: which stages of the paper's conditioning its solver needs, on the draped arm of scenario A'.

64 runs, each from where the arm lies at rest: faces of 45 and 60 degrees, 3 and 6 disks inside of a section, semi-
implicit Euler at 1e-4 s and RK23 at 1e-3 s, and all subsets of rank selection (R), equilibration (E) and
regularisation (T). A run is a success where at least 95 % of its complementarity problems are solved, no plate is ever
10 mm deep, and at least 80 % of the time is simulated. Runs that share disks and integrator are rows of one batch;
each problem is solved cold, in one attempt.

`python -m studies.pneumatic_arm.ablation` takes minutes; `--method interior_point` solves the same problems otherwise.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from studies.pneumatic_arm.conditioned import Conditioning, solve_conditioned
from studies.pneumatic_arm.scenarios import Scene, draped, hanging
from torchdismech.constant_curvature import ArmIntegrator, ArmState
from torchdismech.contact import Box, Complementarity, Friction, Obstacle

ANGLES, DISKS = (45.0, 60.0), (3, 6)
SCHEMES = {"Euler": ("explicit", 1e-4), "RK23": ("rk23", 1e-3)}
STAGES = list(itertools.product((False, True), repeat=3))  # rank selection, equilibration, regularisation
SETTLING = 0.8  # s, after which the arm lies on the face: by the implicit step, the same start for all runs
DURATION = 0.2  # s, lies still for half of it, then is driven, by up to 40 N at its end


def name_of(stages: tuple[bool, ...]) -> str:
    """Return a name of the stages that are used, such as "RE"."""
    return "".join(letter for letter, there in zip("RET", stages, strict=True) if there) or "none"


def batch_of(disks: int, duration: float) -> Scene:
    """Return the scene of 16 arms: both angles, each with all subsets of the stages."""
    scenes = [draped(angle, disks) for angle in ANGLES for _ in STAGES]
    shapes = [scene.arm.obstacles[0].shape for scene in scenes]
    joined = Box(*(torch.stack([getattr(s, n).detach() for s in shapes]) for n in ("center", "size", "rotation")))
    obstacle = Obstacle(joined, Complementarity(), Friction(0.5), name="box")
    turns = torch.stack([scene.arm.orientation.detach() for scene in scenes])
    arm = hanging([obstacle], disks, orientation=turns)
    return Scene(arm, settled(disks), (3, 6), scenes[0].peak, duration / 2, duration)


def settled(disks: int) -> ArmState:
    """Return the states of 16 arms that have come to rest on their faces."""
    states = []
    for angle in ANGLES:
        scene = draped(angle, disks)
        state, integrator = scene.start, ArmIntegrator(4e-3)
        with torch.no_grad():
            for _ in range(round(SETTLING / integrator.dt)):
                state, _ = integrator.step(scene.arm, state, throw=True)
        still = state.replace(impulses=torch.zeros_like(state.impulses), time=torch.zeros_like(state.time))
        states += [still] * len(STAGES)
    return ArmState.joined(states)


def measured(disks: int, scheme: str, method: str, duration: float, progress: bool) -> list[dict]:
    """Return the results of 16 runs, a table entry each."""
    scene = batch_of(disks, duration)
    rows = len(ANGLES) * len(STAGES)
    flags = [torch.tensor([stages[k] for _ in ANGLES for stages in STAGES]) for k in range(3)]
    kind, dt = SCHEMES[scheme]
    solver = functools.partial(solve_conditioned, conditioning=Conditioning(*flags), method=method)
    integrator = ArmIntegrator(dt, kind, solver=solver, unsolved="take")
    state, running = scene.start, torch.ones(rows, dtype=torch.bool)
    problems, solved, steps = (torch.zeros(rows, dtype=torch.long) for _ in range(3))
    deepest, most = torch.zeros(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.long)
    with torch.no_grad():
        for _ in tqdm(range(round(duration / dt)), desc=f"{disks} disks, {scheme}", disable=not progress):
            state, info = integrator.step(scene.arm, state, scene.schedule(state.time, scene.arm), running)
            made = running & info.converged
            met = made & ((info.iterations > 0) | ~info.solved)
            problems, solved, steps = problems + met, solved + (met & info.solved), steps + made
            deepest = torch.maximum(deepest, torch.where(made, info.contact["penetration"], 0.0))
            most = torch.maximum(most, torch.where(made, _touching(info.plates.gap), 0))
            running = made
    shares = (solved / problems.clamp(min=1)).tolist()
    return [
        {
            "angle": angle,
            "disks": disks,
            "scheme": scheme,
            "stages": name_of(stages),
            "solved": shares[k],
            "penetration": deepest[k].item(),
            "simulated": steps[k].item() / round(duration / dt),
            "touching": most[k].item(),
        }
        for k, (angle, stages) in enumerate(itertools.product(ANGLES, STAGES))
    ]


def _touching(gap: Tensor) -> Tensor:
    """Return the number of plates (B,) within 1e-5 m of the face."""
    return (gap < 1e-5).sum(1)


def success(run: dict) -> bool:
    """Return whether a run is a success by the paper's criteria."""
    return run["solved"] >= 0.95 and run["penetration"] < 0.01 and run["simulated"] >= 0.8


def table(runs: list[dict]) -> str:
    """Return a table in Markdown of successes, solved problems and penetration, by the stages that were used."""
    lines = [
        "| stages | successes | solved, least | penetration, most [mm] | simulated, least |",
        "|---|---|---|---|---|",
    ]
    for stages in dict.fromkeys(run["stages"] for run in runs):
        group = [run for run in runs if run["stages"] == stages]
        numbers = (
            f"{sum(success(r) for r in group)} of {len(group)}",
            f"{min(r['solved'] for r in group):.1%}",
            f"{1e3 * max(r['penetration'] for r in group):.3f}",
            f"{min(r['simulated'] for r in group):.0%}",
        )
        lines.append(f"| {stages} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run, print the tables, write every run as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--method", default="fischer_burmeister", choices=("fischer_burmeister", "interior_point"))
    parser.add_argument("--disks", type=int, nargs="*", default=list(DISKS))
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--duration", type=float, default=DURATION, help="simulated time [s]")
    parser.add_argument("--out", type=Path, default=Path("ablation.json"))
    chosen = parser.parse_args()
    runs: list[dict] = []
    for disks, scheme in itertools.product(chosen.disks, chosen.schemes):
        runs += measured(disks, scheme, chosen.method, chosen.duration, progress=True)
        chosen.out.write_text(json.dumps(runs, indent=1))
    print(f"{chosen.method}: {sum(success(r) for r in runs)} of {len(runs)} runs succeed")
    print(table(runs))


if __name__ == "__main__":
    main()
