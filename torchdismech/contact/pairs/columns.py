"""Pairs of boxes that overlap, by torch operations: for devices other than a CPU, and where nothing can be compiled.

The method is columns and a sweep, as in `native/boxes.cpp`. Call z the longest axis of a robot. Space is cut into
columns along z, about twice as wide as the robot's boxes are on average, and the boxes of a column are swept in the
order of their lower z. A box stands in every column that it overlaps; two boxes are compared where they share a column
and one begins within the z of the other, and count in one column only: the one that holds the higher of their low
corners, on each axis. So columns and sweep only save work: which pairs come out is decided by comparing the given
numbers. A robot's columns depend on its own boxes only: row i of a batch gives what robot i gives alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["keys_of_pairs"]

WIDTH = 2.0  # width of a column in mean widths of a box
CHUNK = 1 << 18  # candidate pairs compared at a time: some 20 MB


def keys_of_pairs(low: Tensor, high: Tensor, count: int, within: bool) -> Tensor:
    """Return pairs of overlapping boxes of one robot as sorted keys (robot * count + first) * other_count + second.

    Parameters
    ----------
    low, high : (3, B, M) float64, finite corners of boxes, low <= high [m].
    count : number of boxes in the first set, which come first among the M; those of the second set are numbered from 0.
    within : whether pairs are two boxes of the first set, first < second; else they are one box of each set.
    """
    behind = 0 if within else count
    other_count = low.shape[2] - behind
    boxes = _Boxes.of(low, high)
    sets = boxes.original < count
    table = boxes.table(sets)
    overlaps = table.overlaps() if within else table.overlaps_with(boxes.table(~sets))
    keys = [boxes.robot.new_empty(0)]
    for left, right in overlaps:
        one, another = _at(boxes.original, left), _at(boxes.original, right)
        first, second = torch.minimum(one, another), torch.maximum(one, another) - behind
        keys.append((_at(boxes.robot, left) * count + first) * other_count + second)
    return torch.cat(keys).sort().values


@dataclass(frozen=True)
class _Table:
    """Boxes in the columns they stand in, one entry for each box and column, in the order of column, then lower z.

    Attributes
    ----------
    key : (E,) number of the column times the boxes of a robot, plus the rank of the box by its lower z.
    stop : (E,) upper bound, exclusive, of the keys of boxes in the column that begin within the z of this one.
    box : (E,) number of the box.
    beyond : (E,) uint8, 1 where this is not the first column that the box overlaps along x, plus 2 for y.
    low, high : (2, E) x and y of the box's corners [m].
    """

    key: Tensor
    stop: Tensor
    box: Tensor
    beyond: Tensor
    low: Tensor
    high: Tensor

    def overlaps(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of boxes in this table that overlap, each once."""
        begin = torch.arange(1, len(self.key) + 1, device=self.key.device)
        yield from self._tested(self, begin, torch.searchsorted(self.key, self.stop))

    def overlaps_with(self, other: _Table) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of overlapping boxes, one of this and one of another table.

        First those in which the other's box begins later along z, then those in which this table's does.
        """
        for left, right in ((self, other), (other, self)):
            begin, end = (torch.searchsorted(right.key, bound) for bound in (left.key, left.stop))
            yield from left._tested(right, begin, end)

    def _tested(self, other: _Table, begin: Tensor, end: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of overlapping boxes, for each entry of this table with the entries `begin` to `end` of `other`.

        These share a column and overlap along z. What remains is to compare x and y, and to count each pair in only one
        of its columns: where, along each axis, it is the first column of one of them.
        """
        for source, target in _expanded(begin, end - begin):
            touch = (_at(self.beyond, source) & _at(other.beyond, target)) == 0
            for axis in (0, 1):
                touch &= _at(self.low[axis], source) <= _at(other.high[axis], target)
                touch &= _at(other.low[axis], target) <= _at(self.high[axis], source)
            overlapping = touch.nonzero().flatten()
            yield _at(self.box, _at(source, overlapping)), _at(other.box, _at(target, overlapping))


