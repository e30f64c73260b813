"""Two lines cross a parachute's canopy from above and are pushed into it: four depths in one batch.

An open canopy, 0.5 m wide, is held up by a jump of pressure and held down by eight ropes that are tied to its rim and
to a payload that does not move. Two lines cross each other above it, one over the other. Their ends move down, the
deeper the higher the robot's number, and the canopy gives way under them: lines against cloth, and the upper line
against the lower one, with friction. Canopy, ropes and payload are one part of the robot, each line is another.

There are two results. No node of a line ever gets to the other side: the least of its signed distances to the cloth, in
all stored frames, is at least the line's radius and half the cloth's thickness, less the overlap that a penalty needs.
And at rest the contact's force on the lines balances the push on them: the pull at their ends, from the elastic forces
there, and their weight.

`python -m studies.crossing_lines.crossing_lines` prints loads, distances and overlaps and draws crossing_lines.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    Model,
    RobotBuilder,
    Trajectory,
    forces,
    meshes,
    rollout,
    straight,
)
from torchdismech.contact import Friction, Penalty, SelfContact
from torchdismech.geometry.distances import closest_on_triangle
from torchdismech.geometry.surface import find_surface
from torchdismech.geometry.vec3 import Vec3
from torchdismech.view import pictured

RADIUS, HEIGHT, THICKNESS = 0.25, 0.1, 1e-3  # m, of the canopy
ROPES, ROPE_EDGES, PAYLOAD = 8, 4, -0.4  # m
PRESSURE = 30.0  # Pa
ROPE, LINE = Circle(1e-3), Circle(2e-3)
LINE_ENDS, LINE_EDGES = 0.35, 20  # m from the middle
LINE_PLACES, LINE_HEIGHTS = (0.05, -0.03), (0.12, 0.13)  # m: of the line along x, of that along y
DEPTHS = [0.04, 0.06, 0.08, 0.1]  # m
PUSHING_TIME = 0.3  # s
STIFFNESS, TOLERANCE = 1000.0, 1e-3  # N/m, m
FRICTION, SLIP_VELOCITY = 0.3, 5e-3
GRAVITY = 9.81


@dataclass(frozen=True)
class Parachute:
    """A model and the nodes of its parts: of the canopy, and of each line."""

    model: Model
    canopy: np.ndarray
    lines: list[np.ndarray]


@dataclass(frozen=True)
class Crossing:
    """Results of a run.

    Attributes
    ----------
    pushes : (B, 3) push on the lines in the last frame: the pull at their ends and their weight [N].
    loads : (B, 3) force of the contact on the lines in the last frame [N].
    distances : (B,) least distance of a line's nodes to the cloth's middle surface, negative on the lower side [m].
    overlaps : (B,) largest overlap of two surfaces in any step [m].
    """

    pushes: Tensor
    loads: Tensor
    distances: Tensor
    overlaps: Tensor


def build(rings: int) -> Parachute:
    """Return the parachute with a canopy of so many rings of triangles, and the lines above it."""
    builder = RobotBuilder(joints="pinned")
    disc = meshes.disc(RADIUS, RADIUS / rings)
    from_axis = np.linalg.norm(disc.nodes, axis=1)
    nodes = disc.nodes + np.stack([0 * from_axis, 0 * from_axis, HEIGHT * (1 - (from_axis / RADIUS) ** 2)], axis=1)
    canopy = builder.add_shell(nodes, disc.triangles, THICKNESS, Material(5e6, 1000.0, 0.4, 0.01), "hinge")
    rim = np.flatnonzero(from_axis > RADIUS * (1 - 1e-9))
    payload = (0.0, 0.0, PAYLOAD)
    for corner in rim[np.arange(ROPES) * len(rim) // ROPES]:
        rope = straight(nodes[corner], payload, ROPE_EDGES + 1)
        builder.add_rod(rope, ROPE, Material(2e7, 1000.0, relaxation_time=0.01))
    builder.clamp(nodes=builder.add_nodes([payload]))
    (y, x), (low, high) = LINE_PLACES, LINE_HEIGHTS
    ends = (((-LINE_ENDS, y, low), (LINE_ENDS, y, low)), ((x, -LINE_ENDS, high), (x, LINE_ENDS, high)))
    material = Material(5e6, 1000.0, relaxation_time=0.01)
    lines = [builder.add_rod(straight(a, b, LINE_EDGES + 1), LINE, material) for a, b in ends]
    builder.clamp(nodes=[line[k] for line in lines for k in (0, -1)])
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    builder.add_force(forces.Pressure(PRESSURE))
    builder.add_force(forces.MassDamping(5.0))
    builder.add_contact(SelfContact(Penalty(STIFFNESS, TOLERANCE), Friction(FRICTION, SLIP_VELOCITY)))
    return Parachute(builder.finalize(), canopy, lines)


def pushed(parachute: Parachute):
    """Return the schedule that moves the lines' ends down, to another depth for each robot."""
    heights = torch.tensor([3 * line[k] + 2 for line in parachute.lines for k in (0, -1)])
    start = parachute.model.initial_state(len(DEPTHS)).q
    depths = torch.tensor(DEPTHS, dtype=start.dtype)

    def schedule(time: Tensor, model: Model) -> Control:
        """Return the control with the positions of held nodes at the times (B,)."""
        s = (time / PUSHING_TIME).clamp(0, 1)
        down = depths * (3 * s**2 - 2 * s**3)  # starts and ends at rest
        target = start.clone()
        target[:, heights] -= down[:, None]
        return Control(clamped_q=target)

    return schedule


