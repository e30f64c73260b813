"""Tensors of constants of elements (edges, triangles, springs): checked, concatenated, summed at nodes.

A constant of n elements has the shape (), (n,), (B, 1) or (B, n).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.elastic import LinearElastic
from torchdismech.errors import InputError

__all__ = [
    "at_nodes",
    "broadcastable",
    "joined",
    "named",
    "per_element",
    "refuse_lost",
    "robot_dimension",
    "robots_of",
    "viscous",
]


def named(given: Sequence[str | None], counts: Sequence[int], names: Sequence[str]) -> np.ndarray:
    """Return the index in `names` of each element's name, -1 for none; groups have names `given` and sizes `counts`."""
    numbers = [-1 if name is None else names.index(name) for name in given]
    return np.repeat(np.array(numbers, dtype=np.int64), counts)


def robot_dimension(tensor: Tensor) -> tuple[int, ...]:
    """Return the leading shape of a constant: (B,) if it is given per robot, else ()."""
    return tuple(tensor.shape[:-1]) if tensor.dim() == 2 else ()


def robots_of(parts: Iterable[Tensor]) -> tuple[int, ...]:
    """Return the leading shape of constants together, (B,) or (); refuse those for different numbers of robots."""
    counts = {count for part in parts for count in robot_dimension(part)}
    if len(counts - {1}) > 1:
        raise InputError(
            f"parameters are given for different numbers of robots: {sorted(counts - {1})}; give each for as many, or "
            "one number for all"
        )
    return (max(counts),) if counts else ()


def broadcastable(constants: dict[str, Tensor], count: int, elements: str) -> dict[str, Tensor]:
    """Return the constants unchanged; refuse one that does not broadcast against (B, count)."""
    for name, value in constants.items():
        if value.dim() > 2 or (value.dim() and value.shape[-1] not in (1, count)):
            raise InputError(
                f"{name}: expected a shape that broadcasts against (B, {count} {elements}), got {tuple(value.shape)}"
                "; one number for each robot is (B, 1)"
            )
    return constants


def refuse_lost(values: Tensor, what: str, remedy: str, dtype: torch.dtype = torch.float64) -> None:
    """Refuse values above 0 that become subnormal, zero or infinite in a dtype."""
    held = values.to(dtype)
    lost = held[~(torch.isfinite(held) & (held >= torch.finfo(dtype).tiny))]
    if lost.numel():
        kind = str(dtype).removeprefix("torch.")
        raise InputError(f"{what} becomes {lost.flatten()[0].item():g}, beyond what {kind} holds: {remedy}")


def joined(parts: list[Tensor], counts: list[int]) -> Tensor:
    """Return the constants of groups of elements (`counts` each) as one constant of all elements.

    A single group's constant, and equal numbers (), are returned as they are.
    """
    if len(parts) == 1:
        return parts[0]
    if all(p.dim() == 0 for p in parts) and all(torch.equal(p, parts[0]) for p in parts):
        return parts[0]
    lead = robots_of(parts)
    return torch.cat([p.expand(*lead, n) for p, n in zip(parts, counts, strict=True)], dim=-1)


def at_nodes(share: Tensor, elements: np.ndarray, n_nodes: int) -> Tensor:
    """Return (.., N): for each node the sum of `share` (.., n) over the elements (n, k) that it belongs to."""
    total = share.new_zeros(*share.shape[:-1], n_nodes)
    index = torch.as_tensor(elements, device="cpu")
    for column in range(index.shape[1]):
        total = total.index_add(-1, index[:, column], share)
    return total


def per_element(constant: Tensor, count: int) -> Tensor:
    """Return a copy of a constant with one number per element, (count,) or (B, count)."""
    return constant.expand(*robot_dimension(constant), count).clone(memory_format=torch.contiguous_format)


def viscous(stiffness: dict[str, Tensor], relaxation: Tensor) -> LinearElastic | None:
    """Return a Kelvin-Voigt dissipation of viscosities stiffness x relaxation time [s]; None if no time is above 0."""
    if not bool((relaxation > 0).any()):
        return None
    return LinearElastic({f"viscous_{name}": value * relaxation for name, value in stiffness.items()})
