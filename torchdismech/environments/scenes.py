"""Scenes as environments: refusal of scenes that move by themselves, and their random numbers as a task's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from torchdismech.environments.draws import Draws
from torchdismech.environments.randomized import RandomizedConstants
from torchdismech.environments.task import Task
from torchdismech.errors import InputError
from torchdismech.io.scene import Scene
from torchdismech.io.schema.actuators import Chamber, Tendon, drive_file
from torchdismech.model import Model

__all__ = ["refuse_moving", "with_constants"]


def refuse_moving(scene: Scene) -> None:
    """Refuse a scene that prescribes how its robots are actuated or moved over time."""
    document = scene.document
    for name in ("actuation", "controller", "move"):
        if getattr(document, name):
            raise InputError(f"{scene.path}: [{name}] moves the robots, which actions do in an environment: remove it")
    actuators: dict[str, Sequence[Tendon | Chamber]] = {"tendon": document.tendon, "chamber": document.chamber}
    for name, tables in actuators.items():
        for k, table in enumerate(tables):
            if (file := drive_file(table)) is not None:
                driven = table.driven_by
                raise InputError(
                    f"{scene.path}: {name}.{k}.{driven}_file: {file} drives the {name}, which actions do in an "
                    f"environment: give a number, {driven}, instead, and set it by an action Constant"
                )


def with_constants(task: Task, randomized: RandomizedConstants) -> Task:
    """Return a task that also draws the constants of `randomized`; refuse those that it draws itself."""

    def both_constants(model: Model, draws: Draws) -> dict[str, Tensor]:
        constants = {} if task.constants is None else dict(task.constants(model, draws))
        if twice := sorted(constants.keys() & set(randomized.names)):
            raise InputError(f"Task.constants: {twice[0]} is drawn by the scene, too: leave out one of them")
        return constants | randomized(model, draws)

    return dataclasses.replace(task, constants=both_constants)
