"""Which primitives may touch: pairs of overlapping boxes, for all robots of a batch at once.

Boxes stand in columns along the axis on which a robot is longest, and those of a column are swept in the order in which
they begin there. Columns and sweep only save work: which pairs come out is decided by comparing the given numbers, so
that compiled code on a CPU (`native/boxes.cpp`) and operations of torch elsewhere (`columns.py`) find the same
ones. A robot's columns depend on its own boxes only: row i of a batch gives what robot i gives alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.contact.pairs.columns import keys_of_pairs
from torchdismech.errors import InputError
from torchdismech.fused import compiled_code_accepts, traced
from torchdismech.native import address, function_of, taping
from torchdismech.native.taping import NumbersRead

__all__ = ["overlapping"]

ROOM = 8  # pairs per box for which memory is reserved at first

Overlaps = tuple[Tensor, Tensor, Tensor]  # numbers (K,) of robots, and of the two boxes of each pair


@torch.no_grad()
def overlapping(
    low: Tensor,
    high: Tensor,
    other_low: Tensor | None = None,
    other_high: Tensor | None = None,
    excluded: Tensor | None = None,
) -> Overlaps:
    """Return all pairs of boxes of the same robot that overlap; boxes that just touch count.

    A robot with a coordinate that is not finite has no pairs.

    Parameters
    ----------
    low, high : (B, M, 3) corners of axis-aligned boxes [m], low <= high.
    other_low, other_high : (B, M2, 3) a second set; pairs are then one box of each set, else two of the first.
    excluded : (X,) increasing int64, keys first * M2 + second of pairs that never count, in any robot (M2 = M for one
        set; see `neighbours.adjacent`).

    Returns
    -------
    robot, first, second : (K,) int64, sorted by robot, then first, then second. first < second within one set.

    Raises
    ------
    InputError : for a box with low > high, as where a tolerance was set below zero in place.
    """
    robots, count = low.shape[:2]
    other_count = count if other_low is None else other_low.shape[1]
    if robots == 0 or count == 0 or other_count == 0:
        empty = torch.empty(0, dtype=torch.int64, device=low.device)
        return empty, empty, empty
    boxes = [corner for corner in (low, high, other_low, other_high) if corner is not None]
    pairs = _compiled(boxes, count, other_count, excluded)
    return _by_torch(boxes, count, other_count, excluded) if pairs is None else pairs


def _compiled(boxes: list[Tensor], first_count: int, other_count: int, excluded: Tensor | None) -> Overlaps | None:
    """Return the pairs by compiled code; None where torch has to find them, or to say which box is inside out."""
    tensors = boxes if excluded is None else [*boxes, excluded]
    function = function_of("overlapping_boxes") if compiled_code_accepts(*tensors) and not traced() else None
    if function is None:
        return None
    if taping():
        raise NumbersRead("which boxes overlap depends on numbers")
    corners: list[Tensor | None] = [corner.double().contiguous() for corner in boxes]  # exact
    low, high, other_low, other_high = map(address, corners + [None] * (4 - len(corners)))
    keys = None if excluded is None else excluded.contiguous()
    excluded_keys = (address(keys), 0 if keys is None else len(keys))
    robots = len(boxes[0])
    count = ROOM * sum(corner.shape[0] * corner.shape[1] for corner in boxes[::2])
    room = -1
    while count > room:
        room = count
        numbers = torch.empty(3, room, dtype=torch.int64, device="cpu")
        count = function(
            robots, first_count, low, high, other_count, other_low, other_high, *excluded_keys, room, numbers.data_ptr()
        )
    if count < 0:
        return None
    robot, first, second = numbers[:, :count].unbind()
    return robot, first, second


def _by_torch(boxes: list[Tensor], count: int, other_count: int, excluded: Tensor | None) -> Overlaps:
    """Return the pairs by operations of torch; refuse boxes that are inside out."""
    within = len(boxes) == 2
    # both sets as one tensor, in float64 (an exact copy) and with components first, which is faster
    low, high = (torch.cat(boxes[k::2], 1).double().movedim(2, 0).contiguous() for k in (0, 1))
    rows = _finite_rows(low, high)
    if len(rows) < low.shape[1]:
        low, high = low[:, rows], high[:, rows]
    if bool((low > high).any()):
        axis, at, box = (low > high).nonzero()[0].tolist()
        raise InputError(
            f"robot {int(rows[at])}: box {box} about its parts that may touch each other: expected low <= high, got "
            f"{float(low[axis, at, box]):g} and {float(high[axis, at, box]):g} m; is a tolerance of contact below zero?"
        )
    key = keys_of_pairs(low, high, count, within) if len(rows) else rows
    if excluded is not None and len(excluded):
        pair = key % (count * other_count)
        at = torch.searchsorted(excluded, pair).clamp_(max=len(excluded) - 1)
        key = key[excluded[at] != pair]
    owner = key // other_count
    robot = owner // count
    return rows[robot], owner - robot * count, key - owner * other_count


def _finite_rows(low: Tensor, high: Tensor) -> Tensor:
    """Return the robots (R,) whose boxes (3, B, M) are all finite, with distances that do not overflow."""
    spread, gap = high.amax(2) - low.amin(2), low.amax(2) - high.amin(2)  # any NaN or infinity shows in one of them
    return (spread.isfinite() & gap.isfinite()).all(0).nonzero().flatten()
