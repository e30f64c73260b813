"""The builder of a rod between markers, with its branches, and its integrator."""

from __future__ import annotations

import math

import torch

from torchdismech import Circle, ImplicitEuler, ImplicitMidpoint, InputError, Material, Newmark, RobotBuilder, forces
from torchdismech.elastic import Dahl, LinearElastic
from torchdismech.robot.materials import Number
from training.config import Robot, Simulation
from training.robots.trees import Tree

__all__ = ["gripped_nodes", "integrator_of", "rod_builder"]

RADIUS = 5e-3  # [m]; stiffnesses are given directly, so it only sets the inertia of twist, which hardly matters


def gripped_nodes(robot: Robot, count: int) -> list[int]:
    """Return the gripped nodes of a chain as numbers from 0 to count - 1, sorted."""
    wrong = [k for k in robot.gripped if not -count <= k < count]
    if wrong:
        raise InputError(f"robot.gripped: expected nodes of a chain of {count}, got {wrong}")
    gripped = sorted({k % count for k in robot.gripped})
    if len(gripped) == count:
        raise InputError("robot.gripped: all nodes are gripped: there is nothing to predict")
    return gripped


def rod_builder(robot: Robot, tree: Tree) -> RobotBuilder:
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
    if robot.hold == "direction":
        builder.clamp(nodes=_directed(gripped, tree), twist=robot.hold_twist, direction="rest")
    builder.add_force(forces.Gravity(robot.gravity))
    builder.add_force(forces.Viscous(robot.drag))
    time = robot.relaxation_time
    damping = {"damping1": robot.bending, "damping2": robot.bending, "damping3": robot.twisting}
    viscosity = {name: torch.tensor(time * value, dtype=torch.float64, device="cpu") for name, value in damping.items()}
    builder.add_dissipation("bend_twist", LinearElastic(viscosity))
    if robot.hysteresis:
        strands = robot.hysteresis * robot.bending
        builder.add_inelastic("bend_twist", Dahl({"EI1": strands, "EI2": strands, "GJ": 0.0}, robot.hysteresis_limit))
    return builder


def _directed(gripped: list[int], tree: Tree) -> list[int]:
    """Return the gripped nodes of a chain with a gripped edge on one side and a free one on the other; refuse none."""
    chain, held = range(tree.trunk + 1), set(gripped)
    found = [k for k in gripped if {k - 1, k + 1} <= set(chain) and (k - 1 in held) != (k + 1 in held)]
    if not found:
        raise InputError(
            'robot.hold: "direction" is that of a gripped edge beside a free one, and there is none: expected "nodes", '
            "or neighbouring nodes in robot.gripped"
        )
    branching = [k for k in found if bool((tree.edges[tree.trunk :, 0] == k).any())]
    if branching:
        raise InputError(
            f'robot.hold: a branch begins at gripped node {branching[0]}: expected "nodes", as its direction there is '
            "not known"
        )
    return found


def integrator_of(simulation: Simulation, dt: float):
    """Return the integrator for steps of `dt` [s]."""
    kinds = {"implicit_euler": ImplicitEuler, "implicit_midpoint": ImplicitMidpoint, "newmark": Newmark}
    return kinds[simulation.integrator](
        dt,
        force_tolerance=simulation.force_tolerance,
        relative_tolerance=simulation.relative_tolerance,
        max_substeps=simulation.max_substeps,
    )
