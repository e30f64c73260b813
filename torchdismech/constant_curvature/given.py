"""Checks of what users give to build pneumatic arms: constants of sections and chambers, vectors, obstacles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.contact import Obstacle
from torchdismech.contact.copies import own_copy
from torchdismech.contact.law import ConstraintLaw
from torchdismech.contact.obstacles.shape_parameters import refuse_matrix
from torchdismech.errors import InputError, any_of, refuse_one_alone
from torchdismech.forces.base import vector
from torchdismech.values import numbers

__all__ = ["constant", "number_of_sections", "three_components", "touchable"]


def number_of_sections(length) -> int:
    """Return the number of sections S of lengths (S,) or (B, S)."""
    lengths = _finite_numbers(length, "length")
    if not lengths.dim() or not lengths.shape[-1]:
        raise InputError(f"length: expected those of one section or more, (S,) or (B, S), got {length}")
    return int(lengths.shape[-1])


def constant(value, what: str, count: int, above_zero: bool) -> Tensor:
    """Return a constant as (count,), (1,), (B, 1) or (B, count); refuse negative numbers, and zero if `above_zero`."""
    _refuse_list_of_one(what, value, count)
    tensor = _finite_numbers(value, what)
    if tensor.dim() == 0:
        tensor = tensor.expand(1)
    if tensor.dim() > 2 or tensor.shape[-1] not in (1, count):
        expected = any_of("a number", f"({count},)", "(B, 1)", f"(B, {count})")
        raise InputError(f"{what}: expected {expected}, got shape {tuple(tensor.shape)}")
    wrong = tensor <= 0 if above_zero else tensor < 0
    if bool(wrong.any()):
        raise InputError(f"{what}: expected numbers {'above 0' if above_zero else 'from 0 up'}, got {value}")
    return tensor


def three_components(value, what: str) -> Tensor:
    """Return a vector of an arm, (3,) or (B, 3); refuse anything else, such as a rotation matrix for `orientation`."""
    three = _finite_numbers(value, what)
    vector(three.detach(), f"PneumaticArm.{what}")  # refuses other shapes
    if what == "orientation":
        refuse_matrix(three.detach(), "PneumaticArm.orientation")
    return three


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
    if not isinstance(obstacle, Obstacle):
        raise InputError(f"obstacles: expected contact.Obstacle, got {type(obstacle).__name__}")
    if not isinstance(obstacle.law, ConstraintLaw):
        raise InputError(
            f"obstacle {obstacle.name}: disks of an arm touch by constraints; expected the response Complementarity(), "
            f"got {type(obstacle.law.response).__name__}"
        )
    for name, restriction in (("nodes", obstacle.nodes), ("spacing", obstacle.spacing)):
        if restriction is not None:
            raise InputError(f"obstacle {obstacle.name}: all disks of an arm touch it; leave Obstacle.{name} out")


def _finite_numbers(value, what: str) -> Tensor:
    """Return numbers as a tensor of floats, or refuse them."""
    tensor = numbers(value, what)
    if not bool(torch.isfinite(tensor.detach()).all()):
        raise InputError(f"{what}: expected finite numbers, got {value}")
    return tensor


def _refuse_list_of_one(what: str, value: object, count: int) -> None:
    """Refuse a list of one number where `count` is larger; a tensor (1,) is how arms store a single number."""
    if count > 1 and isinstance(value, Sequence) and len(value) == 1:
        raise InputError(f"{what}: expected a number or {count} of them, got a list of one, {value!r:.80}")
