"""Stiffnesses of bend-twist springs that a user sets in place of those that follow from the springs' edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from torchdismech.builder.elements import broadcastable, robots_of
from torchdismech.errors import InputError
from torchdismech.geometry.checks import Elements, as_array
from torchdismech.geometry.topology import Springs
from torchdismech.robot.materials import Number, positive

__all__ = ["SpringStiffness", "refuse_set_twice", "with_values_at"]


@dataclass(frozen=True)
class SpringStiffness:
    """The springs and values of one call of `RobotBuilder.set_spring_stiffness`.

    Attributes
    ----------
    nodes : (k, 3) of each spring: the node before its centre, the centre, the node after, in either direction.
    values : some of EI1, EI2 and GJ [N m^2], each (), (k,), (B, 1) or (B, k).
    """

    nodes: np.ndarray
    values: dict[str, Tensor]

    @classmethod
    def of(cls, springs: Elements, **given: Number | None) -> SpringStiffness:
        """Return the checked arguments of a call; a stiffness that is None is left as it follows from the edges."""
        nodes = as_array(springs)
        if nodes.ndim != 2 or nodes.shape[1] != 3 or not len(nodes) or nodes.dtype.kind not in "iu":
            got = f"{nodes.shape} of {nodes.dtype}, and nodes are whole numbers"
            raise InputError(f"set_spring_stiffness: springs: expected the nodes of each, (k, 3), got {got}")
        values = {name: positive(v, f"set_spring_stiffness.{name}") for name, v in given.items() if v is not None}
        if not values:
            raise InputError("set_spring_stiffness: expected at least one of EI1, EI2 and GJ")
        return cls(nodes.astype(np.int64), broadcastable(values, len(nodes), "springs"))

    def numbers(self, springs: Springs) -> np.ndarray:
        """Return the indices (k,) of these springs among a robot's; refuse nodes between which there is no spring."""
        number_of_spring = {tuple(triple): k for k, triple in enumerate(springs.nodes.tolist())}
        number_of_spring |= {triple[::-1]: k for triple, k in number_of_spring.items()}
        numbers = []
        for triple in self.nodes.tolist():
            if tuple(triple) not in number_of_spring:
                raise InputError(
                    f"set_spring_stiffness: there is no spring of nodes {triple}: expected two rod edges that meet at "
                    "the node in the middle, where no pinned joint parts them and no clamp holds a direction"
                )
            numbers.append(number_of_spring[tuple(triple)])
        return np.array(numbers)


def refuse_set_twice(earlier: Sequence[SpringStiffness], new: SpringStiffness) -> None:
    """Refuse a spring that is listed twice, or for which an earlier call has set one of the same stiffnesses."""
    names = set(new.values)
    set_before = {
        _either_way(triple)
        for earlier_call in earlier
        if names & set(earlier_call.values)
        for triple in earlier_call.nodes.tolist()
    }
    for triple in new.nodes.tolist():
        if _either_way(triple) in set_before:
            raise InputError(
                f"set_spring_stiffness: expected each spring once, got {triple} twice with "
                f"{' and '.join(sorted(names))}"
            )
        set_before.add(_either_way(triple))


def _either_way(triple: list[int]) -> tuple[int, ...]:
    """Return the nodes of a spring as a key that is the same for both directions."""
    return tuple(min(triple, triple[::-1]))


def with_values_at(constant: Tensor, index: np.ndarray, value: Tensor, count: int) -> Tensor:
    """Return a constant of `count` springs, (count,) or (B, count), with `value` at the springs `index`."""
    whole = constant.expand(*robots_of((constant, value)), count).clone()
    whole[..., index] = value.to(whole)
    return whole
