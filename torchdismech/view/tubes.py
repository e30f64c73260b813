"""Rods as tubes: rings of vertices about the edges, joined at the nodes, with a stripe along the first director.

Where two edges meet, each ring is turned half-way towards the frame of the other edge and lies in the plane between
the two edges. Both edges then have the same ring there, so that the tube and its stripe are continuous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from torchdismech.geometry.frames import rotated, signed_angle, transported, unit

__all__ = ["Profile", "Tubes", "meeting_ends"]

ROUND_SIDES = 16  # of a round section, all alike; two of them are its stripe
FOLDED = 0.2  # 1 + cosine of the angle between two edges, below which their rings do not lean any more


@dataclass(frozen=True)
class Profile:
    """The outline of a section that reaches from -1 to 1 along both directors; `Tubes` scales it.

    Attributes
    ----------
    points : (K, 2) along the first and the second director.
    normals : (K, 2) out of the section; a corner is two points, one with the normal of each of its sides.
    dark : (K,) whether a point belongs to the stripe.
    sides : (Q, 2) the points that a side of the outline joins, counter-clockwise.
    """

    points: np.ndarray
    normals: np.ndarray
    dark: np.ndarray
    sides: np.ndarray

    @classmethod
    def round(cls) -> Profile:
        """Return a circle with a stripe about the first director."""
        side = 2 * np.pi / ROUND_SIDES
        stripe, rest = side * np.arange(-1, 2), side * np.arange(1, ROUND_SIDES)
        angles = np.concatenate([stripe, rest])
        points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        first = np.delete(np.arange(len(angles) - 1), len(stripe) - 1)  # none between stripe and rest
        return cls(points, points, np.arange(len(angles)) < len(stripe), np.stack([first, first + 1], axis=1))

    @classmethod
    def rectangle(cls) -> Profile:
        """Return a square whose side towards the first director is the stripe."""
        normals = np.repeat(np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]]), 2, axis=0)
        corners = np.array([[1.0, -1], [1, 1], [1, 1], [-1, 1], [-1, 1], [-1, -1], [-1, -1], [1, -1]])
        return cls(corners, normals, np.arange(8) < 2, np.arange(8).reshape(4, 2))


class Tubes:
    """Tubes around some edges of a robot: their triangles, which stay, and their vertices in any frame.

    Parameters
    ----------
    rod_edges : (E, 2) all rod edges of the robot.
    chosen : (M,) the edges that get a tube of this profile.
    profile : the outline of their sections.

    Attributes
    ----------
    faces : (F, 3) triangles, counter-clockwise seen from outside.
    node : (V,) the node to which each vertex belongs.
    dark : (V,) whether a vertex belongs to the stripe.
    """

    def __init__(self, rod_edges: np.ndarray, chosen: np.ndarray, profile: Profile):
        self._edges, self._chosen, self._profile = rod_edges, chosen, profile
        self._beyond, self._sign = _neighbours(rod_edges)
        self._capped = self._beyond[chosen] < 0  # (M, 2)
        points = len(profile.points)
        barrel = 2 * points * len(chosen)
        ends = np.argwhere(self._capped)
        self.faces = np.concatenate(
            [self._barrel_faces(len(chosen), points), self._cap_faces(barrel, ends[:, 1], points)]
        ).astype(np.int32)
        edges = rod_edges[chosen]  # (M, 2)
        self.node = np.concatenate([edges.repeat(points), edges[self._capped].repeat(points + 1)])
        self.dark = np.concatenate(
            [np.tile(profile.dark, 2 * len(chosen)), np.zeros(len(ends) * (points + 1), dtype=bool)]
        )

    def vertices(self, positions: np.ndarray, directors: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return vertices (..., V, 3) [m] and their unit normals for frames and robots at once.

        Parameters
        ----------
        positions : (..., N, 3) of the nodes [m].
        directors : (..., E, 3) first material directors of all rod edges.
        half : (..., M, 2) half of the sizes of the tubes' sections along both directors [m].
        """
        ends = positions[..., self._edges, :]
        edges = ends[..., 1, :] - ends[..., 0, :]
        length = np.linalg.norm(edges, axis=-1)
        tangents = edges / length[..., None]
        centres, tangent = ends[..., self._chosen, :, :], tangents[..., self._chosen, None, :]
        first, between = self._rings(tangents, directors)
        second = np.cross(np.broadcast_to(tangent, first.shape), first)
        profile, size = self._profile, half[..., None, None, :]
        flat = profile.points * size  # (..., M, 1, K, 2)
        offsets = flat[..., :1] * first[..., None, :] + flat[..., 1:] * second[..., None, :]
        normals = profile.normals[:, :1] * first[..., None, :] + profile.normals[:, 1:] * second[..., None, :]
        mitred = _mitred(offsets, tangent, between, np.minimum(2 * half.max(-1), length[..., self._chosen] / 2))
        rings = centres[..., None, :] + mitred  # (..., M, 2, K, 3)
        capped = self._capped
        outwards = np.broadcast_to(np.array([[-1.0], [1.0]]) * tangent, centres.shape)[..., capped, :]
        caps = np.concatenate([rings[..., capped, :, :], centres[..., capped, None, :]], axis=-2)
        lead = positions.shape[:-2]
        cap_normals = np.broadcast_to(outwards[..., None, :], caps.shape)
        return (
            np.concatenate([rings.reshape(*lead, -1, 3), caps.reshape(*lead, -1, 3)], axis=-2),
            np.concatenate([normals.reshape(*lead, -1, 3), cap_normals.reshape(*lead, -1, 3)], axis=-2),
        )

    def _rings(self, tangents: np.ndarray, directors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rings' first directors and the normals of their planes (not of unit length), both (..., M, 2, 3).

        The rings of an edge are at its start and at its end.
        """
        t, d = (
            torch.as_tensor(x[..., self._chosen, None, :].repeat(2, axis=-2), device="cpu")
            for x in (tangents, directors)
        )
        beyond = self._beyond[self._chosen]
        neighbour = torch.as_tensor(tangents[..., beyond, :] * self._sign[self._chosen][..., None], device="cpu")
        carried = transported(torch.as_tensor(directors[..., beyond, :], device="cpu"), neighbour, t)
        angle = 0.5 * signed_angle(d, carried, t)
        meets = torch.as_tensor(~self._capped, device="cpu") & ((t * neighbour).sum(-1) + 1 > FOLDED)
        first = unit(torch.where(meets[..., None], rotated(d, t, angle), d))
        return first.numpy(), torch.where(meets[..., None], t + neighbour, t).numpy()

    def _barrel_faces(self, count: int, points: int) -> np.ndarray:
        """Return the triangles between the two rings of each of `count` edges."""
        a, b = self._profile.sides.T
        quads = np.stack([a, b, b + points, a + points], axis=1)
        triangles = quads[:, [[0, 1, 2], [0, 2, 3]]].reshape(-1, 3)
        return (triangles + 2 * points * np.arange(count)[:, None, None]).reshape(-1, 3)

    def _cap_faces(self, first: int, side: np.ndarray, points: int) -> np.ndarray:
        """Return the triangles of the caps that close tubes at starts (side 0) and ends (side 1) of edges.

        `first` is the first vertex of the caps; each has its ring's `points` and then its centre.
        """
        a, b = self._profile.sides.T
        fan = np.stack([a, b, np.full(len(a), points)], axis=1)
        faces = np.where(side[:, None, None] == 1, fan, fan[:, ::-1])
        return (first + (points + 1) * np.arange(len(side))[:, None, None] + faces).reshape(-1, 3)


def _mitred(offsets: np.ndarray, tangent: np.ndarray, between: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Return the offsets (..., M, 2, K, 3) of the rings' vertices, moved along the edges into the rings' planes.

    Parameters
    ----------
    offsets : from the nodes, across the edges.
    tangent, between : (..., M, 1, 3) unit tangents of the edges, (..., M, 2, 3) normals of the rings' planes.
    most : (..., M) largest movement [m], which limits it at sharp bends.
    """
    shift = -(offsets * between[..., None, :]).sum(-1) / (tangent * between).sum(-1)[..., None]
    return offsets + np.clip(shift, -most[..., None, None], most[..., None, None])[..., None] * tangent[..., None, :]


def meeting_ends(edges: np.ndarray) -> np.ndarray:
    """Return pairs (P, 2) of ends of edges (E, 2), each 2 edge + side, at the nodes where exactly two edges meet."""
    nodes = edges.ravel()
    order = np.argsort(nodes, kind="stable")
    return order[np.bincount(nodes)[nodes[order]] == 2].reshape(-1, 2)


def _neighbours(rod_edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the neighbour beyond both ends of each edge, (E, 2), and its sense.

    An end has a neighbour where exactly two edges meet; else its number is -1. The sense is 1 if the neighbour runs the
    same way as the edge, and -1 if it runs the other way.
    """
    end, pairs = np.arange(rod_edges.size), meeting_ends(rod_edges)
    partner = np.full(len(end), -1)
    partner[pairs] = pairs[:, ::-1]
    beyond = np.where(partner >= 0, partner // 2, -1).reshape(-1, 2)
    sign = np.where(partner % 2 != end % 2, 1.0, -1.0).reshape(-1, 2)
    return beyond, sign
