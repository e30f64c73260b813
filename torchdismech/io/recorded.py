"""What a trajectory file tells of the scene that was run: the sections of its rods, its obstacles."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from torchdismech.contact import Obstacle
from torchdismech.errors import InputError
from torchdismech.io import schema
from torchdismech.io.bodies import table_of_each
from torchdismech.io.contacts import obstacle_of
from torchdismech.io.dismech import Geometry
from torchdismech.io.randomize import draw
from torchdismech.io.refusals import sentences
from torchdismech.io.scene import Scene, read_geometry
from torchdismech.io.schema_robot import Circle
from torchdismech.trajectory import Trajectory

__all__ = ["Recorded", "recorded"]


@dataclass(frozen=True)
class Recorded:
    """What was run, as far as the file tells.

    Attributes
    ----------
    half : (B, E, 2) half of the sizes of the rods' sections along their first and second director [m].
    round : (E,) whether a section is a circle, not a rectangle.
    obstacles : the floor and the obstacles.
    missing : a sentence on each obstacle that is not there, as its mesh file is not.
    """

    half: np.ndarray
    round: np.ndarray
    obstacles: list[Obstacle]
    missing: list[str]


def recorded(trajectory: Trajectory, folder: Path) -> Recorded | None:
    """Return what the scene kept in a trajectory says; None where it keeps none, as one written from Python.

    Parameters
    ----------
    folder : where the files of meshes are looked for.

    Raises
    ------
    InputError
        The scene in the file is damaged, or is of a version that this one does not read.
    """
    if "tables" not in trajectory.attributes:
        return None
    scene = _scene(trajectory, folder / "scene kept in the run")
    half, is_round = _sections(scene)
    obstacles, missing = [], []
    for key, table in scene.document.contacts.items():
        try:
            found = obstacle_of(scene, key, table)
        except InputError as error:
            missing.append(f"not shown: {error}")
            continue
        if found is not None:
            obstacles.append(found)
    return Recorded(half, is_round, obstacles, missing)


def _scene(trajectory: Trajectory, path: Path) -> Scene:
    """Return the scene with the geometry and the drawn numbers that the trajectory has."""
    tables = _tables(trajectory, path)
    try:
        document = schema.Document.model_validate(tables)
    except ValidationError as error:
        key, problem = sentences(error, tables, schema.Document)[0]
        raise InputError(f"{path}: {'.'.join(map(str, key))}: {problem}: written by another version?") from None
    numbers, randomized = draw(path, document, tables)
    geometry = Geometry(_nodes_as_built(document, path, trajectory), trajectory.rod_edges, trajectory.triangles)
    size = document.batch.size
    text = trajectory.attributes.get("scene", "")
    return Scene(path, text, tables, document, {}, geometry, numbers, randomized, size, range(size))


def _nodes_as_built(document: schema.Document, path: Path, trajectory: Trajectory) -> np.ndarray:
    """Return the nodes (N, 3) by which tables with boxes select: where the run began, unless [initial] moved them."""
    if document.initial is None or not document.initial.moved or all(rod.box is None for rod in document.rod):
        return trajectory.positions[0, 0].numpy()
    return read_geometry(path, document.robot).nodes


def _tables(trajectory: Trajectory, path: Path) -> dict[str, Any]:
    """Return the scene's tables, in which random numbers are those that the trajectory keeps."""
    try:
        tables = copy.deepcopy(json.loads(trajectory.attributes["tables"]))
        batch = tables.setdefault("batch", {})
        batch["size"] = trajectory.batch
        batch["randomize"] = {name: {"values": drawn.tolist()} for name, drawn in trajectory.randomized.items()}
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise InputError(f"{path}: is damaged: {error}") from error
    return tables


def _sections(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Return half sizes (B, E, 2) [m] of the sections, and which of them are circles (E,)."""
    edges = scene.geometry.rod_edges
    half, is_round = np.zeros((scene.batch, len(edges), 2)), np.ones(len(edges), dtype=bool)
    of = table_of_each(scene, "rod", edges)
    for k, rod in enumerate(scene.document.rod):
        section, key = rod.section, ("rod", k, "section")
        if isinstance(section, Circle):
            sizes = [scene.numbers.scalar((*key, "radius"), section.radius)] * 2
        else:
            is_round[of == k] = False
            sides = {"height": section.height, "width": section.width}
            sizes = [0.5 * scene.numbers.scalar((*key, name), side) for name, side in sides.items()]
        for axis, size in enumerate(sizes):
            half[:, of == k, axis] = torch.as_tensor(size).numpy() if isinstance(size, Tensor) else size
    return half, is_round
