"""Who stands beside whom along a rod, and smoothing over these."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from torchdismech.robot.body import Body

__all__ = ["along_rods", "smoothed"]


def along_rods(body: Body, kind: str, elements: np.ndarray) -> np.ndarray:
    """Return the places (2, k), among some elements, of those before and after each of them along its rod.

    Neighbours are next to each other in one rod, and both among the elements; where there is none, it is its own.
    Springs at junctions and where a ring is closed, which have frames of their own, and hinges have none.

    Parameters
    ----------
    kind : "rod edges", "springs" or "hinges".
    """
    place = {int(element): k for k, element in enumerate(elements)}
    found = np.tile(np.arange(len(place)), (2, 1))
    for first, second in _pairs(body, kind):
        if first in place and second in place:
            found[1, place[first]] = place[second]
            found[0, place[second]] = place[first]
    return found


def smoothed(values: Tensor, neighbours: Tensor, passes: int) -> Tensor:
    """Return values (B, m) smoothed by so many passes of the weights (1, 2, 1) / 4 along rods.

    An end counts itself twice, (3, 1) / 4: constants stay what they are, and sums along a rod do.
    """
    before, after = neighbours
    for _ in range(passes):
        values = 0.25 * (values[:, before] + values[:, after]) + 0.5 * values
    return values


def _pairs(body: Body, kind: str) -> list[tuple[int, int]]:
    """Return elements that follow each other along a rod; springs only where their frames do, too."""
    pairs: list[tuple[int, int]] = []
    for rod in body.rods if kind != "hinges" else ():
        edges = rod.edges.tolist()
        chain = edges if kind == "rod edges" else _springs_between(body, edges)
        pairs += zip(chain[:-1], chain[1:], strict=True)
        if rod.closed and kind == "rod edges":
            pairs.append((chain[-1], chain[0]))
    return pairs


def _springs_between(body: Body, edges: list[int]) -> list[int]:
    """Return the springs between edges that follow each other."""
    springs = body.springs
    carried = np.flatnonzero(springs.carried)
    number = {tuple(springs.edges[k].tolist()): int(k) for k in carried}
    return [number[pair] for pair in zip(edges[:-1], edges[1:], strict=True)]
