"""Checks of a scene against its robot's geometry: indices, and keys that would have no effect."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from torchdismech.io.dismech import Geometry
from torchdismech.io.scene.refusals import Key, SceneError
from torchdismech.io.schema import scene as schema
from torchdismech.io.schema.base import OF_EDGES, OF_NODES, marked
from torchdismech.io.schema.contact import SelfContact

__all__ = ["check_indices", "refuse_unused"]


def check_indices(path: Path, document: schema.Document, geometry: Geometry) -> None:
    """Refuse indices that the robot does not have, and self-contact in which nothing could touch.

    An index that is twice in a list is refused, too, except in tendons, which may come back.
    """
    _refuse_endless_rings(path, document, len(geometry.nodes))
    for kind, mark, count in (("nodes", OF_NODES, len(geometry.nodes)), ("edges", OF_EDGES, len(geometry.rod_edges))):
        for key, index in marked(document, mark):
            wrong = [i for i in np.ravel(index).tolist() if i >= count]
            if wrong and not count:
                raise SceneError(path, key, f"names {kind} of rods, and the robot has none")
            if wrong:
                raise SceneError(path, key, f"expected {kind} 0 to {count - 1}, got {wrong[0]}")
            if np.ndim(index) == 1 and key[0] != "tendon" and len(set(index)) < len(index):
                twice = Counter(index).most_common(1)[0][0]
                raise SceneError(path, key, f"expected each of the {kind} once, got {twice} twice")


def refuse_unused(path: Path, document: schema.Document, geometry: Geometry) -> None:
    """Refuse keys that have no effect, as they are about joints, rods or clamps that the robot lacks."""
    robot, ends = document.robot, geometry.rod_edges.reshape(-1)
    rods = len(ends) > 0
    joined = rods and (np.bincount(ends).max() > 2 or bool(np.isin(ends, geometry.triangles).any()))
    directed = any(clamp.direction is not None for clamp in document.clamp)
    choices: list[tuple[Key, str, str, bool, str]] = [
        (("robot", "joints"), robot.joints, "pinned", joined, "nodes where rods branch or meet a shell"),
        (("robot", "curvature"), robot.curvature, "averaged", rods, "rods"),
        (("robot", "clamp_rule"), robot.clamp_rule, "gregory", directed, "clamps with a direction"),
    ]
    for key, contact in document.contacts.items():
        if isinstance(contact, SelfContact):
            choices.append(((*key, "centre_line"), contact.centre_line, "smooth", rods, "rods"))
    for key, given, value, used, owner in choices:
        if given == value and not used:
            problem = f'"{value}" is of {owner}; a robot without does not use it: remove the key'
            raise SceneError(path, key, problem)


def _refuse_endless_rings(path: Path, document: schema.Document, count: int) -> None:
    """Refuse a `ring` of self-contact that is not below `count`, the number of nodes."""
    for key, contact in document.contacts.items():
        if isinstance(contact, SelfContact) and contact.ring is not None and contact.ring >= count:
            most = f"expected less than {count}, the number of nodes"
            raise SceneError(path, (*key, "ring"), f"{most}, or nothing ever touches; got {contact.ring}")
