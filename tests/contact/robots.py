"""Small robots in contact that several tests use: two robots in a batch, with laws of their own."""

from __future__ import annotations

import numpy as np
import torch

from tests import shells
from torchdismech import Circle, Material, Model, RobotBuilder, forces
from torchdismech.contact import (
    Barrier,
    Box,
    Capsule,
    Complementarity,
    Friction,
    HalfSpace,
    Obstacle,
    Path,
    Penalty,
    SelfContact,
    Sphere,
)

SIZE = shells.SIZE
# wide, so that most of a small robot is in contact; a penalty has fallen to exp(-15) at its tolerance
TOLERANCE = {"penalty": 2 * SIZE, "barrier": 0.6 * SIZE}


def numbers(*values: float) -> torch.Tensor:
    """Return one number of each robot, (B, 1)."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


def law(kind: str, rough: bool, rows=slice(None)) -> tuple:
    """Return a response and a friction of two robots, or of one of them."""
    response = {"penalty": Penalty, "barrier": Barrier}[kind](numbers(0.5, 0.8)[rows], TOLERANCE[kind])
    return response, Friction(numbers(0.3, 0.6)[rows], numbers(0.02, 0.05)[rows]) if rough else None


def crossing(
    kind: str, rough: bool, shell: bool, rows=slice(None), centre_line: str = "straight", dtype=torch.float64
) -> Model:
    """Return a held rod and, close to it, a second rod; and a patch of a shell if asked for."""
    builder = RobotBuilder()
    material = Material(numbers(1e6, 3e6)[rows], 1000.0, 0.4)
    t = np.linspace(0, 1, 5)[:, None]
    first = t * [3.1 * SIZE, 0.2 * SIZE, 0.1 * SIZE] + [0, 0, 0.1 * SIZE] * np.sin(3 * t)
    second = t * [0.3 * SIZE, 2.9 * SIZE, 0.2 * SIZE] + [1.3 * SIZE, -1.4 * SIZE, 0.45 * SIZE]
    held = builder.add_rod(first, Circle(2e-3), material)
    builder.add_rod(second, Circle(1.5e-3), material)
    if shell:
        nodes, triangles = shells.patch()
        builder.add_shell(nodes + [0.6 * SIZE, -0.9 * SIZE, 0.9 * SIZE], triangles, 2e-3, material)
    builder.clamp(nodes=held[:2].tolist())
    builder.add_contact(SelfContact(*law(kind, rough, rows), ring=0, centre_line=centre_line))
    return builder.finalize(dtype=dtype)


def between(kind: str, rough: bool, rows=slice(None)) -> Model:
    """Return a rod in the middle of a floor, a ball, a capsule and a box that move."""
    builder = RobotBuilder()
    t = np.linspace(0, 1, 6)[:, None]
    nodes = t * [3 * SIZE, 0.5 * SIZE, 0.2 * SIZE] + [0, 0, 0.5 * SIZE] + 0.1 * SIZE * np.sin(5 * t)
    held = builder.add_rod(nodes, Circle(2e-3), Material(numbers(1e6, 3e6)[rows], 1000.0, 0.4))
    builder.clamp(nodes=held[:2].tolist())
    path = Path.uniform(torch.tensor([[0.02, 0.0, -0.01], [0.0, 0.03, 0.0]], dtype=torch.float64)[rows])
    obstacles = {
        "floor": (HalfSpace((0.0, 0.0, 0.0), (0.1, 0.0, 1.0)), None),
        "ball": (Sphere((1.5 * SIZE, 0.2 * SIZE, 1.6 * SIZE), numbers(0.4 * SIZE, 0.5 * SIZE)[rows]), path),
        "post": (Capsule((2.2 * SIZE, -0.4 * SIZE, 0.0), (2.2 * SIZE, -0.5 * SIZE, 2 * SIZE), 0.5 * SIZE), None),
        "block": (Box((0.6 * SIZE, 1.0 * SIZE, 0.7 * SIZE), (SIZE, SIZE, SIZE), (0.2, 0.1, 0.5)), path),
    }
    for name, (shape, motion) in obstacles.items():
        builder.add_contact(Obstacle(shape, *law(kind, rough, rows), motion, name))
    return builder.finalize()


def spaced(kind: str, rough: bool, rows=slice(None)) -> Model:
    """Return a rod and a shell whose edges and triangles touch a ball, a post and a box, between nodes, too."""
    builder, material = RobotBuilder(), Material(numbers(1e6, 3e6)[rows], 1000.0, 0.4)
    t = np.linspace(0, 1, 4)[:, None]
    rod = t * [3 * SIZE, 0.3 * SIZE, 0.2 * SIZE] + [0, 0, 0.3 * SIZE] * np.sin(5 * t)
    held = builder.add_rod(rod, Circle(2e-3), material)
    nodes, triangles = shells.patch()
    builder.add_shell(nodes + [0.5 * SIZE, 1.5 * SIZE, 0.1 * SIZE], triangles, 3e-3, material)
    builder.clamp(nodes=held[:2].tolist())
    path = Path.uniform(torch.tensor([[0.02, 0.0, -0.01], [0.0, 0.03, 0.0]], dtype=torch.float64)[rows])
    obstacles = {
        "ball": (Sphere((1.5 * SIZE, 0.3 * SIZE, 1.2 * SIZE), numbers(0.7 * SIZE, 0.5 * SIZE)[rows]), path),
        "post": (Capsule((1.2 * SIZE, 1.2 * SIZE, 1.1 * SIZE), (1.4 * SIZE, 3 * SIZE, 1.0 * SIZE), 0.5 * SIZE), None),
        "block": (Box((2.3 * SIZE, 0.6 * SIZE, -0.8 * SIZE), (SIZE, SIZE, SIZE), (0.2, 0.1, 0.5)), path),
    }
    for name, (shape, motion) in obstacles.items():
        builder.add_contact(Obstacle(shape, *law(kind, rough, rows), motion, name, spacing=0.35 * SIZE))
    return builder.finalize()


ROBOTS = {
    "rods": lambda kind, rough, rows=slice(None): crossing(kind, rough, False, rows),
    "lines": lambda kind, rough, rows=slice(None): crossing(kind, rough, False, rows, "smooth"),
    "shell": lambda kind, rough, rows=slice(None): crossing(kind, rough, True, rows),
    "obstacles": between,
    "edges": spaced,
}


def constrained_on_obstacles(mu: float) -> Model:
    """Return two robots, each a rod that lies on a tilted floor and on a ball that moves, by constraints."""
    builder = RobotBuilder()
    t = np.linspace(0, 1, 5)[:, None]
    rod = t * [3 * SIZE, 0.5 * SIZE, 0] + [0, 0, 2e-3] + np.array([0, 0, 2e-4]) * np.sin(3 * t)
    builder.add_rod(rod, Circle(2e-3), Material(numbers(1e6, 2e6), 1000.0, 0.4))
    builder.add_force(forces.Gravity((1.0, 0.3, -9.81)))
    ball = Sphere((1.5 * SIZE, 0.25 * SIZE, -0.9 * SIZE), numbers(0.9 * SIZE, 0.89 * SIZE))
    friction = numbers(mu, 0.7 * mu)
    floor = HalfSpace((0.0, 0.0, 0.0), (0.1, 0.02, 1.0))
    builder.add_contact(Obstacle(floor, Complementarity(), Friction(friction), name="floor"))
    path = Path.uniform((0.05, 0.0, 0.02))
    builder.add_contact(Obstacle(ball, Complementarity(), Friction(friction), path, "ball"))
    return builder.finalize()


def constrained_between_nodes(mu: float) -> Model:
    """Return two robots, each a rod that lies on two posts, which move, between its nodes, by constraints."""
    builder = RobotBuilder()
    t = np.linspace(0, 1, 4)[:, None]
    rod = t * [3 * SIZE, 0.5 * SIZE, 0] + [0, 0, 2e-3] + np.array([0, 0, 2e-4]) * np.sin(3 * t)
    builder.add_rod(rod, Circle(2e-3), Material(numbers(1e6, 2e6), 1000.0, 0.4))
    builder.add_force(forces.Gravity((0.5, 0.3, -9.81)))
    friction = Friction(numbers(mu, 0.7 * mu))
    path = Path.uniform((0.05, 0.0, 0.02))
    for name, x in (("left", 0.6 * SIZE), ("right", 2.3 * SIZE)):
        post = Capsule((x, -SIZE, -0.5 * SIZE), (x, SIZE, -0.4 * SIZE), 0.45 * SIZE)
        builder.add_contact(Obstacle(post, Complementarity(), friction, path, name, spacing=0.2 * SIZE))
    return builder.finalize()


def constrained_crossing(mu: float) -> Model:
    """Return two robots, each a held rod and another that lies across it, by constraints."""
    builder = RobotBuilder()
    material = Material(numbers(1e6, 2e6), 1000.0, 0.4)
    t = np.linspace(0, 1, 5)[:, None]
    held = builder.add_rod(t * [3 * SIZE, 0.2 * SIZE, 0.1 * SIZE], Circle(2e-3), material)
    builder.clamp(nodes=[*held[:2].tolist(), int(held[-1])])
    across = t * [0.3 * SIZE, 2.9 * SIZE, 0.0] + [1.3 * SIZE, -1.4 * SIZE, 0.05 * SIZE + 4e-3]
    builder.add_rod(across, Circle(2e-3), material)
    builder.add_contact(SelfContact(Complementarity(), Friction(numbers(mu, 0.7 * mu))))
    builder.add_force(forces.Gravity((1.0, 0.3, -9.81)))
    return builder.finalize()
