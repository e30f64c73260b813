"""Which `SelfContact` rules which pairs of a robot's parts, by the names of rods and shells and by connectivity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchdismech.errors import InputError
from torchdismech.geometry.graphs import connected_parts
from torchdismech.robot.body import Body

__all__ = ["Scope", "RuledPairs", "ruled_pairs"]


@dataclass(frozen=True)
class Scope:
    """The pairs of pieces that a contact is meant for, as the user asked for them.

    A *piece* is a connected set of rod edges or triangles with the same name, or without one.

    Attributes
    ----------
    label : how messages call the contact.
    between : the names of the pieces that touch each other; None for all.
    themselves : whether a piece touches itself, too.
    """

    label: str
    between: tuple[str, str] | None
    themselves: bool


@dataclass(frozen=True)
class RuledPairs:
    """The pairs of edges, nodes and triangles that a contact rules, by their kinds.

    The *kind* of a primitive is the set of pieces to which it belongs, as a number; a node may belong to several.

    Attributes
    ----------
    edge_kinds, node_kinds, triangle_kinds : the kind of each of the body's links (L,), nodes (N,) and triangles (F,).
    kind_pairs : (U, U) bool, symmetric: the pairs of kinds that the contact rules.
    """

    edge_kinds: np.ndarray
    node_kinds: np.ndarray
    triangle_kinds: np.ndarray
    kind_pairs: np.ndarray

    @classmethod
    def whole(cls, body: Body) -> RuledPairs:
        """Return the pairs of a contact that rules everything."""
        edge_kinds, node_kinds, triangle_kinds = (
            np.zeros(count, dtype=np.int64) for count in (len(body.links), body.n_nodes, len(body.triangles))
        )
        return cls(edge_kinds, node_kinds, triangle_kinds, np.ones((1, 1), dtype=bool))


def ruled_pairs(body: Body, scopes: Sequence[Scope]) -> list[RuledPairs]:
    """Return the pairs that each contact rules, so that no pair is ruled by two of them.

    Contacts that name parts come first; the contact that names none gets all pairs that are left. A node or a side of a
    triangle may belong to several pieces, where these are joined; its pairs go to the first contact that rules a pair
    of one of these pieces.

    Raises
    ------
    InputError
        A name that no part has; two contacts for the same parts; a contact for which no pairs are left.
    """
    if len(scopes) < 2 and all(scope.between is None and scope.themselves for scope in scopes):
        return [RuledPairs.whole(body) for _ in scopes]
    pieces = _Pieces(body)
    named = [k for k, scope in enumerate(scopes) if scope.between is not None]
    order = named + [k for k, scope in enumerate(scopes) if scope.between is None]
    meant = {k: pieces.meant(scopes[k]) for k in order}
    _refuse_twice(scopes, meant)
    ruled_pieces = np.zeros((len(pieces.name), len(pieces.name)), dtype=bool)
    ruled_kinds = np.zeros((len(pieces.kinds), len(pieces.kinds)), dtype=bool)
    ruled: dict[int, RuledPairs] = {}
    for k in order:
        rest = meant[k] & ~ruled_pieces
        if not rest.any():
            raise InputError(f"{scopes[k].label}: there is nothing that may touch by it; leave it out")
        kind_pairs = pieces.of_kinds(rest) & ~ruled_kinds
        ruled_pieces, ruled_kinds = ruled_pieces | rest, ruled_kinds | kind_pairs
        ruled[k] = RuledPairs(pieces.edge_kinds, pieces.node_kinds, pieces.triangle_kinds, kind_pairs)
    return [ruled[k] for k in range(len(scopes))]


def _refuse_twice(scopes: Sequence[Scope], meant: dict[int, np.ndarray]) -> None:
    """Refuse two contacts for the same pair of pieces, if both name parts or neither does."""
    for k, scope in enumerate(scopes):
        for j, other in enumerate(scopes[:k]):
            if (scope.between is None) == (other.between is None) and (meant[k] & meant[j]).any():
                raise InputError(f"{scope.label}: {other.label} rules how these parts touch already; keep one of them")


class _Pieces:
    """The pieces of a robot, and to which of them its edges, nodes and triangles belong.

    Attributes
    ----------
    names : the names of the robot's parts.
    name : (P,) number of each piece's name among these, -1 without a name.
    kinds : (U, P) bool: the set of pieces that each kind stands for.
    edge_kinds, node_kinds, triangle_kinds : the kind of each link (L,), node (N,) and triangle (F,).
    """

    def __init__(self, body: Body):
        self.names = body.part_names.names
        rods, faces = body.rod_edges, body.triangles
        numbers = np.concatenate([body.part_names.edges, body.part_names.triangles])
        nodes = np.concatenate([rods, faces[:, :2], faces[:, 1:]])  # two sides are enough to connect a triangle's nodes
        elements = np.concatenate([np.arange(len(rods)), *2 * [len(rods) + np.arange(len(faces))]])
        piece = _connected(body.n_nodes, nodes, numbers[elements])[: len(numbers)]
        self.name = np.zeros(piece.max() + 1, dtype=np.int64)
        self.name[piece] = numbers
        of_rods, of_faces = piece[: len(rods)], piece[len(rods) :]
        tables = [
            self._table(len(rods), (np.arange(len(rods))[:, None], of_rods)),
            self._table(len(body.surface.edges), (body.surface.sides, of_faces)),
            self._table(body.n_nodes, (rods, of_rods), (faces, of_faces)),
            self._table(len(faces), (np.arange(len(faces))[:, None], of_faces)),
        ]
        self.kinds, kind = np.unique(np.concatenate(tables), axis=0, return_inverse=True)
        of_each = np.split(kind.reshape(-1), np.cumsum([len(table) for table in tables])[:-1])
        self.edge_kinds, self.node_kinds, self.triangle_kinds = np.concatenate(of_each[:2]), of_each[2], of_each[3]

    def _table(self, count: int, *members: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Return the membership (count, P) bool of primitives in pieces.

        Parameters
        ----------
        count : number of primitives.
        members : for kinds of elements, the primitives (M, k) that each has, and its piece (M,).
        """
        table = np.zeros((count, len(self.name)), dtype=bool)
        for elements, piece in members:
            table[elements, piece[:, None]] = True
        return table

    def meant(self, scope: Scope) -> np.ndarray:
        """Return the pairs of pieces (P, P) bool that a contact is meant for."""
        pairs = np.ones((len(self.name), len(self.name)), dtype=bool)
        if scope.between is not None:
            first, second = (self.name == self._number(scope, name) for name in scope.between)
            pairs = np.outer(first, second) | np.outer(second, first)
        if not scope.themselves:
            np.fill_diagonal(pairs, False)
        return pairs

    def _number(self, scope: Scope, name: str) -> int:
        if name not in self.names:
            has = (
                ", ".join(map(repr, self.names))
                or "none: give add_rod, add_rods or add_shell a name, in scenes [rod] or [shell]"
            )
            raise InputError(f"{scope.label}.between: the robot has no part named {name!r}; it has {has}")
        return self.names.index(name)

    def of_kinds(self, pieces: np.ndarray) -> np.ndarray:
        """Return the pairs of kinds (U, U) bool that have pieces among the pairs `pieces` (P, P) bool."""
        return self.kinds @ pieces @ self.kinds.T  # products of bool arrays say whether there is any


def _connected(count: int, nodes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the number (K,) of the piece of each link: links that are connected by links of their name are one piece.

    Parameters
    ----------
    count : number of nodes.
    nodes : (K, 2) of the links.
    numbers : (K,) number of each link's name, -1 without one.
    """
    place = (numbers[:, None] + 1) * count + nodes
    size = (int(numbers.max()) + 2) * count
    label = connected_parts(size, place)[place[:, 0]]
    return np.unique(label, return_inverse=True)[1].reshape(-1)
