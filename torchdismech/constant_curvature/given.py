"""Checks of what users give to build pneumatic arms: lengths of sections, and obstacles."""

from __future__ import annotations

from collections.abc import Sequence

from torchdismech.contact import Obstacle
from torchdismech.contact.copies import own_copy
from torchdismech.contact.law import ConstraintLaw
from torchdismech.errors import InputError, refuse_one_alone, refuse_other_kind
from torchdismech.values import numbers

__all__ = ["number_of_sections", "touchable"]


def number_of_sections(length) -> int:
    """Return the number of sections S of lengths (S,) or (B, S)."""
    lengths = numbers(length, "length")
    if not lengths.dim() or not lengths.shape[-1]:
        raise InputError(f"length: expected those of one section or more, (S,) or (B, S), got {length}")
    return int(lengths.shape[-1])


def touchable(obstacles: Sequence[Obstacle]) -> list[Obstacle]:
    """Return copies of obstacles for one arm; refuse those that disks cannot touch, and names that occur twice."""
    refuse_one_alone("obstacles", obstacles, "contact.Obstacle")
    for obstacle in obstacles:
        _refuse_untouchable(obstacle)
    names = [obstacle.name for obstacle in obstacles]
    if len(set(names)) < len(names):
        raise InputError(f"obstacles: expected a name of its own for each, got {', '.join(names)}")
    return [own_copy(obstacle) for obstacle in obstacles]


def _refuse_untouchable(obstacle: Obstacle) -> None:
    """Refuse an obstacle that disks cannot touch."""
    refuse_other_kind("obstacles", obstacle, Obstacle, "contact.Obstacle")
    if not isinstance(obstacle.law, ConstraintLaw):
        raise InputError(
            f"obstacle {obstacle.name}: disks of an arm touch by constraints; expected the response Complementarity(), "
            f"got {type(obstacle.law.response).__name__}"
        )
    for name, restriction in (("nodes", obstacle.nodes), ("spacing", obstacle.spacing)):
        if restriction is not None:
            raise InputError(f"obstacle {obstacle.name}: all disks of an arm touch it; leave Obstacle.{name} out")
