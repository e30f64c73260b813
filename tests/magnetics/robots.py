"""Magnetised rods for tests, the fields they are in, and what both rods and shells are checked by."""

import torch

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    Static,
    helix,
    magnetics,
)
from torchdismech.testing import check_force

AREA = torch.pi * 2e-3**2
INTEGRATORS = {
    "euler": ImplicitEuler(5e-3),
    "midpoint": ImplicitMidpoint(2e-3),
    "newmark": Newmark(2e-3),
    "static": Static(load_steps=2),
}


def vec(*numbers):
    """Return a float64 tensor."""
    return torch.tensor(numbers, dtype=torch.float64)


class Swirl(torch.nn.Module):
    """A field as a user may write it: it depends on place and time, and has a weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0, -1.0, 3.0], dtype=torch.float64))

    def forward(self, position, time):
        """Return the field (B, E, 3)."""
        x, y, z = (8 * position * self.weight).unbind(-1)
        swirl = torch.stack([torch.sin(y) * x, torch.cos(x + z), x * y * z], dim=-1)
        return 0.3 * swirl * (1 + 0.5 * time[:, None, None])


FIELDS = {
    "constant": lambda: magnetics.Constant((0.3, -0.2, 0.5)),
    "constants": lambda: magnetics.Constant(torch.tensor([[0.3, -0.2, 0.5], [0.1, 0.4, -0.2]], dtype=torch.float64)),
    "rotating": lambda: magnetics.Rotating(0.4, 1.5, (0.0, 1.0, 0.0), (1.0, 0.0, 1.0), phase=0.3),
    "table": lambda: magnetics.Table([0.0, 0.5, 2.0], [[0.1, 0.0, 0.2], [0.4, -0.3, 0.1], [0.0, 0.0, 1.0]]),
    "function": lambda: lambda t: torch.stack([torch.cos(t), 0.2 * t, torch.sin(t)], dim=-1),
    "gradient": lambda: magnetics.Gradient(
        (0.1, 0.2, 0.3), [[1.0, 2.0, 0.5], [2.0, -3.0, 0.1], [0.5, 0.1, 2.0]], (0.1, 0.0, 0.0)
    ),
    "dipole": lambda: magnetics.Dipole((2.0, 30.0, -1.0), (0.15, -0.05, 0.2)),
    "moving dipole": lambda: magnetics.MovingDipole(
        [0.0, 0.4, 1.0],
        [(2.0, 30.0, -1.0), (20.0, 10.0, 5.0), (0.0, 0.0, 30.0)],
        [(0.15, -0.05, 0.2), (0.3, 0.0, 0.1), (0.2, 0.2, 0.2)],
    ),
    "learned": lambda: magnetics.Learned(Swirl()),
}
UNIFORM = ("constant", "constants", "rotating", "table", "function")


def coil(field, magnetisation=(3e4, 1e4, -2e4), nodes=6, forces=(), clamped=(0, 1), **options):
    """Return a model of a rod along a helix, and its magnetic force."""
    points = helix((0, 0, 0), (0.05, 0, 0), (0, 0.3, 1), 3.0, 0.1, nodes)
    material = Material(options.pop("youngs", 1e6), 1000.0, 0.4)
    force = magnetics.Magnetic(magnetisation, field)
    builder = rod_through(points, Circle(2e-3), material, [force, *forces], held="not")
    builder.clamp(nodes=list(clamped))
    return builder.finalize(**options), force


def shaken(model, batch=2, size=3e-3, seed=0):
    """Return a state that is bent, stretched, twisted and moving, some time after the start."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, batch, model.n_dofs, dtype=torch.float64, generator=generator)
    scale = torch.full((model.n_dofs,), 0.3, dtype=torch.float64)
    scale[: 3 * model.body.n_nodes] = size
    rest = model.initial_state(batch=batch)
    # twice: the frames' anchors are then neither those of the rest shape nor of the present one
    halfway = model.frames.moved(rest, rest.q + 0.5 * scale * noise[1])
    state = halfway.replace(q=rest.q + scale * noise[0], velocity=0.1 * noise[1])
    return state.replace(time=torch.linspace(0.3, 0.9, batch, dtype=torch.float64))


def check_derivatives(force, model, state):
    """Meet central differences, symmetric; the potential's gradient is minus the force."""
    check_force(force, model, state).raise_if_failed()
    q = state.q.clone().requires_grad_()
    potential = force.potential(state.replace(q=q), Control())
    (gradient,) = torch.autograd.grad(potential.sum(), q)
    # rounding of sums in another order
    assert torch.allclose(-gradient, force(state, Control()), rtol=1e-11, atol=1e-11 * gradient.abs().max().item())
