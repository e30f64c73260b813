"""A scene run into a trajectory file, from its start or from where another run ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torchdismech.errors import InputError
from torchdismech.io.scene import Scene, Setup
from torchdismech.rollout import rollout
from torchdismech.trajectory import Trajectory, TrajectoryWriter

__all__ = ["run_scene"]

MAY_CHANGE = {"simulation.duration"}  # what a resumed scene may set anew


def run_scene(
    scene: Scene,
    setup: Setup,
    path: Path,
    resume: Path | None = None,
    progress: bool = False,
    throw: bool = False,
) -> tuple[Trajectory, int]:
    """Run a scene into a file and return its trajectory and the step it started from.

    Parameters
    ----------
    setup : what `scene.build` returned.
    path : the trajectory file; it may be the one that is resumed.
    resume : file of an earlier run of the same scene, finished, stopped or killed. The run goes on from its last full
        state; on a CPU the numbers are those of a run without interruption. Robots that failed stay where they are.

    Raises
    ------
    InputError
        The file to resume belongs to another scene, or has all steps already.
    """
    before = None if resume is None else _before(scene, setup, resume)
    state, first = setup.state, 0
    if before is not None:
        state, first = before.state.to(setup.state.q.device), before.state_step
    for count, every in _legs(first, setup.steps, setup.every):
        writer = TrajectoryWriter(path, scene.randomized, _attributes(scene), resume=before)
        running = None if before is None else (before.status[-1] == 0).to(state.q.device)
        before = rollout(
            setup.model,
            state,
            setup.integrator,
            count,
            schedule=setup.schedule,
            every=every,
            writer=writer,
            progress=progress,
            throw=throw,
            running=running,
        )
        state = before.state.to(state.q.device)
    assert before is not None
    return before, first


def _legs(step: int, steps: int, every: int) -> Iterator[tuple[int, int]]:
    """Yield (number of steps, every): up to the next multiple of `every` if `step` is not on one, then the rest."""
    odd = min(-step % every, steps - step)
    if odd:
        yield odd, odd
        step += odd
    if step < steps:
        yield steps - step, every


def _attributes(scene: Scene) -> dict[str, str]:
    return {"scene": scene.text, "tables": json.dumps(scene.tables, sort_keys=True)}


def _before(scene: Scene, setup: Setup, path: Path) -> Trajectory:
    """Return what the earlier run did, after checking that it was a run of this scene."""
    before = Trajectory.load(path).resumable()
    if "tables" not in before.attributes:
        raise InputError(f"{path}: was not written from a scene file: nothing says how to go on")
    theirs, ours = dict(_leaves(json.loads(before.attributes["tables"]))), dict(_leaves(scene.tables))
    changed = [key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)]
    changed = sorted(set(changed) - MAY_CHANGE)
    if changed:
        key = changed[0]
        raise InputError(
            f"{path}: is a run of another scene: {key} was {theirs.get(key)!r} and is {ours.get(key)!r} "
            f"in {scene.path}; only simulation.duration may change"
        )
    rest = setup.state.positions.cpu()
    if before.positions.shape[1:] != rest.shape or not torch.equal(before.positions[0], rest):
        raise InputError(f"{path}: its robots do not start where those of {scene.path} do: the geometry has changed")
    if any(not torch.equal(before.randomized[name], values) for name, values in scene.randomized.items()):
        raise InputError(f"{path}: its random numbers are not those that {scene.path} draws with this version")
    if before.state_step >= setup.steps:
        raise InputError(
            f"{path}: has {before.state_step} steps already and the scene asks for {setup.steps}: "
            "nothing to do; raise simulation.duration or --steps"
        )
    if (before.status[-1] != 0).all():
        raise InputError(f"{path}: every robot failed: nothing to go on with")
    return before


def _leaves(tables: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of what is in the tables; lists of numbers count as one value."""
    if isinstance(tables, list) and tables and isinstance(tables[0], dict):
        tables = {str(k): table for k, table in enumerate(tables)}
    if not isinstance(tables, dict):
        yield key, tables
        return
    for name, value in tables.items():
        yield from _leaves(value, f"{key}.{name}" if key else name)
