"""CPU time of a step of a sheet that lies on a rough floor or slides on it, contact being a constraint.

``python -m benchmarks.resting_sheet`` prints medians of steps at rest, down a slope, and dragged by an edge so that a
part of it slides, for sheets of more and more nodes: as they are taken, by recordings of semismooth Newton steps
(`torchdismech/integrate/search/semismooth.py`), and by Delassus' operator alone.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from torchdismech import Control, ImplicitEuler, Material, Model, RobotBuilder, forces, meshes
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle
from torchdismech.integrate.search import active_set, attempts

SIZES = ((0.06, 0.02), (0.12, 0.02), (0.2, 0.018), (0.4, 0.018))  # m: side and spacing
LANDING, STEPS = 16, 10  # steps are recorded after 12
SPEED = 0.01  # m/s of an edge that is dragged
DENSE = 200  # nodes up to which Delassus' operator is timed, too


def sheet(side: float, spacing: float, pull: float = 0.0, dragged: bool = False) -> Model:
    """Return a sheet 1 mm thick, 0.1 mm above the floor, which gravity also pulls along the floor by `pull` [m/s^2].

    One that is `dragged` is ten times softer, and an edge of it is clamped.
    """
    mesh = meshes.rectangle(side, side, spacing)
    builder = RobotBuilder()
    nodes, rubber = mesh.nodes + [0, 0, 6e-4], Material(1e5 if dragged else 1e6, 1000.0, 0.3)
    builder.add_shell(nodes, mesh.triangles, 1e-3, rubber, "hinge", membrane="springs")
    if dragged:
        builder.clamp(nodes=np.flatnonzero(nodes[:, 0] > side - 1e-9).tolist())
    builder.add_force(forces.Gravity((pull, 0.0, -9.81)))
    floor = HalfSpace((0, 0, 0), (0, 0, 1))
    builder.add_contact(Obstacle(floor, Complementarity(), Friction(0.5), name="floor"))
    return builder.finalize(compile=False)


def step_time(model: Model) -> float:
    """Return the median CPU time of a step after landing [s]."""
    state, steps, taken = model.initial_state(), ImplicitEuler(2e-3), []
    along = torch.zeros_like(state.q)
    along[:, 0 : 3 * model.body.n_nodes : 3] = SPEED * steps.dt
    for k in range(LANDING + STEPS):
        begin = time.process_time()
        drag = Control(clamped_q=state.q + along * (k >= LANDING))  # of the nodes that are clamped, if any
        state, _ = steps.step(model, state, drag, throw=True)
        taken.append(time.process_time() - begin)
    return float(np.median(taken[LANDING:]))


@contextmanager
def by_delassus_operator(model: Model) -> Iterator[None]:
    """Let steps in the block find all loads by Delassus' operator."""
    before = attempts.uses_active_sets, active_set.FEWEST_CONTACTS
    attempts.uses_active_sets, active_set.FEWEST_CONTACTS = lambda *_: False, model.body.n_nodes + 1
    model.recordings.clear()
    try:
        yield
    finally:
        attempts.uses_active_sets, active_set.FEWEST_CONTACTS = before
        model.recordings.clear()


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| nodes | at rest [ms] | by W | down a slope | by W | dragged | by W |")
    print("|---|---|---|---|---|---|---|")
    for side, spacing in SIZES:
        cells = []
        for pull, dragged in ((0.0, False), (8.0, False), (0.0, True)):
            model = sheet(side, spacing, pull, dragged)
            whole = step_time(model)
            with by_delassus_operator(model):
                by_operator = f"{1e3 * step_time(model):.0f}" if model.body.n_nodes <= DENSE else ""
            cells += [f"{1e3 * whole:.1f}", by_operator]
        print(f"| {model.body.n_nodes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
