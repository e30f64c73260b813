"""Neighbouring elements along rods, and smoothing of values over them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from torch import Tensor

from torchdismech.robot.body import Body

__all__ = ["along_rods", "smoothed"]


def along_rods(body: Body, kind: str, elements: np.ndarray) -> np.ndarray:
    """Return the positions (2, k), in `elements`, of the neighbours before and after each element along its rod.

    Neighbours are next to each other in one rod, and both among `elements`. An element without one counts as its own
    neighbour. Springs at junctions and at the closure of a ring, which have frames of their own, have no neighbours;
    nor do hinges. Nor are springs neighbours that a clamp with a direction lies between.

    Parameters
    ----------
    kind : "rod edges", "springs" or "hinges".
    elements : (k,) indices of elements of that kind.
    """
    position = {int(element): k for k, element in enumerate(elements)}
    neighbours = np.tile(np.arange(len(position)), (2, 1))
    for first, second in _pairs(body, kind):
        if first in position and second in position:
            neighbours[1, position[first]] = position[second]
            neighbours[0, position[second]] = position[first]
    return neighbours


def smoothed(values: Tensor, neighbours: Tensor, passes: int) -> Tensor:
    """Return values (B, m) smoothed by `passes` passes of the weights (1, 2, 1) / 4 along rods.

    At an end the weights are (3, 1) / 4, so that constants and sums along a rod are preserved.

    Parameters
    ----------
    neighbours : (2, m) positions of the neighbours before and after each value.
    """
    before, after = neighbours
    for _ in range(passes):
        values = 0.25 * (values[:, before] + values[:, after]) + 0.5 * values
    return values


def _pairs(body: Body, kind: str) -> list[tuple[int, int]]:
    """Return pairs of elements that follow each other along a rod; springs only where one frame runs through both."""
    pairs: list[tuple[int, int]] = []
    for rod in body.rods if kind != "hinges" else ():
        edges = rod.edges.tolist()
        chain = edges if kind == "rod edges" else _springs_between(body, edges)
        pairs += [(one, other) for one, other in pairwise(chain) if one is not None and other is not None]
        if rod.closed and kind == "rod edges":
            pairs.append((edges[-1], edges[0]))
    return pairs


def _springs_between(body: Body, edges: list[int]) -> list[int | None]:
    """Return the springs between consecutive edges, in order; None where a clamp holds both edges in its direction."""
    springs = body.springs
    carried = np.flatnonzero(springs.carried)
    number = {tuple(springs.edges[k].tolist()): int(k) for k in carried}
    return [number.get(pair) for pair in pairwise(edges)]
