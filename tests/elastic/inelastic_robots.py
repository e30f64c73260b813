"""Robots of materials that remember, which several tests use."""

import math

import torch

from tests.gradients.cases import HELIX, SmallForce
from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    Rectangle,
    RobotBuilder,
    Static,
    straight,
)
from torchdismech.elastic import Dahl, Inelastic, Maxwell, Plastic

LENGTH, RADIUS, YOUNGS = 0.2, 5e-3, 1e6
EA, EI = YOUNGS * math.pi * RADIUS**2, YOUNGS * math.pi * RADIUS**4 / 4
BENDING = {"EI1": EI, "EI2": 2 * EI, "GJ": 0.5 * EI}
INTEGRATORS = {
    "euler": ImplicitEuler(0.01),
    "midpoint": ImplicitMidpoint(0.01),
    "newmark": Newmark(0.01),
    "bdf2": BDF2(0.01),
    "static": Static(),
}


class Slider(Inelastic):
    """A law that a user writes: a spring of one strain behind a dry friction that gives way at `limit` strain."""

    variables = ("z",)

    def __init__(self, stiffness: float = 2.0, limit: float = 0.5, strains: int = 1):
        super().__init__()
        self.stiffness, self.limit, self.strains = stiffness, limit, strains

    def density(self, strain, past):
        """Return the potential of the spring's force, a Huber function of where the spring would be."""
        z = past.internal[0] + strain[0] - past.strain[0]
        size = z.abs()
        slides = self.limit * (size - 0.5 * self.limit)
        return self.stiffness * torch.where(size < self.limit, 0.5 * z * z, slides)

    def updated(self, strain, past):
        """Return the strain of the spring."""
        return (torch.clamp(past.internal[0] + strain[0] - past.strain[0], -self.limit, self.limit),)

    def stored(self, internal):
        """Return its energy."""
        return 0.5 * self.stiffness * internal[0] ** 2


def rod(law=None, term="bend_twist", edges=6, held="end", loads=(), **options):
    """Return a rod along x with a law."""
    points = straight((0, 0, 0), (LENGTH, 0, 0), edges + 1)
    builder = rod_through(points, Circle(RADIUS), Material(YOUNGS, 1000.0), loads, held)
    if law is not None:
        builder.add_inelastic(term, law)
    return builder.finalize(**{"compile": False, **options})


def edge(*laws):
    """Return a rod of one edge whose ends are held, with laws of its stretch by name; only its twist is free."""
    builder = rod_through(straight((0, 0, 0), (LENGTH, 0, 0), 2), Circle(RADIUS), Material(YOUNGS, 1000.0), held="not")
    for node in (0, 1):
        builder.clamp(nodes=[node])
    for name, law in laws:
        builder.add_inelastic("stretch", law, name)
    return builder.finalize(compile=False)


def pulled(model, strains, integrator):
    """Return the force that stretches an edge to each strain in turn."""
    state, found = model.initial_state(), []
    for strain in strains:
        target = model.initial_state().q.clone()
        target[:, 3] = LENGTH * (1 + strain)
        before = state
        state, info = integrator.step(model, state, Control(clamped_q=target))
        assert bool(info.converged.all())
        found.append(-float(integrator.reactions(model, before, state, Control(clamped_q=target))[0, 0, 0]))
    return found


def anisotropic(law, learned=False):
    """Return two robots of unlike stiffness, and of unlike law."""
    builder = RobotBuilder()
    youngs = torch.tensor([[1e6], [2e6]], dtype=torch.float64)
    builder.add_rod(HELIX, Rectangle(width=4e-3, height=3e-3), Material(youngs, 1000.0, 0.4, relaxation_time=2e-3))
    builder.clamp(nodes=[0, 1])
    builder.add_inelastic("bend_twist", law)
    builder.add_inelastic("stretch", Maxwell({"EA": 3.0}, torch.tensor([[0.01], [0.02]], dtype=torch.float64)))
    if learned:
        builder.add_force(SmallForce())
    return builder.finalize(compile=False)


def laws():
    """Return one law of each kind, with a limit or time for each robot."""
    scale = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    return {
        "dahl": Dahl({"EI1": 2e-5, "EI2": 1e-5, "GJ": 5e-6}, 3.0 * scale),
        "maxwell": Maxwell({"EI1": 2e-5, "EI2": 1e-5, "GJ": 5e-6}, 0.01 * scale),
        "plastic": Plastic({"EI1": 2e-5, "EI2": 1e-5, "GJ": 5e-6}, 3.0 * scale, together=("EI1", "EI2")),
        "of a user": Slider(2e-5, 3.0, 3),
    }
