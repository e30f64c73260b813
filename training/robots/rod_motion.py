"""The motion of a rod from its markers: twist of its held edges, state at a start, schedule of its gripped nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech import Control, Model, State
from torchdismech.geometry.frames import rotated, signed_angle, transported, unit
from training.data.windows import frames_about
from training.robots.trees import Tree, horizontal

__all__ = ["HeldMotion", "HeldTwist", "held_edges", "held_twist", "rod_state"]


def _leading(model: Model) -> list[int]:
    """Return for each held tangent (H) of the model the gripped edge of the chain that gives its direction."""
    if not model.body.n_held:
        return []
    gripped = set(model.body.clamps[0].nodes.tolist())
    return [node - 1 if node - 1 in gripped else node for node in model.body.held.nodes.tolist()]


@dataclass(frozen=True)
class HeldTwist:
    """The rotation of a chain's held edges about themselves.

    Markers of a chain do not show it. So the rod is taken to be untwisted at the first frame of a recording, and not to
    be rolled by those who hold it: a held edge then carries its frame along by parallel transport in time, which twists
    the rod between two held edges. With branches the rotation in the first frame is measured: see `Tree.rolled`.

    Attributes
    ----------
    director : (..., 3) of the first held edge (of the first edge where none is held).
    angle : (..., H) by which each held edge is turned against the frame carried along the chain from the first [rad].
    """

    director: Tensor
    angle: Tensor

    def at(self, recording: Tensor, frame: Tensor) -> HeldTwist:
        """Return the rotations of some recordings (B,) at some frames (B,)."""
        return HeldTwist(self.director[recording, frame], self.angle[recording, frame])


def held_edges(model: Model) -> list[int]:
    """Return the edges of a chain whose angle of twist is clamped."""
    first = 3 * model.body.n_nodes
    return (~model.free[first : first + model.body.n_edges]).nonzero().flatten().tolist()


def held_twist(positions: Tensor, held: list[int], tree: Tree) -> HeldTwist:
    """Return the rotations of the held edges at all frames of recordings (K, T, N, 3), which must have no gaps.

    At the first frame the director of the first held edge is horizontal, or turned from there as branches tell.
    """
    tangent, edges = tree.tangents(positions), held or [0]
    first = edges[0]
    along = tree.carried(horizontal(tangent[:, 0, first]), tangent[:, 0], first)
    roll = tree.rolled(tangent[:, 0], along, edges)
    directors = rotated(along[:, edges], tangent[:, 0, edges], roll)
    history = [directors]
    for k in range(1, positions.shape[1]):
        before, now = (tangent[:, j][:, edges] for j in (k - 1, k))
        directors = unit(transported(directors, before, now))
        history.append(directors)
    in_time = torch.stack(history, dim=1)  # (K, T, H, 3)
    along = tree.carried(in_time[:, :, 0], tangent, first)[:, :, edges]
    angle = signed_angle(along, in_time, tangent[:, :, edges])
    steps = angle.diff(dim=1)
    jumps = (2 * torch.pi * torch.round(steps / (2 * torch.pi))).cumsum(1)
    angle = torch.cat([angle[:, :1], angle[:, 1:] - jumps], dim=1)
    return HeldTwist(in_time[:, :, 0], angle)


def rod_state(model: Model, first: Tensor, second: Tensor, dt: float, twist: HeldTwist, tree: Tree) -> State:
    """Return the state at the second of two frames (B, N, 3) [m], `dt` [s] apart, at the mean velocity between them.

    `twist` (B, ...) is that at the first frame. The angle is interpolated linearly between held edges, and branches are
    turned as the chain is where they begin.
    """
    tangent, held, leading = tree.tangents(first), held_edges(model), _leading(model)
    theta = _between(twist.angle, tree.places(tree.lengths(first)), held)
    theta = torch.cat([theta, theta[:, leading]], dim=1)
    state = model.initial_state(q=_placed(first, theta, leading)).detach()
    director = tree.carried(twist.director, tangent, held[0] if held else 0)
    frames = {"director": director, "tangent": tangent}
    state = state.replace(**{name: torch.cat([own, own[:, leading]], dim=1) for name, own in frames.items()})
    rest = model.rest_state(len(first)).reference_twist  # up to half a turn at branches: angles count from there
    beyond = model.frames.reference_twist(state.tangent, state.director) - rest
    state = state.replace(reference_twist=rest + torch.atan2(beyond.sin(), beyond.cos()))
    velocity = torch.zeros_like(state.q)
    velocity[:, : 3 * model.body.n_nodes] = ((second - first) / dt).flatten(1)
    return model.frames.moved(state, _placed(second, theta, leading)).replace(velocity=velocity)


def _placed(x: Tensor, theta: Tensor, leading: list[int]) -> Tensor:
    """Return q (..., n) from nodes (..., N, 3), angles (..., A) and the edges `leading` (H) along held tangents."""
    edges = torch.tensor(leading, dtype=torch.long, device=x.device)
    along = unit(x[..., edges + 1, :] - x[..., edges, :])
    return torch.cat([x.flatten(-2), theta, along.flatten(-2)], dim=-1)


def _between(angle: Tensor, place: Tensor, held: list[int]) -> Tensor:
    """Return angles (B, E) at places (B, E) along the chain: linear between the held edges, constant beyond."""
    theta = torch.zeros_like(place)
    for k, edge in enumerate(held[1:]):
        before = held[k]
        share = (place - place[:, before, None]) / (place[:, edge, None] - place[:, before, None])
        theta = theta + share.clamp(0, 1) * (angle[:, k + 1] - angle[:, k])[:, None]
    return theta


class HeldMotion:
    """The schedule that moves clamped nodes as in frames, linearly in time between them.

    `ahead`: it may be asked before the steps are taken, as the time alone decides.

    Parameters
    ----------
    positions : (B, T, N, 3) of the nodes at the frames [m]; those that are not clamped are not read.
    theta : (B, A) twist angles that held edges and tangents keep.
    dt : time from one frame to the next [s]; the first is at time 0.
    """

    ahead = True

    def __init__(self, model: Model, positions: Tensor, theta: Tensor, dt: float):
        angles = theta[:, None].expand(-1, positions.shape[1], -1)
        self._q, self._dt = _placed(positions, angles, _leading(model)), dt

    def __call__(self, time: Tensor, model: Model) -> Control:
        """Return the control with the clamped dofs at the times (B,), all equal but for robots that stopped before."""
        before, after, share = frames_about(float(time.max()), self._dt, self._q.shape[1])
        q, later = self._q[:, before], self._q[:, after]
        return Control(clamped_q=q + share * (later - q) if share else q)
