"""Constants of elements: joined from group to group, summed at nodes, times their relaxation time.

A constant of n elements has the shape (), (n,), (B, 1) or (B, n).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.elastic import LinearElastic
from torchdismech.errors import InputError

__all__ = ["at_nodes", "broadcastable", "joined", "named", "per_element", "refuse_lost", "robot_dimension", "viscous"]


def named(given: Sequence[str | None], counts: Sequence[int], names: Sequence[str]) -> np.ndarray:
    """Return the number among `names` of the name of each element, -1 without, of groups of so many elements."""
    numbers = [-1 if name is None else names.index(name) for name in given]
    return np.repeat(np.array(numbers, dtype=np.int64), counts)


def robot_dimension(tensor: Tensor) -> tuple[int, ...]:
    """Return the robot dimension of a constant: () or (B,)."""
    return tuple(tensor.shape[:-1]) if tensor.dim() == 2 else ()


def broadcastable(constants: dict[str, Tensor], count: int, elements: str) -> dict[str, Tensor]:
    """Return the constants, refusing one that does not broadcast against (B, count)."""
    for name, value in constants.items():
        if value.dim() > 2 or (value.dim() and value.shape[-1] not in (1, count)):
            raise InputError(
                f"{name}: expected a shape that broadcasts against (B, {count} {elements}), got {tuple(value.shape)}"
                "; one number for each robot is (B, 1)"
            )
    return constants


def refuse_lost(values: Tensor, what: str, remedy: str, dtype: torch.dtype = torch.float64) -> None:
    """Refuse sizes that are above 0 but too small or too large to be held with all their digits in a dtype."""
    held = values.to(dtype)
    lost = held[~(torch.isfinite(held) & (held >= torch.finfo(dtype).tiny))]
    if lost.numel():
        kind = str(dtype).removeprefix("torch.")
        raise InputError(f"{what} becomes {lost.flatten()[0].item():g}, beyond what {kind} holds: {remedy}")


def joined(parts: list[Tensor], counts: list[int]) -> Tensor:
    """Return one constant () or (.., n) or (B, 1) from those of groups of elements."""
    if len(parts) == 1:
        return parts[0]
    if all(p.dim() == 0 for p in parts) and all(torch.equal(p, parts[0]) for p in parts):
        return parts[0]
    robots = {p.shape[0] for p in parts if p.dim() == 2} - {1}
    if len(robots) > 1:
        raise InputError(f"parameters are given for different numbers of robots: {sorted(robots)}")
    lead = tuple(robots) or ((1,) if any(p.dim() == 2 for p in parts) else ())
    return torch.cat([p.expand(*lead, n) for p, n in zip(parts, counts, strict=True)], dim=-1)


def at_nodes(share: Tensor, elements: np.ndarray, n_nodes: int) -> Tensor:
    """Return (.., N): the share (.., n) of each element added to each of its nodes (n, k)."""
    total = share.new_zeros(*share.shape[:-1], n_nodes)
    index = torch.as_tensor(elements, device="cpu")
    for column in range(index.shape[1]):
        total = total.index_add(-1, index[:, column], share)
    return total


def per_element(constant: Tensor, count: int) -> Tensor:
    """Return a constant of `count` elements (.., count), one number for each."""
    return constant.expand(*robot_dimension(constant), count).contiguous()


def viscous(stiffness: dict[str, Tensor], relaxation: Tensor) -> LinearElastic | None:
    """Return the Kelvin-Voigt dissipation: relaxation time [s] x stiffness; None where there is none."""
    if not bool((relaxation > 0).any()):
        return None
    return LinearElastic({f"viscous_{name}": value * relaxation for name, value in stiffness.items()})
