"""Arches whose nodes slide along lines and in planes, and how they move."""

import math

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from torchdismech import BDF2, Circle, ImplicitEuler, ImplicitMidpoint, Material, Newmark, RobotBuilder, forces
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact

INTEGRATORS = [ImplicitEuler, ImplicitMidpoint, Newmark, BDF2]
EXACT = {"force_tolerance": 1e-13, "relative_tolerance": 0.0}
SLOPE = Rotation.from_rotvec([0, -math.pi / 4, 0]).as_matrix()  # takes x to (1, 0, 1) / sqrt(2)
ANYHOW = Rotation.from_rotvec([0.4, -0.7, 0.9]).as_matrix()
STIFFNESS = torch.tensor([[1e6], [3e6]], dtype=torch.float64)


def arch(turn=None, contact=None, youngs=STIFFNESS, solver="auto", compile=False, ways=None, **options):
    """Return two arches that are held at one end and slide at the other along x, in the middle across y.

    With `turn` (3, 3) all of it is turned, so that the line and the plane are not those of axes; `ways` are another
    line for the end and another normal for the middle, (3,) or (B, 3) each.
    """
    whole = np.eye(3) if turn is None else turn
    s = np.linspace(0, 1, 9)
    x = np.stack([s, 0.05 * np.sin(3 * s), 0.2 * s * (1 - s)], axis=1)
    builder = RobotBuilder(**options)
    builder.add_rod(x @ whole.T, Circle(0.01), Material(youngs, 1000.0), name="arch")
    builder.clamp(nodes=[0], direction="rest")
    if ways is not None:
        builder.clamp(nodes=[8], along=ways[0])
        builder.clamp(nodes=[4], normal=ways[1])
    elif turn is None:
        builder.clamp(nodes=[8], axes="yz")
        builder.clamp(nodes=[4], axes="y")
    else:
        builder.clamp(nodes=[8], along=whole[:, 0])
        builder.clamp(nodes=[4], normal=whole[:, 1])
    builder.add_force(forces.Gravity(tuple(whole @ (-1.0, 0.7, -5.0))))
    builder.add_force(forces.Viscous(0.01))
    if contact is not None:
        touch(builder, whole, contact)
    return builder.finalize(solver=solver, compile=compile)


def touch(builder, whole, contact) -> None:
    """Add a floor that the end scrapes along, or a rod that lies across near the end."""
    if contact == "rods":
        across = np.linspace([0.9, -0.2, 0.043], [0.9, 0.3, 0.043], 6)
        builder.add_rod(across @ whole.T, Circle(0.01), Material(1e6, 1000.0))
        builder.add_contact(SelfContact(Penalty(300.0, 2e-3), Friction(0.2, 1e-2)))
        return
    floor = HalfSpace(tuple(whole @ (1, 0, -0.0101)), tuple(whole @ (-0.05, 0, 1)))
    law = Penalty(300.0, 2e-3) if contact == "floor" else Complementarity()
    friction = Friction(0.2, 1e-2) if contact == "floor" else Friction(0.2)
    builder.add_contact(Obstacle(floor, law, friction, name="floor"))


def moved(model, integrator, steps=12, turn=None):
    """Return positions, reactions in the axes before the turn, and iterations after some steps."""
    method, state, iterations = integrator(0.01, **EXACT), model.initial_state(), 0
    for _ in range(steps):
        before = state
        state, info = method.step(model, before, throw=True)
        iterations += int(info.iterations.sum())
    back = torch.eye(3, dtype=torch.float64) if turn is None else torch.as_tensor(turn)
    wrenches = method.reactions(model, before, state).unflatten(2, (2, 3)) @ back
    return state.positions @ back, wrenches, iterations