@dataclass(frozen=True)
class _Boxes:
    """The boxes of all robots, each robot's in the order of their lower z, and the columns that they overlap.

    Attributes
    ----------
    low, high : (2, B M) x and y of the boxes' corners [m].
    first, last : (2, B M) the first and the last column that each box overlaps, along x and along y.
    robot, original : (B M,) number of the robot, and of the box in the given order.
    stop : (B M,) how many boxes of the robot begin at or below the upper z of this one.
    count : M.
    """

    low: Tensor
    high: Tensor
    first: Tensor
    last: Tensor
    robot: Tensor
    original: Tensor
    stop: Tensor
    count: int

    @classmethod
    def of(cls, low: Tensor, high: Tensor) -> _Boxes:
        """Sort finite boxes (3, B, M) by their lower z, and find the columns that they overlap.

        From here on z is the longest axis of each robot, and x and y are the two axes that follow it cyclically.
        """
        batch, count = low.shape[1:]
        axes = (high.amax(2) - low.amin(2)).argmax(0) + torch.tensor([[0], [1], [2]], device=low.device)
        axes = (axes % 3)[..., None].expand_as(low)
        low, high = low.gather(0, axes), high.gather(0, axes)  # z, x, y
        start, order = low[0].sort(dim=1)
        stop = torch.searchsorted(start, high[0], right=True)
        robot = torch.arange(batch, device=order.device)[:, None].expand_as(order)
        flat = (robot * count + order).flatten()
        low, high = low[1:], high[1:]
        low, high, first, last = (x.flatten(1).index_select(1, flat) for x in (low, high, *_columns(low, high)))
        return cls(low, high, first, last, robot.flatten(), order.flatten(), _at(stop.flatten(), flat), count)

    def table(self, chosen: Tensor) -> _Table:
        """Return the table of the boxes that `chosen` (B M,) bool selects."""
        boxes = chosen.nonzero().flatten()
        first, last = (columns.index_select(1, boxes) for columns in (self.first, self.last))
        along_x, along_y = last - first + 1
        entries = along_x * along_y
        place = torch.repeat_interleave(entries)
        number = torch.arange(len(place), device=boxes.device) - _at(entries.cumsum(0) - entries, place)
        further_x = number // _at(along_y, place)
        further_y = number - further_x * _at(along_y, place)
        x, y = _at(first[0], place) + further_x, _at(first[1], place) + further_y

        box, most = _at(boxes, place), math.isqrt(self.count)
        robot = _at(self.robot, box)
        rank = box - robot * self.count
        # below 2^63 while B * M^2 is
        key, order = (((robot * most + x) * most + y) * self.count + rank).sort()
        box, beyond = _at(box, order), ((further_x > 0) + 2 * (further_y > 0)).to(torch.uint8)
        stop = key + _at(self.stop, box) - _at(rank, order)
        low, high = (corners.index_select(1, box) for corners in (self.low, self.high))
        return _Table(key, stop, box, _at(beyond, order), low, high)


def _columns(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last column (2, B, M) that each box overlaps along x and y, from corners (2, B, M).

    There are no more columns than boxes, so that a few very large boxes do not stand in too many.
    """
    corner, mean = low.amin(2, keepdim=True), (high - low).mean(2, keepdim=True)
    spread = high.amax(2, keepdim=True) - corner
    wanted = spread / (WIDTH * mean)
    count = torch.where(wanted > 1, wanted, 1.0).clamp(max=math.isqrt(low.shape[2])).floor()
    scale = count / spread
    scale = torch.where(scale.isfinite(), scale, 0.0)
    first, last = (torch.minimum((side - corner) * scale, count - 1).long() for side in (low, high))
    return first, last


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Return values[index] for values (n,), several times as fast as indexing does it on a CPU."""
    return values.index_select(0, index)


def _expanded(begin: Tensor, count: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all (i, j) with begin[i] <= j < begin[i] + count[i], as two index tensors, about CHUNK pairs at a time."""
    total = count.cumsum(0)
    ahead = begin - total + count  # j = place among all pairs + ahead[i]
    limits = torch.arange(CHUNK, int(total[-1]) + CHUNK, CHUNK, device=begin.device)
    cuts = torch.searchsorted(total, limits, right=True).tolist()
    done = 0
    for a, b in zip([0, *cuts], cuts, strict=False):
        source = torch.repeat_interleave(torch.arange(a, b, device=begin.device), count[a:b])
        yield source, torch.arange(done, done + len(source), device=begin.device) + _at(ahead, source)
        done += len(source)
