"""Pairs of boxes that overlap, by torch operations: for devices other than a CPU, and where nothing can be compiled.

The method is columns and a sweep. Call z the longest axis of a robot. Space is cut into square columns along z, and the
boxes of a column are swept in the order of their lower z. A box stands in every column that it overlaps; two boxes are
compared where they share a column and one begins within the z of the other, and count in one column only: the one that
holds the higher of their low corners, on each axis. So columns and sweep only save work: which pairs come out is
decided by comparing the given numbers.

Boxes of very different size get columns of different width: *level* k has columns four times as wide as level k+1, and
a box is a *resident* of the finest level whose columns are wider than it, so it stands in four of them at most. Pairs
between levels are found at the coarser one: each box also *visits* all coarser levels that have residents. Most sets
have one level, and no visits.

Columns are numbered modulo WRAP: no robot is too large, and boxes that overlap are never far enough apart to be taken
for neighbours twice. A robot's columns depend on its own boxes only: row i of a batch gives what robot i gives alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["keys_of_pairs"]

TYPICAL = 1.9  # size of the largest box of the typical level, over the median size of boxes
ROOM = 1.05  # width of a column over the size of the largest box of its level; > 1: a box stands in four at most
WIDEN = 2  # columns of a level are 2^WIDEN times as wide as those of the next finer one
LEVELS = 16  # boxes 4^15 times smaller than the largest are few enough to share a level
WRAP = 1024  # columns along an axis before the numbers repeat; a power of two
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
    columns = _Columns.of(low, high)
    keys = [columns.robot.new_empty(0)]
    for left, right in columns.within() if within else columns.between(count):
        one, another = _at(columns.original, left), _at(columns.original, right)
        first, second = torch.minimum(one, another), torch.maximum(one, another) - behind
        keys.append((_at(columns.robot, left) * count + first) * other_count + second)
    return torch.cat(keys).sort().values


@dataclass(frozen=True)
class _Table:
    """Boxes in the columns they stand in, one entry for each box and column, in the order of column, then lower z.

    Attributes
    ----------
    key : (E,) number of the column times the boxes of a robot, plus the rank of the box by its lower z.
    stop : (E,) upper bound, exclusive, of the keys of boxes in the column that begin within the z of this one.
    box : (E,) number of the box.
    corner : (E,) uint8, 1 where this is the second column that the box overlaps along x, plus 2 for y.
    low, high : x and y of the box's corners [m], (E,) each.
    """

    key: Tensor
    stop: Tensor
    box: Tensor
    corner: Tensor
    low: tuple[Tensor, Tensor]
    high: tuple[Tensor, Tensor]

    def overlaps(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of boxes in this table that overlap, each once."""
        begin = torch.arange(1, len(self.key) + 1, device=self.key.device)
        yield from self._tested(self, begin, torch.searchsorted(self.key, self.stop))

    def overlaps_with(self, other: _Table) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of overlapping boxes, one of this and one of another table.

        First those in which the other's box begins later along z, then those in which this table's does.
        """
        if len(self.key) and len(other.key):
            for left, right in ((self, other), (other, self)):
                begin, end = (torch.searchsorted(right.key, bound) for bound in (left.key, left.stop))
                yield from left._tested(right, begin, end)

    def _tested(self, other: _Table, begin: Tensor, end: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of overlapping boxes, for each entry of this table with the entries `begin` to `end` of `other`.

        These share a column and overlap along z. What remains is to compare x and y, and to count each pair in only one
        of its columns: where not both boxes are in their second column along an axis.
        """
        for source, target in _expanded(begin, end - begin):
            touch = (_at(self.corner, source) & _at(other.corner, target)) == 0
            for axis in (0, 1):
                touch &= _at(self.low[axis], source) <= _at(other.high[axis], target)
                touch &= _at(other.low[axis], target) <= _at(self.high[axis], source)
            overlapping = touch.nonzero().flatten()
            yield _at(self.box, _at(source, overlapping)), _at(other.box, _at(target, overlapping))


