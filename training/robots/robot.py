"""From recordings of a chain of markers, perhaps with branches, to rods that are simulated between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Model,
    Newmark,
    RobotBuilder,
    State,
    forces,
)
from torchdismech.elastic import Dahl, LinearElastic
from torchdismech.geometry.frames import rotated, signed_angle, transported, unit
from torchdismech.integrate.integrator import Schedule
from torchdismech.robot.materials import Number
from training.config import Robot, Simulation
from training.data import Recordings
from training.robots.trees import Tree, horizontal

__all__ = [
    "Turns",
    "builder_of",
    "followed",
    "gripped_nodes",
    "held_edges",
    "held_motion",
    "integrator_of",
    "start",
    "turns",
]

RADIUS = 5e-3  # [m]; stiffness is given directly, so it only makes a twist inertia: small beside what moves


def gripped_nodes(robot: Robot, count: int) -> list[int]:
    """Return the gripped nodes of a chain as numbers from 0 to count - 1, sorted."""
    wrong = [k for k in robot.gripped if not -count <= k < count]
    if wrong:
        raise InputError(f"robot.gripped: expected nodes of a chain of {count}, got {wrong}")
    gripped = sorted({k % count for k in robot.gripped})
    if len(gripped) == count:
        raise InputError("robot.gripped: all nodes are gripped: there is nothing to predict")
    return gripped


def builder_of(robot: Robot, tree: Tree) -> RobotBuilder:
    """Return a builder with rods along a tree's edges, held at the chain's gripped nodes, with gravity and drag."""
    nodes, directors = tree.shape()
    section, second = Circle(RADIUS), math.pi * RADIUS**4 / 4
    material = Material(robot.bending / second, robot.linear_density / (math.pi * RADIUS**2))
    builder = RobotBuilder()
    stiffness: dict[str, Number] = {
        "EA": robot.stretching,
        "EI1": robot.bending,
        "EI2": robot.bending,
        "GJ": robot.twisting,
    }
    builder.add_rods(
        nodes.numpy(), tree.edges.numpy(), section, material, "straight", stiffness, directors=directors.numpy()
    )
    gripped = gripped_nodes(robot, tree.trunk + 1)
    builder.clamp(nodes=gripped, twist=robot.hold_twist)
    if robot.hold == "direction" and (directed := _directed(gripped, tree)):
        builder.clamp(nodes=directed, twist=robot.hold_twist, direction="rest")
    builder.add_force(forces.Gravity(robot.gravity))
    builder.add_force(forces.Viscous(robot.drag))
    time = robot.relaxation_time
    damping = {"damping1": robot.bending, "damping2": robot.bending, "damping3": robot.twisting}
    viscosity = {name: torch.tensor(time * value, dtype=torch.float64) for name, value in damping.items()}
    builder.add_dissipation("bend_twist", LinearElastic(viscosity))
    if robot.hysteresis:
        strands = robot.hysteresis * robot.bending
        builder.add_inelastic("bend_twist", Dahl({"EI1": strands, "EI2": strands, "GJ": 0.0}, robot.hysteresis_limit))
    return builder


def _directed(gripped: list[int], tree: Tree) -> list[int]:
    """Return the gripped nodes at which a chain goes over from a gripped edge to a free one."""
    chain, held = range(tree.trunk + 1), set(gripped)
    found = [k for k in gripped if {k - 1, k + 1} <= set(chain) and (k - 1 in held) != (k + 1 in held)]
    branching = [k for k in found if bool((tree.edges[tree.trunk :, 0] == k).any())]
    if branching:
        raise InputError(
            f'robot.hold: a branch begins at gripped node {branching[0]}: expected "nodes", as its direction there is '
            "not known"
        )
    return found


def _leading(model: Model) -> list[int]:
    """Return for each held tangent (H) the gripped edge of the chain whose direction it has."""
    if not model.body.n_held:
        return []
    gripped = set(model.body.clamps[0].nodes.tolist())
    return [node - 1 if node - 1 in gripped else node for node in model.body.held.nodes.tolist()]


@dataclass(frozen=True)
class Turns:
    """How a chain is turned about itself, as far as the motion of its held edges tells.

    Markers of a chain do not show it. It follows if a rod is untwisted at the first frame of a recording and those who
    hold it do not roll it: a held edge then carries its frame along by parallel transport in time, and so twists the
    rod between two of them. Branches show it in the first frame: see `Tree.rolled`.

    Attributes
    ----------
    director : (..., 3) of the first held edge (of the first edge where none is held).
    angle : (..., H) by which each held edge is turned against the frame carried along the chain from the first [rad].
    """

    director: Tensor
    angle: Tensor

    def at(self, recording: Tensor, frame: Tensor) -> Turns:
        """Return those of some recordings (B,) at some frames (B,)."""
        return Turns(self.director[recording, frame], self.angle[recording, frame])

    def to(self, device: torch.device) -> Turns:
        """Return them on a device."""
        return Turns(self.director.to(device), self.angle.to(device))


def held_edges(model: Model) -> list[int]:
    """Return the edges of a chain whose turning about themselves is given."""
    first = 3 * model.body.n_nodes
    return (~model.free[first : first + model.body.n_edges]).nonzero().flatten().tolist()


def turns(positions: Tensor, held: list[int], tree: Tree) -> Turns:
    """Return the turns at all frames of recordings (K, T, N, 3), whose frames must have no gaps.

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
    own = torch.stack(history, dim=1)  # (K, T, H, 3)
    along = tree.carried(own[:, :, 0], tangent, first)[:, :, edges]
    angle = signed_angle(along, own, tangent[:, :, edges])
    steps = angle.diff(dim=1)
    jumps = (2 * torch.pi * torch.round(steps / (2 * torch.pi))).cumsum(1)
    angle = torch.cat([angle[:, :1], angle[:, 1:] - jumps], dim=1)
    return Turns(own[:, :, 0], angle)


