"""Clamps of a robot under construction: the dofs that they fix, and the directions in which they hold rods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, listed, shown, warn
from torchdismech.geometry.checks import refuse_trained_shape
from torchdismech.geometry.frames import transported, unit
from torchdismech.geometry.topology import Held, Springs
from torchdismech.robot.body import Body, Clamp
from torchdismech.robot.plane import SLANTED
from torchdismech.robot.slides import Slides
from torchdismech.values import tensor_of

__all__ = [
    "ClampedNodes",
    "clamped_parts",
    "corners_of",
    "fixed_directions",
    "free_dofs",
    "held_at_rest",
    "held_by",
    "held_frames",
    "warn_of_directions_at_rest",
    "with_held_springs",
]

ALIKE = 1e-9  # rad: directions with a smaller angle between them count as linearly dependent
ROUNDING = 1e-12  # components of unit vectors that are no larger count as zero
# rad: beyond the angle that the rod's own curvature explains, a direction that is further off its edge causes a warning
CLOSE = 1e-2
NO_EDGE = "twist=False no edge; give axes or a direction, or leave the clamp out"
NO_TWIST = (
    "twist is that of edges whose two nodes are both in the clamp, of rods and of shells with bending 'midedge': there "
    "is none; give both nodes of an edge, axes or a direction"
)


@dataclass(frozen=True)
class ClampedNodes:
    """One call of `RobotBuilder.clamp`, with its arguments checked.

    Attributes
    ----------
    nodes : (N,) indices of the clamped nodes.
    fixed : (k, 3) unit vectors along which the nodes do not move, or (B, k, 3) if they differ from robot to robot.
    twist : whether angles of edges between these nodes are fixed, and, with a direction, the twist of rods there.
    directed : whether rods are held in a direction.
    tangent : (3,) this direction; None: each edge is held in its direction at rest.
    """

    nodes: np.ndarray
    fixed: np.ndarray
    twist: bool
    directed: bool
    tangent: np.ndarray | None

    @classmethod
    def of(cls, nodes: np.ndarray, fixed: np.ndarray, twist: bool, direction: object, planar: bool) -> ClampedNodes:
        """Return the clamp for a `direction` as users give it: None, "rest" or a vector (3,)."""
        at_rest = isinstance(direction, str) and direction == "rest"
        vector = None if direction is None or at_rest else _unit_vector("direction", direction, '"rest" or ')
        if planar and vector is not None and abs(vector[1]) > SLANTED:
            raise InputError(f"clamp.direction: a planar robot keeps to the x-z plane, got {vector.tolist()}")
        return cls(nodes, fixed, twist, direction is not None, vector)


def fixed_directions(axes: str | None, along: object, normal: object, planar: bool) -> np.ndarray:
    """Return the unit vectors (k, 3) or (B, k, 3) along which nodes are fixed, from arguments of `RobotBuilder.clamp`.

    More than one of axes, along and normal is refused, and vectors out of the plane of a planar robot.
    """
    names = [name for name, value in (("axes", axes), ("along", along), ("normal", normal)) if value is not None]
    if len(names) > 1:
        raise InputError(
            f"clamp: expected one of axes, along and normal, got {' and '.join(names)}; what several clamps of a node "
            "hold adds up"
        )
    if along is None and normal is None:
        axes = "xyz" if axes is None else axes
        if not (isinstance(axes, Iterable) and all(axis in ("x", "y", "z") for axis in axes)):
            raise InputError(f"clamp.axes: expected a subset of 'xyz', got {axes!r}")
        return np.eye(3)[["xyz".index(axis) for axis in axes]]
    vectors = _unit_vectors(names[0], normal if along is None else along)
    if planar and (np.abs(vectors[..., 1]) > SLANTED).any():
        raise InputError(f"clamp.{names[0]}: a planar robot keeps to the x-z plane, got {vectors.tolist()}")
    vectors = np.where([False, planar, False], 0.0, vectors)
    lines = vectors[..., None, :]
    if along is None:
        return lines
    return _complement(lines) if lines.ndim == 2 else np.stack([_complement(own) for own in lines])


def _along_axes(vectors: np.ndarray) -> np.ndarray:
    """Return a mask (k,) of the vectors (k, 3) along x, y or z; False for all that are given per robot, (B, k, 3)."""
    return (vectors != 0).sum(1) == 1 if vectors.ndim == 2 else np.zeros(vectors.shape[1], dtype=bool)


def _complement(vectors: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis (3 - r, 3) of the directions normal to all vectors (k, 3), which have rank r."""
    _, size, axes = np.linalg.svd(np.concatenate([vectors, np.zeros((3, 3))]))
    return axes[size <= ALIKE]