def simulated(rings: int = 6, dt: float = 2.5e-3, duration: float = 1.5) -> tuple[Trajectory, Crossing]:
    """Return the run and its results."""
    parachute = build(rings)
    model, state = parachute.model, parachute.model.initial_state(len(DEPTHS))
    steps = round(duration / dt)
    integrator = ImplicitEuler(dt, max_substeps=16)
    every = max(1, steps // 60)
    trajectory = rollout(model, state, integrator, steps, pushed(parachute), every, throw=True)
    pushes, loads = balance(parachute, trajectory)
    lines = np.concatenate(parachute.lines)
    distances = signed_distances(trajectory.positions[:, :, lines], trajectory.positions, model.triangles)
    return trajectory, Crossing(pushes, loads, distances.amin((0, 2)), trajectory.contact["penetration"].amax(0))


def balance(parachute: Parachute, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
    """Return the push on the lines, and the contact's force on them, in the last frame, (B, 3) each [N]."""
    model, state = parachute.model, trajectory.state
    held = torch.tensor([line[k] for line in parachute.lines for k in (0, -1)])
    free = torch.tensor(np.concatenate([line[1:-1] for line in parachute.lines]))
    elastic = model.mechanics.elastic_force(model.start_step(state), state.q)[:, : 3 * len(model.nodes)].unflatten(
        1, (-1, 3)
    )
    weight = GRAVITY * model.body.node_mass()[free].sum() * torch.tensor([0.0, 0.0, -1.0], dtype=model.dtype)
    parts = {int(model.body.part_of_node[line[0]]) for line in parachute.lines}
    loads = torch.stack([trajectory.contact[f"force/part{part}"][-1] for part in parts]).sum(0)
    # the elastic forces on a line sum to zero: those on its free nodes are the opposite of those on its ends
    return weight - elastic[:, held].sum(1), loads


def signed_distances(points: Tensor, nodes: Tensor, triangles: np.ndarray) -> Tensor:
    """Return the distances of points (.., P, 3) to a surface, positive on the side of its normals (.., P) [m].

    Points whose closest point is on the rim are on neither side: their distance is infinity.

    Parameters
    ----------
    nodes, triangles : (.., N, 3) [m] and (F, 3) of the surface.
    """
    corners = nodes[..., triangles, :]  # (.., F, 3, 3)
    index = torch.as_tensor(triangles)
    across = torch.linalg.cross(corners[..., 1, :] - corners[..., 0, :], corners[..., 2, :] - corners[..., 0, :])
    normals = torch.zeros_like(nodes)
    for k in range(3):
        normals = normals.index_add(-2, index[:, k], across)
    p, t0, t1, t2 = (Vec3(*x.unbind(-1)) for x in (points.unsqueeze(-2), *corners.unsqueeze(-4).unbind(-2)))
    closest = closest_on_triangle(p, t0, t1, t2)
    r = torch.stack(closest.difference((p, t0, t1, t2)).components(), dim=-1)  # (.., P, F, 3)
    distance, nearest = r.norm(dim=-1).min(-1)
    weights = -torch.stack(closest.weights[1:], dim=-1)
    weights = weights.gather(-2, nearest[..., None, None].expand(*nearest.shape, 1, 3)).squeeze(-2)  # (.., P, 3)
    away = r.gather(-2, nearest[..., None, None].expand(*nearest.shape, 1, 3)).squeeze(-2)
    nearest_nodes = index[nearest]  # (.., P, 3)
    flat = nearest_nodes.flatten(-2).unsqueeze(-1)
    normal = normals.gather(-2, flat.expand(*flat.shape[:-1], 3)).unflatten(-2, (-1, 3))
    side = (away * (weights.unsqueeze(-1) * normal).sum(-2)).sum(-1).sign()
    inside = torch.ones(nodes.shape[-2], dtype=nodes.dtype).index_fill(0, rim_nodes(triangles), 0.0)
    on_rim = (weights * inside[nearest_nodes]).sum(-1) < 1e-9
    return torch.where(on_rim, torch.inf, side * distance)


def rim_nodes(triangles: np.ndarray) -> Tensor:
    """Return the nodes at sides that only one triangle has."""
    surface = find_surface(triangles)
    return torch.as_tensor(np.unique(np.delete(surface.edges, surface.hinge_edges, axis=0)))


def main() -> None:
    """Print the numbers and draw the parachute that is pushed in deepest."""
    trajectory, crossing = simulated()
    titles = ("depth [mm]", "push [N]", "load [N]", "distance [mm]", "overlap [mm]")
    print("".join(f"{title:>15}" for title in titles))
    pushes, loads = -crossing.pushes[:, 2], crossing.loads[:, 2]
    for row in zip(DEPTHS, pushes, loads, crossing.distances, crossing.overlaps, strict=True):
        depth, push, load, distance, overlap = map(float, row)
        print(f"{1e3 * depth:15g}{push:15.5f}{load:15.5f}{1e3 * distance:15.4f}{1e3 * overlap:15.4f}")
    pictured(trajectory, Path("crossing_lines.png"), robot=len(DEPTHS) - 1, snapshots=2)


if __name__ == "__main__":
    main()
