"""From recordings of a chain of markers to a rod that is simulated between them."""

from __future__ import annotations

import math

import numpy as np
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
from torchdismech.elastic import LinearElastic
from torchdismech.geometry.frames import first_director, transported, unit
from training.config import Robot, Simulation
from training.data import Recordings

__all__ = ["builder_of", "gripped_nodes", "held_motion", "integrator_of", "rest_lengths", "start"]

RADIUS = 5e-3  # [m]; stiffness is given directly, so it only makes a twist inertia: small beside what moves


def rest_lengths(recordings: Recordings) -> Tensor:
    """Return the medians of the edge lengths (N-1,) [m] over all frames in which both markers were seen."""
    length = torch.linalg.vector_norm(recordings.positions.diff(dim=2), dim=-1)
    seen = recordings.valid[..., 1:] & recordings.valid[..., :-1]
    return torch.where(seen, length, torch.nan).flatten(0, 1).nanmedian(0).values


def gripped_nodes(robot: Robot, count: int) -> list[int]:
    """Return the gripped nodes as numbers from 0 to count - 1, sorted."""
    wrong = [k for k in robot.gripped if not -count <= k < count]
    if wrong:
        raise InputError(f"robot.gripped: expected nodes of a chain of {count}, got {wrong}")
    gripped = sorted({k % count for k in robot.gripped})
    if len(gripped) == count:
        raise InputError("robot.gripped: all nodes are gripped: there is nothing to predict")
    return gripped


def builder_of(robot: Robot, lengths: Tensor) -> RobotBuilder:
    """Return a builder with a straight rod of these edge lengths, held at its gripped nodes, with gravity and drag."""
    nodes = np.zeros((len(lengths) + 1, 3))
    nodes[1:, 0] = lengths.cumsum(0).numpy()
    section, second = Circle(RADIUS), math.pi * RADIUS**4 / 4
    material = Material(robot.bending / second, robot.linear_density / (math.pi * RADIUS**2))
    builder = RobotBuilder()
    stiffness = {"EA": robot.stretching, "EI1": robot.bending, "EI2": robot.bending, "GJ": robot.twisting}
    builder.add_rod(nodes, section, material, natural="straight", stiffness=stiffness)
    builder.clamp(nodes=gripped_nodes(robot, len(nodes)), twist=robot.hold_twist)
    builder.add_force(forces.Gravity(robot.gravity))
    builder.add_force(forces.Viscous(robot.drag))
    time = robot.relaxation_time
    damping = {"damping1": robot.bending, "damping2": robot.bending, "damping3": robot.twisting}
    builder.add_dissipation("bend_twist", LinearElastic({name: time * value for name, value in damping.items()}))
    return builder


def start(model: Model, first: Tensor, second: Tensor, dt: float) -> State:
    """Return the state at the second of two frames (B, N, 3) [m], `dt` [s] apart: untwisted, at the mean velocity.

    The director of the first edge is horizontal and the others are carried along the rod from it: how the rod is turned
    about itself cannot be seen in positions.
    """
    tangent = unit(first.diff(dim=1))
    down = first.new_tensor([0.0, 0.0, -1.0]).expand_as(tangent[:, 0])
    across = torch.linalg.cross(tangent[:, 0], down)
    upright = torch.linalg.vector_norm(across, dim=-1, keepdim=True) < 1e-6  # no horizontal direction stands out
    directors = [unit(torch.where(upright, first_director(tangent[:, 0]), across))]
    for k in range(1, tangent.shape[1]):
        directors.append(transported(directors[-1], tangent[:, k - 1], tangent[:, k]))
    untwisted = first.new_zeros(first.shape[0], tangent.shape[1])
    state = model.initial_state(q=torch.cat([first.flatten(1), untwisted], dim=1)).detach()
    state = state.replace(
        director=torch.stack(directors, dim=1),
        tangent=tangent,
        reference_twist=torch.zeros_like(state.reference_twist),
    )
    velocity = torch.cat([((second - first) / dt).flatten(1), untwisted], dim=1)
    at_second = model.moved(state, torch.cat([second.flatten(1), untwisted], dim=1))
    return at_second.replace(velocity=velocity)


def held_motion(positions: Tensor, dt: float):
    """Return the schedule that moves the clamped nodes as in the frames (B, T, N, 3), `dt` apart, from time 0 on.

    Between frames they move evenly.
    """
    batch, frames, nodes, _ = positions.shape
    q = torch.cat([positions.flatten(2), positions.new_zeros(batch, frames, nodes - 1)], dim=2)

    def schedule(time: Tensor, model: Model) -> Control:
        place = min(max(float(time[0]) / dt, 0.0), frames - 1.0)
        before = min(int(place + 1e-6), frames - 1)  # 1e-6: k * dt is off by rounding
        share = max(place - before, 0.0)
        after = q[:, min(before + 1, frames - 1)]
        return Control(clamped_q=q[:, before] if share < 1e-6 else q[:, before] + share * (after - q[:, before]))

    return schedule


def integrator_of(simulation: Simulation, dt: float):
    """Return the integrator for steps of `dt` [s]."""
    kinds = {"implicit_euler": ImplicitEuler, "implicit_midpoint": ImplicitMidpoint, "newmark": Newmark}
    return kinds[simulation.integrator](
        dt,
        force_tolerance=simulation.force_tolerance,
        relative_tolerance=simulation.relative_tolerance,
        max_substeps=simulation.max_substeps,
    )