def corners_of(box: object) -> np.ndarray:
    """Return a box of `clamp` as an array of its lower and upper corner, (2, 3)."""
    corners = _array("box", box)
    if corners.shape != (2, 3):
        raise InputError(f"clamp.box: expected its two corners (min, max), (3,) each, got {shown(box)}")
    return corners


def _unit_vector(name: str, given: object, other: str = "") -> np.ndarray:
    vector = _array(name, given)
    largest = float(np.abs(vector).max()) if vector.shape == (3,) else 0.0
    if not (np.isfinite(largest) and largest > 0):
        raise InputError(f"clamp.{name}: expected {other}a vector (3,) other than zero, got {given!r}")
    vector = vector / largest  # so that no square overflows
    return vector / np.linalg.norm(vector)


def _unit_vectors(name: str, given: object) -> np.ndarray:
    """Return an argument of `clamp` as a unit vector (3,), or as one for each robot (B, 3)."""
    rows = _array(name, given)
    if rows.ndim != 2 or not len(rows):
        return _unit_vector(name, given)
    return np.stack([_unit_vector(f"{name}[{robot}]", row) for robot, row in enumerate(rows)])


def _array(name: str, given: object) -> np.ndarray:
    """Return an argument of `clamp` as an array of floats, an empty one where it is not made of numbers."""
    refuse_trained_shape(given, f"clamp.{name}")
    try:
        return np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        return np.zeros(0)


def held_by(clamps: Sequence[ClampedNodes], rod_edges: np.ndarray) -> Held:
    """Return the rod edges (E, 2) that clamps hold in a direction, sorted by clamp, node and edge.

    A node without rods is refused, and a node that two clamps hold in a direction.
    """
    directed = [(k, node) for k, clamp in enumerate(clamps) if clamp.directed for node in clamp.nodes.tolist()]
    at_node = {node: np.flatnonzero((rod_edges == node).any(1)).tolist() for _, node in directed}
    if len(at_node) < len(directed):
        nodes = [node for _, node in directed]
        twice = next(node for node in nodes if nodes.count(node) > 1)
        raise InputError(f"clamp.direction: node {twice} is held in a direction by two clamps")
    for node, edges in at_node.items():
        if not edges:
            raise InputError(
                f"clamp.direction: no rod ends at or passes node {node}: it has no direction; a shell is clamped along "
                "a side by holding the side's nodes without a direction (docs/shells.md)"
            )
    held = [(node, edge, rod_edges[edge, 0] == node, k) for k, node in directed for edge in at_node[node]]
    columns = np.array(held, dtype=np.int64).reshape(-1, 4).T
    return Held(columns[0], columns[1], columns[2].astype(bool), columns[3])


def held_at_rest(held: Held, clamps: Sequence[ClampedNodes]) -> np.ndarray:
    """Return a mask (H,) of the held edges that a clamp holds in their direction at rest, not along a given vector."""
    return np.array([clamps[k].tangent is None for k in held.clamps.tolist()], dtype=bool)


