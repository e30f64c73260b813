"""Which primitives may touch: pairs of overlapping boxes, for all robots of a batch at once.

Columns and a sweep. Call z the longest axis of a robot. Space is cut into square columns along z, and the boxes of a
column are swept in the order of their lower z. A box stands in every column that it overlaps; two boxes are compared
where they share a column and one begins within the z of the other, and count in one column only: the one that holds
the higher of their low corners, on each axis. So columns and sweep only save work: which pairs come out is decided by
comparing the given numbers.

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

import numpy as np
import scipy  # its parts are imported at their first use
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from torchdismech.errors import InputError

__all__ = ["adjacent", "grown", "overlapping", "padded"]

TYPICAL = 1.9  # the widest box of the typical level, in median boxes
ROOM = 1.05  # the width of a column in the widest boxes of its level; > 1, or a box could stand in more than four
WIDEN = 2  # columns of a level are 2^WIDEN times as wide as those of the next finer one
LEVELS = 16  # boxes 4^15 times smaller than the largest are few enough to share a level
WRAP = 1024  # columns along an axis before the numbers repeat; a power of two
SMALLEST = 16  # places for pairs that a robot has at least
CHUNK = 1 << 18  # candidate pairs compared at a time: some 20 MB

Pairs = tuple[Tensor, Tensor, Tensor]


@torch.no_grad()
def overlapping(
    low: Tensor,
    high: Tensor,
    other_low: Tensor | None = None,
    other_high: Tensor | None = None,
    excluded: Tensor | None = None,
) -> Pairs:
    """Return all pairs of boxes of the same robot that overlap; boxes that just touch count.

    A robot with a coordinate that is not finite has no pairs.

    Parameters
    ----------
    low, high : (B, M, 3) corners of axis-aligned boxes [m], low <= high.
    other_low, other_high : (B, M2, 3) a second set; pairs are then one box of each set, else two of the first.
    excluded : (X,) increasing int64, keys first * M2 + second of pairs that never count, in any robot (M2 = M for one
        set; see `adjacent`).

    Returns
    -------
    robot, first, second : (K,) int64, sorted by robot, then first, then second. first < second within one set.

    Raises
    ------
    InputError
        For shapes that do not fit, a box with low > high, or keys that are not increasing.
    """
    own = low.shape[1] if low.ndim == 3 else 0
    low, high = _joined(low, high, other_low, other_high)
    behind = 0 if other_low is None else own  # where the second of a pair is counted from
    others = low.shape[1] - behind
    if excluded is not None:
        _check_excluded(excluded, own * others)
    if low.numel() == 0 or own == 0 or others == 0:
        empty = torch.empty(0, dtype=torch.int64, device=low.device)
        return empty, empty, empty
    low, high = low.movedim(2, 0).contiguous(), high.movedim(2, 0).contiguous()  # component by component: faster
    rows = _finite_rows(low, high)
    if len(rows) < low.shape[1]:
        low, high = low[:, rows], high[:, rows]
    _check_boxes(low, high, rows)

    keys = [rows.new_empty(0)]
    if len(rows):
        columns = _Columns.of(low, high)
        for left, right in columns.within() if other_low is None else columns.between(own):
            one, another = _at(columns.original, left), _at(columns.original, right)
            first, second = torch.minimum(one, another), torch.maximum(one, another) - behind
            keys.append((_at(columns.robot, left) * own + first) * others + second)
    key = torch.cat(keys).sort().values
    if excluded is not None and len(excluded):
        pair = key % (own * others)
        at = torch.searchsorted(excluded, pair).clamp_(max=len(excluded) - 1)
        key = key[excluded[at] != pair]
    owner = key // others
    robot = owner // own
    return rows[robot], owner - robot * own, key - owner * others


def padded(robot: Tensor, first: Tensor, second: Tensor, batch: int, capacity: int = 0) -> tuple[Tensor, Tensor]:
    """Return pairs as one table with P places for each robot; P is `capacity`, grown as far as needed.

    Hand `index.shape[1]` back as the capacity of the next step: shapes then change seldom, and no pair is ever lost.

    Parameters
    ----------
    robot, first, second : (K,) int64, sorted by robot, as from `overlapping`.
    batch : number of robots B.
    capacity : places for each robot so far.

    Returns
    -------
    index : (B, P, 2) int64 the pairs of each robot in their order, then (0, 0) in empty places.
    mask : (B, P) bool, which places hold a pair.
    """
    count = torch.bincount(robot, minlength=batch)
    if len(count) > batch:
        raise InputError(f"pairs of robot {len(count) - 1} in a batch of {batch}")
    size = grown(capacity, int(count.amax()) if batch else 0)
    place = torch.arange(len(robot), device=robot.device) - (count.cumsum(0) - count)[robot]
    index = torch.zeros((batch, size, 2), dtype=torch.int64, device=robot.device)
    index[robot, place] = torch.stack((first, second), 1)
    return index, torch.arange(size, device=robot.device) < count[:, None]


def grown(capacity: int, needed: int) -> int:
    """Return a capacity of at least `needed`: as it is, or grown from 16 (or from itself) by half until it suffices."""
    capacity = max(capacity, SMALLEST)
    while capacity < needed:
        capacity += (capacity + 1) // 2
    return capacity


def adjacent(
    primitives: ArrayLike, others: ArrayLike | None = None, links: ArrayLike | None = None, ring: int = 0
) -> Tensor:
    """Return the keys of pairs that are neighbours by topology, to exclude from contact.

    Neighbours share a node, or have nodes at most `ring` links apart.

    Parameters
    ----------
    primitives : (M, k) nodes of each: k = 1 points, 2 edges, 3 triangles.
    others : (M2, k2) nodes of the primitives of the second set; without, pairs are within the first, first < second.
    links : (L, 2) nodes that are one link apart; needed where ring > 0.
    ring : how many links still count as near.

    Returns
    -------
    (X,) increasing int64 keys first * M2 + second (M2 = M for one set), on the CPU.
    """
    if ring < 0:
        raise InputError(f"ring must be at least 0, got {ring}")
    if ring > 0 and links is None:
        raise InputError(f"ring {ring} counts links between nodes: give links (L, 2)")
    near = _checked_nodes("primitives", primitives)
    far = near if others is None else _checked_nodes("others", others)
    mesh = np.zeros((0, 2), dtype=np.int64) if links is None else _checked_nodes("links", links)
    nodes = 1 + max((int(a.max()) for a in (near, far, mesh) if a.size), default=-1)
    reached = _incidence(near, nodes)
    steps = _incidence(mesh, nodes)
    for _ in range(ring):
        # to both ends of all links at a node, so to the node itself also; nodes without links stay
        reached = reached + reached @ steps.T @ steps
    pairs = (reached @ _incidence(far, nodes).T).tocoo()
    first, second = pairs.row.astype(np.int64), pairs.col.astype(np.int64)
    if others is None:
        first, second = first[first < second], second[first < second]
    return torch.from_numpy(np.sort(first * len(far) + second))


def _checked_nodes(name: str, nodes: ArrayLike) -> np.ndarray:
    """Return node numbers (n, k) as int64."""
    array = np.asarray(nodes)
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer) or (array.size and array.min() < 0):
        raise InputError(f"{name} must be node numbers of shape (n, k), got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _incidence(primitives: np.ndarray, nodes: int) -> scipy.sparse.csr_array:
    """Return the matrix (M, nodes), true where a primitive has a node."""
    count, corners = primitives.shape
    rows = np.repeat(np.arange(count), corners)
    matrix = scipy.sparse.coo_array((np.ones(rows.size, dtype=bool), (rows, primitives.ravel())), shape=(count, nodes))
    return matrix.tocsr()


@dataclass(frozen=True)
class _Table:
    """Boxes in the columns they stand in, one entry for each box and column, in the order of column, then lower z.

    Attributes
    ----------
    key : (E,) number of the column times the boxes of a robot, plus the rank of the box by its lower z.
    stop : (E,) the key behind the last box in the column that begins within the z of this one.
    box : (E,) the box.
    corner : (E,) uint8, 1 where this is the second column that the box overlaps along x, plus 2 for y.
    low, high : x and y of the box [m], (E,) each.
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
        """Yield the boxes of this and of another table that overlap: where the other begins later, then where this."""
        if len(self.key) and len(other.key):
            for left, right in ((self, other), (other, self)):
                begin, end = (torch.searchsorted(right.key, bound) for bound in (left.key, left.stop))
                yield from left._tested(right, begin, end)

    def _tested(self, other: _Table, begin: Tensor, end: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the boxes of entries and of the entries `begin` to `end` of `other` that overlap.

        They share a column and overlap along z. What remains is to compare x and y, and to take each pair in one of its
        columns: where not both are in their second along an axis.
        """
        for source, target in _expanded(begin, end - begin):
            touch = (_at(self.corner, source) & _at(other.corner, target)) == 0
            for axis in (0, 1):
                touch &= _at(self.low[axis], source) <= _at(other.high[axis], target)
                touch &= _at(other.low[axis], target) <= _at(self.high[axis], source)
            found = touch.nonzero().flatten()
            yield _at(self.box, _at(source, found)), _at(other.box, _at(target, found))


@dataclass(frozen=True)
class _Columns:
    """The boxes of all robots, each robot's in the order of their lower z, and the widths of its columns.

    Attributes
    ----------
    low, high : x and y of the boxes [m], (B * M,) each.
    corner : the robots' least x and y [m], (B,) each: where columns are counted from.
    robot, original : (B * M,) row in the batch; place in the set as it was given.
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

        z is from here on the longest axis of each robot, x and y the next two in turn: what is flat is cut both ways.
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

    def between(self, own: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of boxes that overlap, one of the first `own` of a robot and one of its others."""
        mine, theirs = (self.original < own).nonzero().flatten(), (self.original >= own).nonzero().flatten()
        my_residents, their_residents = (self._table(boxes, _at(self.level, boxes)) for boxes in (mine, theirs))
        yield from my_residents.overlaps_with(their_residents)
        if self.mixed:
            yield from self._visitors(mine, theirs).overlaps_with(their_residents)
            yield from self._visitors(theirs, mine).overlaps_with(my_residents)

    def _visitors(self, boxes: Tensor, hosts: Tensor) -> _Table:
        """Return the table of `boxes` in all levels coarser than their own where their robot has `hosts`."""
        own = _at(self.level, boxes)
        coarser = torch.arange(int(own.amax()), device=boxes.device)
        inhabited = torch.zeros_like(self.cell, dtype=torch.bool)
        inhabited[self.robot[hosts], self.level[hosts]] = True
        visits = inhabited[self.robot[boxes], : len(coarser)] & (coarser < own[:, None])
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
    """Return values[index] of (n,) values: several times faster than indexing on a CPU."""
    return values.index_select(0, index)


def _levels(size: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Return the level (B, M) of boxes of `size` and the width (B, LEVELS) of the columns of each level.

    `spread` (B, 1) is the extent of each robot. Sizes relative to the median: robust against a few large boxes.
    """
    middle = size.sort(1).values[:, (size.shape[1] - 1) // 2, None]  # Tensor.median is refused in deterministic mode
    typical = torch.maximum(TYPICAL * middle, spread * 2.0**-30)  # boxes without extent: not columns without width
    typical = torch.where(typical > 0, typical, 1.0)
    rung = torch.ceil(torch.log2(size / typical) / WIDEN).clamp_(min=-LEVELS)  # size <= typical * 4^rung
    top = rung.amax(1, keepdim=True)
    level = (top - rung).clamp_(max=LEVELS - 1).long()
    deep = torch.arange(LEVELS, device=size.device)
    cell = ROOM * typical * torch.exp2(WIDEN * (top - deep))
    return level, torch.maximum(cell, spread * 2.0**-40)  # numbers of columns stay exact


def _expanded(begin: Tensor, count: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (i, j) for all i and begin[i] <= j < begin[i] + count[i], about CHUNK pairs at a time."""
    total = count.cumsum(0)
    ahead = begin - total + count  # j = place among all pairs + ahead[i]
    limits = torch.arange(CHUNK, int(total[-1]) + CHUNK, CHUNK, device=begin.device)
    cuts = torch.searchsorted(total, limits, right=True).tolist()
    done = 0
    for a, b in zip([0, *cuts], cuts, strict=False):
        source = torch.repeat_interleave(torch.arange(a, b, device=begin.device), count[a:b])
        yield source, torch.arange(done, done + len(source), device=begin.device) + _at(ahead, source)
        done += len(source)


def _finite_rows(low: Tensor, high: Tensor) -> Tensor:
    """Return the robots (R,) whose boxes (3, B, M) are all finite, and no further apart than numbers can tell."""
    spread, gap = high.amax(2) - low.amin(2), low.amax(2) - high.amin(2)  # one of them has each NaN and infinity
    return (spread.isfinite() & gap.isfinite()).all(0).nonzero().flatten()


def _joined(low: Tensor, high: Tensor, other_low: Tensor | None, other_high: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the corners of both sets as one set, in float64 (an exact copy); refuse shapes that do not fit."""
    if low.ndim != 3 or low.shape[2] != 3 or low.shape != high.shape:
        raise InputError(f"low and high must be (B, M, 3) both, got {tuple(low.shape)} and {tuple(high.shape)}")
    if other_low is None and other_high is None:
        return low.double(), high.double()
    if other_low is None or other_high is None:
        raise InputError("a second set of boxes needs both other_low and other_high, one of them is None")
    if other_low.ndim != 3 or other_low.shape[::2] != low.shape[::2] or other_low.shape != other_high.shape:
        raise InputError(
            f"other_low and other_high must be ({len(low)}, M2, 3) both, as low is {tuple(low.shape)}, got "
            f"{tuple(other_low.shape)} and {tuple(other_high.shape)}: expand boxes that all robots share"
        )
    return torch.cat((low, other_low), 1).double(), torch.cat((high, other_high), 1).double()


def _check_boxes(low: Tensor, high: Tensor, rows: Tensor) -> None:
    """Refuse a box that is inside out; `rows` are the numbers of the robots."""
    if bool((low > high).any()):
        axis, at, box = (low > high).nonzero()[0].tolist()
        raise InputError(
            f"box {box} of robot {int(rows[at])}: low {float(low[axis, at, box]):g} is above high "
            f"{float(high[axis, at, box]):g} on axis {axis}; expected low <= high: is a margin negative?"
        )


def _check_excluded(excluded: Tensor, pairs: int) -> None:
    """Refuse keys that a binary search would miss."""
    if excluded.ndim != 1 or excluded.dtype != torch.int64:
        raise InputError(f"excluded must be (X,) int64, got {tuple(excluded.shape)} {excluded.dtype}")
    if len(excluded) and not (
        bool((excluded[1:] > excluded[:-1]).all()) and int(excluded[0]) >= 0 and int(excluded[-1]) < pairs
    ):
        raise InputError(
            f"excluded must be increasing keys first * M2 + second in 0 ... {pairs - 1}: take them from `adjacent` of "
            "the same primitives"
        )