@dataclass(frozen=True)
class _Columns:
    """The boxes of all robots, each robot's in the order of their lower z, and the widths of its columns.

    Attributes
    ----------
    low, high : x and y of the boxes' corners [m], (B * M,) each.
    corner : the robots' least x and y [m], (B,) each, from which columns are counted.
    robot, original : (B * M,) number of the robot, and of the box in the given order.
    stop : (B * M,) how many boxes of the robot begin at or below the upper z of this one.
    level : (B * M,) the level that the box is a resident of; 0 is the coarsest.
    cell : (B, LEVELS) width of the columns of each level [m].
    width : M.
    """

    low: tuple[Tensor, Tensor]
    high: tuple[Tensor, Tensor]
    corner: tuple[Tensor, Tensor]
    robot: Tensor
    original: Tensor
    stop: Tensor
    level: Tensor
    cell: Tensor
    width: int

    @classmethod
    def of(cls, low: Tensor, high: Tensor) -> _Columns:
        """Sort finite boxes (3, B, M) by their lower z and choose the widths of the columns.

        From here on z is the longest axis of each robot, and x and y are the two axes that follow it cyclically.
        """
        batch, width = low.shape[1:]
        spread = high.amax(2) - low.amin(2)
        level, cell = _levels((high - low).amax(0), spread.amax(0)[:, None])
        axes = spread.argmax(0) + torch.tensor([[1], [2], [0]], device=low.device)
        axes = (axes % 3)[..., None].expand_as(low)
        low, high = low.gather(0, axes), high.gather(0, axes)
        start, order = low[2].sort(dim=1)
        robot = torch.arange(batch, device=low.device)[:, None].expand(batch, width)
        flat = (robot * width + order).view(-1)
        stop = torch.searchsorted(start, high[2], right=True)
        return cls(
            (_at(low[0].view(-1), flat), _at(low[1].view(-1), flat)),
            (_at(high[0].view(-1), flat), _at(high[1].view(-1), flat)),
            (low[0].amin(1), low[1].amin(1)),
            robot.reshape(-1),
            order.view(-1),
            _at(stop.view(-1), flat),
            _at(level.view(-1), flat),
            cell,
            width,
        )

    @property
    def mixed(self) -> bool:
        """Whether any robot has boxes of more than one level."""
        return bool((self.level > 0).any())

    def within(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of boxes that overlap, each once."""
        boxes = torch.arange(len(self.level), device=self.level.device)
        residents = self._table(boxes, self.level)
        yield from residents.overlaps()
        if self.mixed:
            yield from self._visitors(boxes, boxes).overlaps_with(residents)

    def between(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of boxes that overlap, one of the first `count` boxes of a robot and one of its other boxes."""
        mine, theirs = (self.original < count).nonzero().flatten(), (self.original >= count).nonzero().flatten()
        my_residents, their_residents = (self._table(boxes, _at(self.level, boxes)) for boxes in (mine, theirs))
        yield from my_residents.overlaps_with(their_residents)
        if self.mixed:
            yield from self._visitors(mine, theirs).overlaps_with(their_residents)
            yield from self._visitors(theirs, mine).overlaps_with(my_residents)

    def _visitors(self, boxes: Tensor, hosts: Tensor) -> _Table:
        """Return the table of `boxes` in all levels coarser than their own in which their robot has some of `hosts`."""
        level_of_box = _at(self.level, boxes)
        coarser = torch.arange(int(level_of_box.amax()), device=boxes.device)
        inhabited = torch.zeros_like(self.cell, dtype=torch.bool)
        inhabited[self.robot[hosts], self.level[hosts]] = True
        visits = inhabited[self.robot[boxes], : len(coarser)] & (coarser < level_of_box[:, None])
        guest, level = visits.nonzero(as_tuple=True)
        return self._table(_at(boxes, guest), level)

    def _table(self, boxes: Tensor, level: Tensor) -> _Table:
        """Return the table of `boxes` (n,) in the columns of `level` (n,)."""
        robot = _at(self.robot, boxes)
        stratum = robot * LEVELS + level
        cell = _at(self.cell.view(-1), stratum)
        column, beyond = [], []
        for axis in (0, 1):
            corner = _at(self.corner[axis], robot)
            first, last = (((_at(side[axis], boxes) - corner) / cell).floor() for side in (self.low, self.high))
            column.append(first.long())
            beyond.append(last > first)
        # A box stands in the column of its low corner, and in the next along x, along y, and along both, if it extends.
        further = [extends.nonzero().flatten() for extends in (beyond[0], beyond[1], beyond[0] & beyond[1])]
        member = torch.cat((torch.arange(len(boxes), device=boxes.device), *further))
        counts = torch.tensor([len(boxes), *(len(f) for f in further)], device=boxes.device)
        corner = torch.repeat_interleave(torch.arange(4, device=boxes.device), counts, output_size=len(member))

        x = (_at(column[0], member) + (corner & 1)) & (WRAP - 1)
        y = (_at(column[1], member) + (corner >> 1)) & (WRAP - 1)
        rank = boxes - robot * self.width
        # below 2^63 while B * M < 2^39 boxes: more than fit in memory
        key = ((_at(stratum, member) * WRAP + x) * WRAP + y) * self.width + _at(rank, member)
        key, order = key.sort()
        member = _at(member, order)
        box = _at(boxes, member)
        return _Table(
            key,
            key + _at(_at(self.stop, boxes) - rank, member),
            box,
            _at(corner, order).to(torch.uint8),
            (_at(self.low[0], box), _at(self.low[1], box)),
            (_at(self.high[0], box), _at(self.high[1], box)),
        )


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Return values[index] for values (n,), several times as fast as indexing does it on a CPU."""
    return values.index_select(0, index)


def _levels(size: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Return the level (B, M) of each box, and the width (B, LEVELS) of the columns of each level [m].

    Levels go by sizes relative to the median one, so that a few large boxes do not shift them.

    Parameters
    ----------
    size : (B, M) largest side of each box [m].
    spread : (B, 1) largest extent of each robot [m].
    """
    middle = size.sort(1).values[:, (size.shape[1] - 1) // 2, None]  # Tensor.median is refused in deterministic mode
    typical = torch.maximum(TYPICAL * middle, spread * 2.0**-30)  # above zero, also for boxes without extent
    typical = torch.where(typical > 0, typical, 1.0)
    rung = torch.ceil(torch.log2(size / typical) / WIDEN).clamp_(min=-LEVELS)  # size <= typical * 4^rung
    top = rung.amax(1, keepdim=True)
    level = (top - rung).clamp_(max=LEVELS - 1).long()
    deep = torch.arange(LEVELS, device=size.device)
    cell = ROOM * typical * torch.exp2(WIDEN * (top - deep))
    return level, torch.maximum(cell, spread * 2.0**-40)  # so wide that the numbers of columns stay exact


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