def held_frames(
    held: Held, clamps: Sequence[ClampedNodes], rod_edges: np.ndarray, directors: Tensor, nodes: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the tangents and directors (H, 3) in which clamps hold rods; refuse one that is 90 degrees off its edge.

    Parameters
    ----------
    rod_edges, directors : of all rod edges, (E, 2) and (E, 3).
    """
    along = unit(nodes[rod_edges[held.edges, 1]] - nodes[rod_edges[held.edges, 0]])
    tangents = along.clone()
    for k, clamp in enumerate(held.clamps.tolist()):
        direction = clamps[clamp].tangent
        if direction is not None:
            tangents[k] = tensor_of(direction).to(along)
    cosine = (tangents * along).sum(-1)
    if bool((cosine <= 0).any()):
        k = int((cosine <= 0).nonzero()[0])
        raise InputError(
            f"clamp.direction: expected one within 90 degrees of edge {held.edges[k]}, which goes from node "
            f"{rod_edges[held.edges[k], 0]} to {rod_edges[held.edges[k], 1]} along {along[k].tolist()}, got "
            f"{tangents[k].tolist()}"
        )
    turned = [transported(directors[e], along[k], tangents[k]) for k, e in enumerate(held.edges.tolist())]
    return tangents, torch.stack(turned) if turned else along


def warn_of_directions_at_rest(
    held: Held, unchecked: np.ndarray, tangents: Tensor, rod_edges: np.ndarray, springs: Springs, nodes: Tensor
) -> None:
    """Warn of clamp directions that differ from the rod as built, where the shape as built is the rest shape.

    Such a direction does not bend the rod, as it is a part of the rest shape. A curved rod explains some difference:
    from a node to the middle of an edge it turns by about half of the angle between neighbouring edges. No warning is
    given up to the whole of that angle.

    Parameters
    ----------
    unchecked : (H,) held edges that are not checked: no vector is given, or the rod is naturally straight.
    tangents : (H, 3) in which rods are held.
    springs : the robot's springs between edges, without those of held tangents.
    """
    if unchecked.all():
        return
    before, at, after = nodes[springs.nodes[springs.along_rod]].unbind(1)
    turns, edges_of_springs = _angles(at - before, after - at), springs.edges[springs.along_rod]
    first, last = nodes[rod_edges[held.edges]].unbind(1)
    angles = _angles(last - first, tangents)
    for k in np.flatnonzero(~unchecked).tolist():
        turns_of_edge = turns[(edges_of_springs == held.edges[k]).any(1)]
        if float(angles[k]) > CLOSE + (float(turns_of_edge.max()) if len(turns_of_edge) else 0.0):
            warn(
                f"clamp.direction: at node {held.nodes[k]} it is {math.degrees(angles[k]):.3g} degrees off edge "
                f"{held.edges[k]}, of a rod whose rest shape is as built (natural='initial'). A direction is the "
                "tangent of the rest shape there, so this one bends nothing. To point the rod, add it with "
                "natural='straight' or turn the clamp by Control.pose; else give direction='rest'",
                RuntimeWarning,
            )


def _angles(first: Tensor, second: Tensor) -> Tensor:
    """Return the angles (k,) between vectors (k, 3)."""
    across = torch.linalg.vector_norm(torch.linalg.cross(first, second), dim=-1)
    return torch.atan2(across, (first * second).sum(-1))


def with_held_springs(springs: Springs, held: Held, rod_edges: np.ndarray, first: int) -> Springs:
    """Return the springs followed by those of held tangents; `first` is the framed-edge index of the first tangent.

    Springs between rod edges at a held node are left out, as all rod edges there are held on their own.
    """
    between_rods = (springs.edges < len(rod_edges)).all(1)
    bent = springs.selected(~(between_rods & np.isin(springs.nodes[:, 1], held.nodes)))
    return bent.joined(held.springs(rod_edges, first))


def clamped_parts(clamps: Sequence[ClampedNodes], framed_edges: np.ndarray, held: Held) -> list[Clamp]:
    """Return each clamp's nodes, the framed edges (of A - H, 2, then held tangents) whose angle it fixes, its tangents.

    A clamp that holds nothing is refused.
    """
    parts = []
    for k, clamp in enumerate(clamps):
        held_here = np.flatnonzero(held.clamps == k)
        between = np.flatnonzero(np.isin(framed_edges, clamp.nodes).all(1))
        framed = np.concatenate([between, len(framed_edges) + held_here]) if clamp.twist else held_here[:0]
        if not (clamp.fixed.shape[-2] or len(framed) or len(held_here)):
            named = f"clamp: number {k}, of the nodes {listed(clamp.nodes.tolist())}, holds nothing"
            raise InputError(f"{named}: axes='' is no place, and {NO_TWIST if clamp.twist else NO_EDGE}")
        placed = clamp.nodes if clamp.fixed.shape[-2] else clamp.nodes[:0]
        parts.append(Clamp(clamp.nodes, placed, framed, held_here))
    return parts


def free_dofs(body: Body, clamps: Sequence[ClampedNodes], planar: bool) -> tuple[np.ndarray, Slides]:
    """Return a mask (n,) of the free dofs, and the nodes that slide along lines or in planes oblique to the axes."""
    first_angle = 3 * body.n_nodes
    free = np.ones(body.n_dofs, dtype=bool)
    free[body.first_held :] = False
    for clamp, part in zip(clamps, body.clamps, strict=True):
        for axis in np.flatnonzero(clamp.fixed[..., _along_axes(clamp.fixed), :].reshape(-1, 3).any(0)):
            free[3 * clamp.nodes + axis] = False
        free[first_angle + part.framed] = False
    if planar:
        free[1:first_angle:3] = False
        free[first_angle:] = False
    oblique = [clamp for clamp in clamps if not _along_axes(clamp.fixed).all()]
    nodes = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(clamp.nodes for clamp in oblique)]))
    dofs = 3 * nodes[:, None] + np.arange(3)
    robots = _robots(oblique)
    allowed = np.zeros((*robots, len(nodes), 3, 3))
    for k, node in enumerate(nodes):
        fixed = [clamp.fixed for clamp in oblique if node in clamp.nodes]
        allowed[..., k, :, :] = _allowed(fixed, np.eye(3)[~free[dofs[k]]], robots, int(node))
    free[dofs] = allowed.any(axis=(*range(len(robots)), -2))
    return free, _slides(nodes, allowed, body.nodes.dtype)


def _slides(nodes: np.ndarray, allowed: np.ndarray, dtype: torch.dtype) -> Slides:
    """Return those of the nodes (N,) whose motion fixed components alone cannot express, as `Slides`.

    Parameters
    ----------
    allowed : (N, 3, 3) or (B, N, 3, 3) projections onto the directions in which each node may move.
    """
    sliding = (allowed * (1 - np.eye(3))).any(axis=(-2, -1))
    if allowed.ndim == 4:
        sliding = sliding.any(0) | np.ptp(allowed, axis=0).any(axis=(1, 2))
    return Slides(nodes[sliding], allowed[..., sliding, :, :], dtype)


def _robots(clamps: Sequence[ClampedNodes]) -> tuple[int, ...]:
    """Return (B,) if some clamps have directions for each of B robots, () if all are the same for every robot."""
    counts = {len(clamp.fixed) for clamp in clamps if clamp.fixed.ndim == 3}
    if len(counts) > 1:
        raise InputError(
            f"clamp: directions of {' and of '.join(map(str, sorted(counts)))} robots are in one robot's clamps"
        )
    return tuple(counts)


def _allowed(fixed: list[np.ndarray], axes: np.ndarray, robots: tuple[int, ...], node: int) -> np.ndarray:
    """Return the projection (3, 3) or (B, 3, 3) onto the directions in which clamps let a node move.

    Parameters
    ----------
    fixed : for each oblique clamp the directions that it holds, (k, 3) or (B, k, 3).
    axes : (k, 3) unit vectors of the components that are fixed by other clamps.
    """
    projections = []
    for robot in range(*robots or (1,)):
        moves = _complement(np.concatenate([*(own if own.ndim == 2 else own[robot] for own in fixed), axes]))
        moves[np.abs(moves) <= ROUNDING] = 0.0
        projections.append(moves.T @ moves)
    ranks = {round(float(np.trace(projection))) for projection in projections}
    if len(ranks) > 1:
        raise InputError(
            f"clamp: node {node} moves in {' or '.join(map(str, sorted(ranks)))} directions, from robot to robot; "
            "expected as many in each"
        )
    return np.stack(projections) if robots else projections[0]
