"""Surfaces and the forces on their triangles, states that move, and what a force gives its nodes."""

import numpy as np
import torch

from tests.reference.loading import tensor
from torchdismech import Material, RobotBuilder
from torchdismech.forces.surface import Drag, Pressure
from torchdismech.forces.thrust import Thrust

MATERIAL = Material(1e5, 1000.0, 0.3)
# an octahedron, counter-clockwise seen from the outside, sheared so that nothing is symmetric by accident
CORNERS = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]]) * 0.1
BALLOON = CORNERS @ np.array([[1, 0.2, 0], [0, 0.8, 0.1], [0.3, 0, 1.2]])
SIDES = np.array([[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4], [1, 0, 5], [2, 1, 5], [3, 2, 5], [0, 3, 5]])


def per_robot(*values):
    """Return values of two robots (2, 1)."""
    return tensor(values)[:, None]


def loads(explicit=False):
    """Return one of each force, with parameters of each robot's own."""
    return {
        "drag": Drag(per_robot(300, 1000), per_robot(0.7, 1.3), explicit),
        "pressure": Pressure(per_robot(50, -20)),
        "pressure on some": Pressure(30.0, triangles=[1, 4, 2]),
        "thrust": Thrust(per_robot(200, 300), 1e-6, refill=per_robot(0.3, 0), explicit=explicit),
        "thrust along an axis": Thrust(200.0, 1e-5, axis=tensor([[0, 0, 2], [1, -1, 0.5]]), explicit=explicit),
    }


NAMES = list(loads())


def shell(nodes, triangles, *forces, batch=1):
    """Return a free shell with the forces, and its state at rest."""
    builder = RobotBuilder()
    builder.add_shell(nodes, triangles, 1e-3, MATERIAL, "hinge")
    for force in forces:
        builder.add_force(force)
    model = builder.finalize()
    return model, model.initial_state(batch=batch)


def moving(model, state, seed=0):
    """Return the state deformed by some percent, moving with 1 m/s."""
    generator = torch.Generator().manual_seed(seed)
    size = model.body.typical_length().item()
    noise = torch.randn(2, *state.q.shape, dtype=torch.float64, generator=generator)
    return state.replace(q=state.q + 0.1 * size * noise[0], velocity=noise[1])


def nodal(force, state):
    """Return the force on the nodes (B, N, 3)."""
    return force(state, None)[:, : 3 * state.n_nodes].unflatten(1, (-1, 3))


def gradient(value, state, name="q"):
    """Return the derivative (B, N, 3) of sum(value(state)) by q or velocity."""
    at = getattr(state, name).clone().requires_grad_()
    (found,) = torch.autograd.grad(value(state.replace(**{name: at})).sum(), at)
    return found[:, : 3 * state.n_nodes].unflatten(1, (-1, 3))
