"""Rods with tendons and chambers."""

import math

from tests.rods import rod_through
from torchdismech import Circle, Material, straight
from torchdismech.integrate import Static

LENGTH, RADIUS, YOUNGS, OFFSET = 1.0, 5e-3, 1e7, 0.01
AREA = math.pi * RADIUS**2
EA, EI = YOUNGS * AREA, YOUNGS * math.pi * RADIUS**4 / 4
GJ = EI / 1.5  # Poisson's ratio .5: G J = E / 3 * 2 I


def rod(*forces, edges=10, compile=False, clamped=True):
    """Return a rod along x, held at its first node in its direction, with these forces."""
    points = straight((0, 0, 0), (LENGTH, 0, 0), edges + 1)
    held = "end" if clamped else "not"
    return rod_through(points, Circle(RADIUS), Material(YOUNGS, 1000.0), forces, held).finalize(compile=compile)


def settled(model, batch=1, parts=2):
    """Return the equilibrium."""
    static = Static(force_tolerance=1e-11, load_steps=parts)
    return static.step(model, model.initial_state(batch), throw=True)[0]
