"""Chains of markers with branches: their edges, their shape at rest, and frames that are carried through them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.geometry.frames import first_director, signed_angle, transported, unit
from training.data import Recordings

__all__ = ["Tree", "horizontal"]


@dataclass(frozen=True)
class Tree:
    """A chain of nodes 0, 1, 2, ... with branches, and its shape at rest.

    Attributes
    ----------
    edges : (E, 2) long: those of the chain, then those of the branches; each begins at a node that is reached before.
    length : (E,) of the edges [m].
    angle : (E,) between an edge and the one before it [rad]: not zero only where branches begin.
    azimuth : (E,) side to which an edge stands off: angle about the edge before it, from that one's director [rad].
    """

    edges: Tensor
    length: Tensor
    angle: Tensor
    azimuth: Tensor

    @classmethod
    def chain(cls, length: Tensor) -> Tree:
        """Return a straight chain of edges with lengths (E,) [m]."""
        ends = torch.arange(1, len(length) + 1, device="cpu")
        return cls(torch.stack([ends - 1, ends], dim=1), length, torch.zeros_like(length), torch.zeros_like(length))

    @classmethod
    def measured(cls, recordings: Recordings) -> Tree:
        """Return the tree of recordings, straight but where branches begin.

        Lengths, and the angles at which branches stand off, are medians over all frames in which the markers were seen.
        The side to which a branch stands off is measured in the first frames, relative to the first branch.
        """
        edges, x = recordings.rod_edges, recordings.positions
        seen = recordings.valid[:, :, edges].all(-1)
        vector = x[:, :, edges[:, 1]] - x[:, :, edges[:, 0]]
        length = _medians(torch.linalg.vector_norm(vector, dim=-1), seen)
        tree = cls(edges, length, torch.zeros_like(length), torch.zeros_like(length))
        if not tree.branches:
            return tree
        begun, before = tree.branches, tree.before
        tangent = unit(vector)
        apart = torch.linalg.cross(tangent[:, :, before], tangent)
        angles = torch.atan2(torch.linalg.vector_norm(apart, dim=-1), (tangent[:, :, before] * tangent).sum(-1))
        angle, azimuth = torch.zeros_like(length), torch.zeros_like(length)
        angle[begun] = _medians(angles, seen & seen[:, :, before])[begun]
        sides = tree.sides(tangent[:, 0], tree.carried(horizontal(tangent[:, 0, 0]), tangent[:, 0], 0))
        relative = sides - sides[:, :1]
        azimuth[begun] = torch.atan2(relative.sin().mean(0), relative.cos().mean(0))
        return cls(edges, length, angle, azimuth)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.edges) + 1

    @property
    def trunk(self) -> int:
        """Number of edges of the chain."""
        ends = torch.arange(1, self.nodes, device="cpu")
        return int(((self.edges == torch.stack([ends - 1, ends], dim=1)).all(1)).long().cumprod(0).sum())

    @property
    def before(self) -> list[int]:
        """For each edge the edge that leads to its first node; edge 0 for edges that begin at node 0."""
        leads = {end: k for k, end in enumerate(self.edges[:, 1].tolist())}
        return [leads.get(start, 0) for start in self.edges[:, 0].tolist()]

    @property
    def branches(self) -> list[int]:
        """The edges with which branches begin: where an edge does not go on from the one stored before it."""
        goes_on = self.edges[1:, 0] == self.edges[:-1, 1]
        return (torch.nonzero(~goes_on).flatten() + 1).tolist()

    def tangents(self, x: Tensor) -> Tensor:
        """Return the directions (..., E, 3) of the edges between nodes (..., N, 3)."""
        return unit(x[..., self.edges[:, 1], :] - x[..., self.edges[:, 0], :])

    def lengths(self, x: Tensor) -> Tensor:
        """Return the lengths (..., E) of the edges between nodes (..., N, 3)."""
        return torch.linalg.vector_norm(x[..., self.edges[:, 1], :] - x[..., self.edges[:, 0], :], dim=-1)

    def places(self, length: Tensor) -> Tensor:
        """Return the arc lengths of the edges along the chain (..., E) [m], for lengths (..., E).

        That of an edge of the chain is its middle's; edges of a branch have that of the chain's edge that leads to it.
        """
        middle = length[..., : self.trunk].cumsum(-1) - 0.5 * length[..., : self.trunk]
        return torch.stack([middle[..., k] for k in self._trunk_edges()], dim=-1)

    def carried(self, director: Tensor, tangent: Tensor, first: int) -> Tensor:
        """Return directors (..., E, 3) carried along tangents by parallel transport, from that of an edge `first`.

        `first` is an edge of the chain; branches take theirs from the edge that leads to them.
        """
        found: dict[int, Tensor] = {first: director}
        for k in range(first + 1, self.trunk):
            found[k] = transported(found[k - 1], tangent[..., k - 1, :], tangent[..., k, :])
        for k in range(first - 1, -1, -1):
            found[k] = transported(found[k + 1], tangent[..., k + 1, :], tangent[..., k, :])
        before = self.before
        for k in range(self.trunk, len(self.edges)):
            found[k] = transported(found[before[k]], tangent[..., before[k], :], tangent[..., k, :])
        return torch.stack([found[k] for k in range(len(self.edges))], dim=-2)

    def sides(self, tangent: Tensor, director: Tensor) -> Tensor:
        """Return the azimuths (..., branches) [rad] at which branches begin, about the edges before them."""
        begun = self.branches
        before = [self.before[k] for k in begun]
        t, away = tangent[..., before, :], tangent[..., begun, :]
        across = away - t * (t * away).sum(-1, keepdim=True)
        return signed_angle(director[..., before, :], across, t)

    def rolled(self, tangent: Tensor, director: Tensor, edges: list[int]) -> Tensor:
        """Return the angles (..., H) [rad] from directors (..., E, 3) to the true ones at `edges`, as branches show.

        A branch with another azimuth than at rest shows how far its edge of the chain is turned about itself; between
        branches the angle is linear along the chain, beyond them constant. Without branches it is zero.
        """
        begun = self.branches
        if not begun:
            return tangent.new_zeros(*tangent.shape[:-2], len(edges))
        off = self.sides(tangent, director) - self.azimuth[begun].to(tangent)
        off = torch.atan2(off[..., :1].sin(), off[..., :1].cos()) + _wrapped(off - off[..., :1])
        place = self.places(self.length)
        order = sorted(range(len(begun)), key=lambda k: float(place[begun[k]]))
        knots = [float(place[begun[k]]) for k in order]
        return torch.stack([_between(float(place[k]), knots, off[..., order]) for k in edges], dim=-1)

    def shape(self) -> tuple[Tensor, Tensor]:
        """Return nodes (N, 3) and directors (E, 3) at rest, the chain along x."""
        nodes = self.length.new_zeros(self.nodes, 3)
        tangent, director = self.length.new_zeros(2, len(self.edges), 3)
        x = self.length.new_tensor([1.0, 0.0, 0.0])
        for k, (start, end) in enumerate(self.edges.tolist()):
            t, d = (tangent[self.before[k]], director[self.before[k]]) if k else (x, first_director(x))
            turn, side = self.angle[k], self.azimuth[k]
            away = side.cos() * d + side.sin() * torch.linalg.cross(t, d)
            tangent[k] = turn.cos() * t + turn.sin() * away
            director[k] = transported(d, t, tangent[k])
            nodes[end] = nodes[start] + self.length[k] * tangent[k]
        return nodes, director

    def _trunk_edges(self) -> list[int]:
        """Return for each edge itself, if it is of the chain, else the edge of the chain that leads to its branch."""
        found: list[int] = []
        for k, before in enumerate(self.before):
            found.append(k if k < self.trunk else found[before])
        return found


def horizontal(tangent: Tensor) -> Tensor:
    """Return a horizontal unit vector normal to each tangent (K, 3); any normal one where the tangent is upright."""
    across = torch.linalg.cross(tangent, tangent.new_tensor([0.0, 0.0, -1.0]).expand_as(tangent))
    upright = torch.linalg.vector_norm(across, dim=-1, keepdim=True) < 1e-6
    return unit(torch.where(upright, first_director(tangent), across))


def _medians(values: Tensor, seen: Tensor) -> Tensor:
    """Return medians (E,) of values (K, T, E) over the frames in which they were seen."""
    return torch.where(seen, values, torch.nan).flatten(0, 1).nanmedian(0).values


def _wrapped(angle: Tensor) -> Tensor:
    return torch.atan2(angle.sin(), angle.cos())


def _between(place: float, knots: list[float], values: Tensor) -> Tensor:
    """Return values (..., knots) at a place: linear between the knots, constant beyond."""
    if place <= knots[0]:
        return values[..., 0]
    for k in range(1, len(knots)):
        if place <= knots[k]:
            return torch.lerp(values[..., k - 1], values[..., k], (place - knots[k - 1]) / (knots[k] - knots[k - 1]))
    return values[..., -1]
