"""What robots and their obstacles look like: sections of rods, shapes, paths. Runs store it, so that they can be shown.

It is stored as JSON text, in the attribute `KEY` of a trajectory and of its file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact import Box, Capsule, Cylinder, HalfSpace, Mesh, Obstacle, Path, Sphere
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.errors import InputError
from torchdismech.origin import class_name, class_of
from torchdismech.robot.body import Sections

__all__ = ["KEY", "Appearance", "Thing"]

KEY = "appearance"
SHAPES: dict[str, type[Shape]] = {shape.__name__: shape for shape in (Box, Capsule, Cylinder, HalfSpace, Mesh, Sphere)}


@dataclass(frozen=True)
class Thing:
    """An obstacle as it is shown: its name, its shape, and its path, None where it rests."""

    name: str
    shape: Shape
    path: Path | None


@dataclass(frozen=True)
class Appearance:
    """How robots look, beside the positions of their nodes.

    Attributes
    ----------
    sections : of the rods; None for robots without any.
    things : the obstacles.
    unknown : obstacles that cannot be shown, as their shapes are no classes of the library: {name: name of that class}.
    """

    sections: Sections | None
    things: Sequence[Thing]
    unknown: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sections: Sections | None, obstacles: Sequence[Obstacle]) -> Appearance:
        """Return the appearance of a model with these sections and obstacles."""
        shown = [obstacle for obstacle in obstacles if class_of(obstacle.shape) in SHAPES.values()]
        others = {o.name: class_name(o.shape) for o in obstacles if o not in shown}
        return cls(sections, [Thing(o.name, o.shape, o.path) for o in shown], others)

    @classmethod
    def read(cls, text: str) -> Appearance:
        """Return the appearance that the method `text` wrote.

        Raises
        ------
        InputError
            The text is damaged.
        """
        return _read(text)

    @classmethod
    def joined(cls, parts: Sequence[Appearance]) -> Appearance:
        """Return the appearance of a whole batch from those of its parts."""
        first, sections = parts[0], None
        if first.sections is not None:
            sizes = {name: _rows([getattr(p.sections, name) for p in parts]) for name in ("height", "width")}
            sections = Sections(**sizes, round=first.sections.round)
        things = [_joined(of_parts) for of_parts in zip(*(part.things for part in parts), strict=True)]
        return cls(sections, things, first.unknown)

    def text(self) -> str:
        """Return the appearance as JSON text, for `read`."""
        sections = None
        if self.sections is not None:
            sections = {name: getattr(self.sections, name).tolist() for name in ("height", "width", "round")}
        things = [_thing_data(thing) for thing in self.things]
        return json.dumps({"sections": sections, "things": things, "unknown": dict(self.unknown)})


@lru_cache(maxsize=4)  # a mesh of 20,000 triangles takes half a second, and a run is shown again and again
def _read(text: str) -> Appearance:
    try:
        data = json.loads(text)
        sections = None if data["sections"] is None else _sections(data["sections"])
        return Appearance(sections, [_thing(each) for each in data["things"]], dict(data["unknown"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
        raise InputError(f"the attribute {KEY!r} of the run is damaged: {error!r}") from error


def _sizes(shape: Shape) -> dict[str, Tensor]:
    """Return the tensors from which a shape was made, by the names of its constructor's arguments."""
    names = ("vertices", "triangles") if isinstance(shape, Mesh) else shape.per_robot
    return {name: getattr(shape, name).detach().cpu() for name in names}


def _thing_data(thing: Thing) -> dict[str, Any]:
    sizes = {name: value.tolist() for name, value in _sizes(thing.shape).items()}
    data = {"name": thing.name, "shape": class_name(thing.shape), "sizes": sizes, "path": None}
    if thing.path is not None:
        data["path"] = {name: getattr(thing.path, name).detach().cpu().tolist() for name in ("times", "displacements")}
    return data


def _sections(data: Mapping[str, Any]) -> Sections:
    sizes = {name: np.array(data[name], dtype=np.float64) for name in ("height", "width")}
    sections = Sections(**sizes, round=np.array(data["round"], dtype=bool))
    edges = sections.round.shape
    if len(edges) != 1 or any(size.ndim not in (1, 2) or size.shape[-1:] != edges for size in sizes.values()):
        raise ValueError("sections are not those of as many edges")
    if not all((np.isfinite(size) & (size > 0)).all() for size in sizes.values()):
        raise ValueError("sizes of sections are not all positive")
    return sections


def _thing(data: Mapping[str, Any]) -> Thing:
    if not isinstance(data["name"], str):
        raise TypeError("the name of a thing is no text")
    path = None if data["path"] is None else Path(**data["path"])
    return Thing(data["name"], SHAPES[data["shape"]](**data["sizes"]), path)


def _joined(things: Sequence[Thing]) -> Thing:
    """Return one obstacle for a whole batch from those of its parts."""
    first = things[0]
    every = [_sizes(thing.shape) for thing in things]
    if isinstance(first.shape, Mesh):
        shape: Shape = first.shape  # the same for all robots
    else:
        values = {name: [sizes[name].numpy() for sizes in every] for name in first.shape.per_robot}
        shape = class_of(first.shape)(
            **{name: torch.as_tensor(_rows(value), device="cpu") for name, value in values.items()}
        )
    path = first.path
    if path is not None and path.displacements.dim() == 3:
        ways = [thing.path.displacements for thing in things if thing.path is not None]
        path = Path(path.times, torch.cat(ways, dim=1))
    return Thing(first.name, shape, path)


def _rows(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return sizes given per robot, (B, k) in each part, concatenated; sizes for all robots are those of the first."""
    return np.concatenate(values) if values[0].ndim == 2 else values[0]
