"""The symbolic half of multifrontal elimination: the tree of fronts, and the index of every number in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdismech.solve.linear.base import IndexMap
from torchdismech.sparse import Pattern
from torchdismech.sparse.ordering import nested_dissection

__all__ = ["Bucket", "Front", "Stats", "Update", "build_buckets", "build_fronts"]

# Unknowns in a leaf of the dissection. The optimum is flat: 12, 24 and 40 give 150-190 us a robot for a rod of 403
# unknowns and 2200-2700 us for a 20 x 20 shell (one core, B = 16 to 64).
LEAF_SIZE = 24
# Moving one entry of a front (gather, scatter, copies: about 4 ns) costs as much as this many multiply-adds.
_ENTRY_COST = 40.0
# Overhead of one front (calls into LAPACK and BLAS, about 0.1 us), in multiply-adds.
_FRONT_COST = 1000.0


@dataclass
class Front:
    """A dense matrix in which a few unknowns (pivots) are eliminated.

    Attributes
    ----------
    pivots : unknowns eliminated in this front.
    boundary : other unknowns that the elimination changes, in the order of their own elimination.
    parent : index of the front that receives the changes of the boundary; -1 for a root of the tree.
    height : 0 for a leaf, else one more than the largest height of the children.
    """

    pivots: np.ndarray
    boundary: np.ndarray
    parent: int
    height: int = 0


@dataclass(frozen=True)
class Stats:
    """Sizes of an elimination.

    Attributes
    ----------
    fronts, levels, buckets : number of fronts, of levels, and of groups of fronts factored by one call.
    largest : side of the largest front.
    fill : numbers in the Cholesky factor.
    front_numbers : numbers in all padded fronts of a matrix, all of which are moved.
    multiplications : number in a Cholesky factorisation, without padding; LU takes twice as many.
    """

    fronts: int
    levels: int
    buckets: int
    largest: int
    fill: int
    front_numbers: int
    multiplications: int


@dataclass(frozen=True)
class Update:
    """Indices by which the rests (contribution blocks) of one bucket, `child`, are added to the fronts of another.

    Entries `kept[0]` of the child's rest are added to places `kept[1]` of the blocks that the parents keep, and entries
    `passed[0]` to places `passed[1]` of the parents' own rest.
    """

    child: int
    kept: tuple[IndexMap, IndexMap]
    passed: tuple[IndexMap, IndexMap]


class Bucket:
    """Fronts of one level that are padded to the same size and factored by one batched call.

    A front is stored in blocks. The factor keeps pivots x pivots, boundary x pivots and, for LU, pivots x boundary. The
    *rest*, boundary x boundary, is the contribution that goes to the parent. The blocks of one kind of all fronts lie
    together. Places are flat indices through the first three kinds (`kept` numbers) and then through the rests.

    Attributes
    ----------
    count, p, u : number of fronts; padded number of pivots and of boundary unknowns.
    blocks : place where each kind of block begins, and the end.
    kept, numbers : number of places of the blocks that the factor keeps, and of all blocks.
    pivots, boundary : (count * p,), (count * u,) unknowns; padding has index n.
    padding : places of the ones on the diagonal of padded pivots.
    source, target : entry `source` of the values goes to place `target`, always among the kept ones.
    children : the updates that earlier buckets contribute.
    finished : indices of the earlier buckets whose rest no later bucket needs.
    """

    def __init__(self, fronts: list[Front], p: int, u: int, n: int, symmetric: bool):
        self.count, self.p, self.u, self.symmetric = len(fronts), p, u, symmetric
        self.blocks = (np.cumsum([0, p * p, u * p, 0 if symmetric else p * u, u * u]) * self.count).tolist()
        self.kept = self.blocks[3]
        pivots = np.full((self.count, p), n)
        boundary = np.full((self.count, u), n)
        for k, front in enumerate(fronts):
            pivots[k, : len(front.pivots)] = front.pivots
            boundary[k, : len(front.boundary)] = front.boundary
        self.pivots, self.boundary = IndexMap(pivots.ravel()), IndexMap(boundary.ravel())
        self.numbers = self.blocks[4]
        slot, local = np.nonzero(pivots == n)
        self.padding = IndexMap(self.place(slot, local, local))
        self.source, self.target = IndexMap(np.empty(0)), IndexMap(np.empty(0))
        self.children: list[Update] = []
        self.finished: list[int] = []

    def place(self, slot: np.ndarray | int, row: np.ndarray, col: np.ndarray) -> np.ndarray:
        """Return the places of entries (row, col) of front number `slot`; indices from p on are boundary unknowns."""
        p, u = self.p, self.u
        i, j = row - p, col - p
        return np.where(
            col < p,
            np.where(row < p, (slot * p + row) * p + col, self.blocks[1] + (slot * u + i) * p + col),
            np.where(row < p, self.blocks[2] + (slot * p + row) * u + j, self.blocks[3] + (slot * u + i) * u + j),
        )


def build_fronts(pattern: Pattern) -> list[Front]:
    """Return the fronts that eliminate a matrix of this pattern, children before parents."""
    nodes = nested_dissection(pattern, LEAF_SIZE)
    place = np.empty(pattern.n, dtype=np.int64)
    place[np.concatenate([node.unknowns for node in nodes])] = np.arange(pattern.n)
    owner = np.repeat(np.arange(len(nodes)), [len(node.unknowns) for node in nodes])[place]
    touched: list[list[np.ndarray]] = [[] for _ in nodes]
    for a, b in ((pattern.rows, pattern.cols), (pattern.cols, pattern.rows)):
        later = place[b] > place[a]
        a, b = a[later], b[later]
        by_owner = np.argsort(owner[a], kind="stable")
        ends = np.cumsum(np.bincount(owner[a], minlength=len(nodes)))
        for k, piece in enumerate(np.split(b[by_owner], ends[:-1])):
            touched[k].append(piece)
    fronts = []
    for k, node in enumerate(nodes):
        boundary = np.unique(np.concatenate(touched[k]))
        boundary = boundary[owner[boundary] != k]
        boundary = boundary[np.argsort(place[boundary])]
        if node.parent >= 0:
            touched[node.parent].append(boundary)
        fronts.append(Front(node.unknowns, boundary, node.parent))
    return _with_heights(_amalgamated(fronts))


def _amalgamated(fronts: list[Front]) -> list[Front]:
    """Merge a front into its parent where one larger front costs less than the two."""
    cost = [_cost(len(f.pivots), len(f.boundary)) for f in fronts]
    merged_into = np.arange(len(fronts))
    for k, front in enumerate(fronts):
        if front.parent < 0:
            continue
        parent = fronts[front.parent]
        together = _cost(len(front.pivots) + len(parent.pivots), len(parent.boundary))
        if together <= cost[k] + cost[front.parent]:
            parent.pivots = np.concatenate([front.pivots, parent.pivots])
            merged_into[k], cost[front.parent] = front.parent, together
    for k in reversed(range(len(fronts))):  # parents have larger indices, so where they were merged is final already
        merged_into[k] = merged_into[merged_into[k]]
    kept = [k for k in range(len(fronts)) if merged_into[k] == k]
    number = np.full(len(fronts), -1)
    number[kept] = np.arange(len(kept))
    for k in kept:
        if fronts[k].parent >= 0:
            fronts[k].parent = int(number[merged_into[fronts[k].parent]])
    return [fronts[k] for k in kept]


def _cost(p: int, u: int) -> float:
    """Return the cost of eliminating p unknowns in a front of side p + u, in multiply-adds."""
    return p**3 / 3 + p * p * u + p * u * u + _ENTRY_COST * (p + u) ** 2 + _FRONT_COST


def _with_heights(fronts: list[Front]) -> list[Front]:
    for front in fronts:
        if front.parent >= 0:
            fronts[front.parent].height = max(fronts[front.parent].height, front.height + 1)
    return fronts


def build_buckets(fronts: list[Front], pattern: Pattern) -> tuple[list[Bucket], Stats]:
    """Return the fronts grouped into buckets, lowest level first, with all places filled in, and the sizes."""
    groups: dict[tuple[int, int, int], list[int]] = {}
    for k, front in enumerate(fronts):
        groups.setdefault((front.height, _padded(len(front.pivots)), _padded(len(front.boundary))), []).append(k)
    buckets: list[Bucket] = []
    home: dict[int, tuple[int, int]] = {}  # front -> (bucket, slot)
    for index, key in enumerate(sorted(groups)):
        buckets.append(Bucket([fronts[k] for k in groups[key]], key[1], key[2], pattern.n, pattern.symmetric))
        home |= {k: (index, slot) for slot, k in enumerate(groups[key])}
    _place_values(fronts, buckets, home, pattern)
    _place_updates(fronts, buckets, home, pattern.n)
    stats = Stats(
        fronts=len(fronts),
        levels=1 + max((f.height for f in fronts), default=-1),
        buckets=len(buckets),
        largest=max((len(f.pivots) + len(f.boundary) for f in fronts), default=0),
        fill=sum(len(f.pivots) * (len(f.pivots) + 1) // 2 + len(f.pivots) * len(f.boundary) for f in fronts),
        front_numbers=sum(b.numbers for b in buckets),
        multiplications=sum(_multiplications(len(f.pivots), len(f.boundary)) for f in fronts),
    )
    return buckets, stats


def _multiplications(p: int, u: int) -> int:
    """Return the multiplications of a Cholesky factorisation that eliminates p unknowns of a front of side p + u."""
    rows = p + u - 1 - np.arange(p)  # below each pivot
    return int((rows + rows * (rows + 1) // 2).sum())


def _padded(size: int) -> int:
    """Return the size rounded up to a multiple of an eighth of the next lower power of two, and at least of 4."""
    step = max(4, 2 ** (max(size, 1).bit_length() - 4))
    return -(-size // step) * step


def _locals(front: Front, bucket: Bucket, n: int) -> np.ndarray:
    """Return the local index (n,) in the front of each unknown; -1 for unknowns outside it."""
    local = np.full(n, -1)
    local[front.pivots] = np.arange(len(front.pivots))
    local[front.boundary] = bucket.p + np.arange(len(front.boundary))
    return local


def _place_values(fronts: list[Front], buckets: list[Bucket], home: dict, pattern: Pattern) -> None:
    """Set `source` and `target` of all buckets: a value goes to the front that eliminates the first of its unknowns."""
    place = np.empty(pattern.n, dtype=np.int64)
    place[np.concatenate([f.pivots for f in fronts])] = np.arange(pattern.n)
    owner = np.repeat(np.arange(len(fronts)), [len(f.pivots) for f in fronts])
    entry_owner = owner[np.minimum(place[pattern.rows], place[pattern.cols])]
    by_owner = np.argsort(entry_owner, kind="stable")
    ends = np.cumsum(np.bincount(entry_owner, minlength=len(fronts)))
    source: list[list[np.ndarray]] = [[] for _ in buckets]
    target: list[list[np.ndarray]] = [[] for _ in buckets]
    for k, entries in enumerate(np.split(by_owner, ends[:-1])):
        index, slot = home[k]
        local = _locals(fronts[k], buckets[index], pattern.n)
        row, col = local[pattern.rows[entries]], local[pattern.cols[entries]]
        if pattern.symmetric:
            row, col = np.maximum(row, col), np.minimum(row, col)
        source[index].append(entries)
        target[index].append(buckets[index].place(slot, row, col))
    for bucket, s, t in zip(buckets, source, target, strict=True):
        bucket.source, bucket.target = IndexMap(np.concatenate(s)), IndexMap(np.concatenate(t))


def _place_updates(fronts: list[Front], buckets: list[Bucket], home: dict, n: int) -> None:
    """Set `children` and `finished` of all buckets: the rest of a front goes to its parent.

    Of symmetric matrices only the lower triangle does.
    """
    pairs: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = {}
    for k, front in enumerate(fronts):
        if front.parent < 0 or not len(front.boundary):
            continue
        (child, child_slot), (parent, parent_slot) = home[k], home[front.parent]
        local = _locals(fronts[front.parent], buckets[parent], n)[front.boundary]
        size, u = len(local), buckets[child].u
        i, j = np.tril_indices(size) if buckets[child].symmetric else np.indices((size, size)).reshape(2, -1)
        row, col = local[i], local[j]
        if buckets[child].symmetric:
            row, col = np.maximum(row, col), np.minimum(row, col)
        places = buckets[parent].place(parent_slot, row, col)
        pairs.setdefault((child, parent), []).append(((child_slot * u + i) * u + j, places))
    for (child, parent), parts in pairs.items():
        source, target = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        first_rest = buckets[parent].kept
        stays, passes = target < first_rest, target >= first_rest
        buckets[parent].children.append(
            Update(
                child,
                (IndexMap(source[stays]), IndexMap(target[stays])),
                (IndexMap(source[passes]), IndexMap(target[passes] - first_rest)),
            )
        )
    last_parent = {child: max(q for c, q in pairs if c == child) for child, _ in pairs}
    for child, parent in last_parent.items():
        buckets[parent].finished.append(child)