def start(model: Model, first: Tensor, second: Tensor, dt: float, turned: Turns, tree: Tree) -> State:
    """Return the state at the second of two frames (B, N, 3) [m], `dt` [s] apart, at the mean velocity between them.

    `turned` are the turns (B, ...) at the first frame; between held edges the twist is even, and branches are turned as
    the chain is where they begin.
    """
    tangent, held, leading = tree.tangents(first), held_edges(model), _leading(model)
    theta = _between(turned.angle, tree.places(tree.lengths(first)), held)
    theta = torch.cat([theta, theta[:, leading]], dim=1)
    state = model.initial_state(q=_placed(first, theta, leading)).detach()
    director = tree.carried(turned.director, tangent, held[0] if held else 0)
    frames = {"director": director, "tangent": tangent}
    state = state.replace(**{name: torch.cat([own, own[:, leading]], dim=1) for name, own in frames.items()})
    rest = model.rest_state(len(first)).reference_twist  # at branches it may be half a turn: count from there
    beyond = model.frames.reference_twist(state.tangent, state.director) - rest
    state = state.replace(reference_twist=rest + torch.atan2(beyond.sin(), beyond.cos()))
    velocity = torch.zeros_like(state.q)
    velocity[:, : 3 * model.body.n_nodes] = ((second - first) / dt).flatten(1)
    return model.frames.moved(state, _placed(second, theta, leading)).replace(velocity=velocity)


def _placed(x: Tensor, theta: Tensor, leading: list[int]) -> Tensor:
    """Return q (..., n) of nodes (..., N, 3), angles (..., A) and held tangents (H) along the edges `leading`."""
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


def held_motion(model: Model, positions: Tensor, theta: Tensor, dt: float) -> Schedule:
    """Return the schedule that moves the clamped nodes as in the frames (B, T, N, 3), `dt` apart, from time 0 on.

    Between frames they move evenly. Held edges and tangents keep their twist angles, as in `theta` (B, A).
    """
    frames = positions.shape[1]
    q = _placed(positions, theta[:, None].expand(-1, frames, -1), _leading(model))

    return HeldMotion(q, dt)


class HeldMotion:
    """The schedule of clamped dofs that go from frame to frame, evenly between them.

    Parameters
    ----------
    q : (B, T, n) where they are at the frames; other dofs are not read.
    dt : from one frame to the next [s]; the first is at time 0.
    """

    ahead = True

    def __init__(self, q: Tensor, dt: float):
        self._q, self._dt = q, dt

    def __call__(self, time: Tensor, model: Model) -> Control:
        """Return where they are at the times (B,), which are all the same but for robots that stopped before."""
        q, last = self._q, self._q.shape[1] - 1
        place = min(max(float(time.max()) / self._dt, 0.0), float(last))  # a robot that failed keeps its time
        before = min(int(place + 1e-6), last)  # 1e-6: k * dt is off by rounding
        share, after = max(place - before, 0.0), q[:, min(before + 1, last)]
        return Control(clamped_q=q[:, before] if share < 1e-6 else q[:, before] + share * (after - q[:, before]))


def integrator_of(simulation: Simulation, dt: float):
    """Return the integrator for steps of `dt` [s]."""
    kinds = {"implicit_euler": ImplicitEuler, "implicit_midpoint": ImplicitMidpoint, "newmark": Newmark}
    return kinds[simulation.integrator](
        dt,
        force_tolerance=simulation.force_tolerance,
        relative_tolerance=simulation.relative_tolerance,
        max_substeps=simulation.max_substeps,
    )


def followed(recordings: Recordings, gripped: list[int]) -> dict[str, Tensor]:
    """Return two predictions (K, T - 2, N, 3) without a model.

    "stay": free nodes stay where they were. "follow": they move with the gripped nodes, weighted by how near these are
    along the chain, and branches move with the node that they begin at; without gripped nodes there is none.
    """
    x = recordings.positions
    second = x[:, 1:2].expand(-1, recordings.frames - 2, -1, -1)
    stay = second.clone()
    stay[:, :, gripped] = x[:, 2:, gripped]
    if not gripped:
        return {"stay": stay}
    moved = x[:, 2:, gripped] - x[:, 1:2, gripped]
    return {"stay": stay, "follow": second + torch.einsum("ng,ktgc->ktnc", _weights(recordings, gripped), moved)}


def _weights(recordings: Recordings, gripped: list[int]) -> Tensor:
    """Return (N, gripped) weights, linear in arc length between the neighbouring gripped nodes, constant beyond."""
    tree = Tree.measured(recordings)
    arc = torch.cat([tree.length.new_zeros(1), tree.length[: tree.trunk].cumsum(0)])
    knots = arc[gripped]
    weight = torch.zeros(tree.nodes, len(gripped), dtype=arc.dtype)
    for node, place in enumerate(arc):
        right = int(torch.searchsorted(knots, place).clamp(0, len(gripped) - 1))
        left = max(right - 1, 0)
        if place >= knots[-1] or place <= knots[0] or left == right:
            weight[node, 0 if place <= knots[0] else len(gripped) - 1] = 1
        else:
            share = (place - knots[left]) / (knots[right] - knots[left])
            weight[node, left], weight[node, right] = 1 - share, share
    for begin, end in tree.edges[tree.trunk :].tolist():
        weight[end] = weight[begin]
    return weight
