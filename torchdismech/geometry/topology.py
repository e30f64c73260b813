"""Rods as maximal chains of edges, and the bend-twist springs between edges that meet at a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

__all__ = ["NO_PAIRS", "Held", "Rod", "Springs", "find_joint_springs", "find_rods", "find_springs"]

NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Rod:
    """A maximal chain of edges through nodes where exactly two meet, or two go on as one rod, in walking order.

    Attributes
    ----------
    nodes : (k+1,) node indices; the first is repeated at the end of a closed rod.
    edges : (k,) edge indices.
    signs : (k,) +1 where an edge is stored in the walking direction, else -1.
    ring : whether its last edge goes on as its first one.
    """

    nodes: np.ndarray
    edges: np.ndarray
    signs: np.ndarray
    ring: bool

    @property
    def closed(self) -> bool:
        """Whether the rod ends where it begins."""
        return len(self.edges) > 1 and self.nodes[0] == self.nodes[-1]


@dataclass(frozen=True)
class Springs:
    """Bend-twist springs: every pair of edges that meet at a node.

    Attributes
    ----------
    nodes : (S, 3) node before, centre node, node after.
    edges : (S, 2) edge that enters the centre, edge that leaves it.
    signs : (S, 2) +1 where that edge is stored in this direction, else -1.
    along_rod : (S,) whether the spring is inside a rod or at a held tangent; else it is at a branching node or has a
        joint edge.
    carried : (S,) whether the directors at rest are transported across it from one edge to the next: only inside rods,
        and not where a closed rod meets its beginning.
    """

    nodes: np.ndarray
    edges: np.ndarray
    signs: np.ndarray
    along_rod: np.ndarray
    carried: np.ndarray

    def selected(self, keep: np.ndarray) -> Springs:
        """Return the springs that `keep` (S,) selects."""
        return Springs(*(getattr(self, f.name)[keep] for f in fields(self)))

    def joined(self, *others: Springs) -> Springs:
        """Return these springs and, after them, the others."""
        return Springs(*(np.concatenate([getattr(s, f.name) for s in (self, *others)]) for f in fields(self)))


@dataclass(frozen=True)
class Held:
    """The held tangents: one for each rod edge at a node that a clamp holds in a direction.

    Attributes
    ----------
    nodes : (H,) the nodes.
    edges : (H,) the rod edges there.
    leaves : (H,) whether the edge is stored as leaving the node, else as entering it.
    clamps : (H,) numbers of the clamps that hold them.
    """

    nodes: np.ndarray
    edges: np.ndarray
    leaves: np.ndarray
    clamps: np.ndarray

    def springs(self, rod_edges: np.ndarray, first: int) -> Springs:
        """Return the springs (H) between each held tangent and its rod edge, in the edges' stored directions.

        Parameters
        ----------
        rod_edges : (E, 2) node indices.
        first : number of the first held tangent among the framed edges; the missing node beyond a held tangent is -1.
        """
        outside, framed = np.full(len(self.nodes), -1), first + np.arange(len(self.nodes))
        ends, leaves = rod_edges[self.edges], self.leaves
        nodes = np.stack(
            [np.where(leaves, outside, ends[:, 0]), self.nodes, np.where(leaves, ends[:, 1], outside)], axis=1
        )
        pairs = np.stack([np.where(leaves, framed, self.edges), np.where(leaves, self.edges, framed)], axis=1)
        held = np.ones(len(nodes), dtype=bool)
        return Springs(nodes, pairs, np.ones_like(pairs), held, ~held)


def find_rods(n_nodes: int, edges: np.ndarray, going_on: np.ndarray = NO_PAIRS) -> list[Rod]:
    """Return the rods of a network of edges (E, 2), in the order of their first edges.

    A rod is walked in the direction in which its earliest edge is stored. It ends at free ends and branching nodes.

    Parameters
    ----------
    going_on : (k, 2) pairs of edges that meet and are one rod, also at branching nodes.
    """
    follower = _followers(n_nodes, edges, going_on)
    seen = np.zeros(len(edges), dtype=bool)
    rods = []
    for first in range(len(edges)):
        if seen[first]:
            continue
        forward = _walk(follower, edges, first, int(edges[first, 1]))
        ring = bool(forward) and forward[-1][0] == first
        backward = [] if ring else _walk(follower, edges, first, int(edges[first, 0]))
        if ring:
            forward = forward[:-1]
        steps = [(e, other) for e, other in reversed(backward)]
        nodes = [other for _, other in steps] + [int(edges[first, 0]), int(edges[first, 1])]
        order = [e for e, _ in steps] + [first]
        for edge, other in forward:
            order.append(edge)
            nodes.append(other)
        seen[order] = True
        walked = np.stack([nodes[:-1], nodes[1:]], axis=1)
        signs = np.where((edges[order] == walked).all(1), 1, -1)
        rods.append(Rod(np.array(nodes), np.array(order), signs, ring))
    return rods


def find_springs(n_nodes: int, edges: np.ndarray, rods: list[Rod]) -> Springs:
    """Return the springs: along the rods in their order, then all other pairs at branching nodes in node order."""
    found = []
    for rod in rods:
        nodes, walked, signs, carried = rod.nodes, rod.edges, rod.signs, np.ones(len(rod.edges) - 1, dtype=bool)
        if rod.ring:  # one more where it meets its beginning
            nodes, walked, signs = np.append(nodes, nodes[1]), np.append(walked, walked[0]), np.append(signs, signs[0])
            carried = np.append(carried, False)
        if len(carried):
            triples, pairs, turns = (sliding_window_view(x, k) for x, k in ((nodes, 3), (walked, 2), (signs, 2)))
            found.append(Springs(triples, pairs, turns, np.ones_like(carried), carried))
    branching = np.bincount(edges.reshape(-1), minlength=n_nodes) > 2
    along = {frozenset(pair) for own in found for pair in own.edges[branching[own.nodes[:, 1]]].tolist()}
    first, *others = [*found, _meeting(n_nodes, edges, lambda e, f, n: n > 2 and frozenset((e, f)) not in along)]
    return first.joined(*others)


def find_joint_springs(n_nodes: int, edges: np.ndarray, first_joint_edge: int) -> Springs:
    """Return the springs with at least one joint edge: every such pair of edges that meets at a node, in node order.

    Parameters
    ----------
    edges : (E + J, 2) rod edges, then joint edges from index `first_joint_edge` on.
    """
    return _meeting(n_nodes, edges, lambda e, f, degree: max(e, f) >= first_joint_edge)


def _meeting(n_nodes: int, edges: np.ndarray, wanted: Callable[[int, int, int], bool]) -> Springs:
    """Return the springs of the edges (e, f) that meet at a node for which wanted(e, f, number of edges there)."""
    nodes, pairs, signs = [], [], []
    for centre, meeting in enumerate(_edges_at_nodes(n_nodes, edges)):
        for i, e in enumerate(meeting):
            for f in meeting[i + 1 :]:
                if wanted(e, f, len(meeting)):
                    nodes.append([edges[e].sum() - centre, centre, edges[f].sum() - centre])
                    pairs.append([e, f])
                    signs.append([1 if edges[e, 1] == centre else -1, 1 if edges[f, 0] == centre else -1])
    return Springs(
        np.array(nodes, dtype=np.int64).reshape(-1, 3),
        np.array(pairs, dtype=np.int64).reshape(-1, 2),
        np.array(signs, dtype=np.int64).reshape(-1, 2),
        np.zeros(len(pairs), dtype=bool),
        np.zeros(len(pairs), dtype=bool),
    )


def _edges_at_nodes(n_nodes: int, edges: np.ndarray) -> list[list[int]]:
    at_node: list[list[int]] = [[] for _ in range(n_nodes)]
    for index, (a, b) in enumerate(edges):
        at_node[a].append(index)
        at_node[b].append(index)
    return at_node


def _followers(n_nodes: int, edges: np.ndarray, going_on: np.ndarray) -> dict[tuple[int, int], int]:
    """Return the edge in which a rod goes on, by an edge and its node there."""
    pairs = [meeting for meeting in _edges_at_nodes(n_nodes, edges) if len(meeting) == 2] + going_on.tolist()
    follower = {}
    for e, f in pairs:
        (node,) = set(edges[e].tolist()) & set(edges[f].tolist())
        follower[e, node], follower[f, node] = f, e
    return follower


def _walk(follower: dict[tuple[int, int], int], edges: np.ndarray, first: int, node: int) -> list[tuple[int, int]]:
    """Return (edge, node reached) for a walk from `node`, away from edge `first`, to a rod's end or back to `first`."""
    steps = []
    edge = first
    while (edge, node) in follower:
        edge = follower[edge, node]
        node = int(edges[edge].sum() - node)
        steps.append((edge, node))
        if edge == first:
            break
    return steps
