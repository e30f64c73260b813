"""Identify a rod in water from noisy markers: stiffness, density of the fluid, damping, natural curvature.

    python -m studies.identification.identification

Sixteen times the same rod is let go under water, and its markers are seen with other noise. All sixteen fits run as one
batch: each robot has its own four constants, and one `backward` gives the gradients of all. The spread over the robots
is the error bar, once the fits have come to their optima: after 40 steps all are still off by the same 3 % of
stiffness, and density and drag spread ten times more than by noise alone. Positions tell stiffness, damping and the
fluid's density relative to the rod's mass per length, which is known here: all of them times one number move alike.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    Model,
    RobotBuilder,
    forces,
    straight,
    trainable,
    unroll,
)

GRAVITY = (0.0, 0.0, -9.81)
RADIUS, DENSITY = 4e-3, 1200.0  # [m], [kg/m^3]: known
TRUTH = {"youngs": 1.5e6, "fluid_density": 1000.0, "viscosity": 0.4, "curvature": 1.5}  # [Pa, kg/m^3, Pa s, 1/m]
GUESS = {"youngs": 0.8e6, "fluid_density": 700.0, "viscosity": 0.2, "curvature": 0.0}
NODES, SPACING, STEPS, DT = 11, 0.03, 60, 0.01


def rod(youngs: float, fluid_density: float, viscosity: float, curvature: float) -> Model:
    """Return a rod that is held at one end, in a fluid."""
    builder = RobotBuilder()
    line = straight((0, 0, 0), (SPACING * (NODES - 1), 0, 0), NODES)
    builder.add_rod(line, Circle(RADIUS), Material(youngs, DENSITY))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity(GRAVITY))
    builder.add_force(forces.Buoyancy(GRAVITY, fluid_density))
    builder.add_force(forces.Viscous(viscosity))
    model = builder.finalize()
    model.term("bend_twist").natural_kappa1 += curvature * SPACING  # type: ignore[operator]
    return model


def swing(model: Model, robots: int) -> Tensor:
    """Return the positions (STEPS, robots, N, 3) of the rod let go with a push to the side."""
    velocity = torch.zeros(robots, model.n_dofs, dtype=torch.float64)
    velocity[:, 3 * (NODES - 1) + 1] = 1.0
    run = unroll(model, model.initial_state(velocity=velocity), ImplicitEuler(DT), STEPS)
    assert bool((run.status == 0).all()), run.status
    return run.positions[1:]


def identify(robots: int = 16, iterations: int = 80, noise: float = 1e-3) -> dict[str, Tensor]:
    """Return the constants (robots,) found from markers with `noise` [m]."""
    with torch.no_grad():
        clean = swing(rod(**TRUTH), robots)
    seen = clean + noise * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0), dtype=clean.dtype)
    model = rod(**GUESS)
    each = (robots, 1)
    factors = {
        "youngs": trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2", "bend_twist.GJ", "stretch.EA"], each),
        "fluid_density": trainable.scaled(model, ["Buoyancy.fluid_density"], each),
        "viscosity": trainable.scaled(model, ["Viscous.viscosity"], each),
    }
    curvature = trainable.shifted(model, ["bend_twist.natural_kappa1"], unit=SPACING, shape=each)  # a shift of 1 is 1/m
    parameters = [p for p in model.parameters() if p.requires_grad]
    # second order: stiffness, curvature and weight nearly make up for each other, and plain gradients crawl
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=iterations, history_size=30, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def misfit() -> Tensor:
        optimizer.zero_grad()
        chi_square = ((swing(model, robots) - seen) / noise).square().mean((0, 2, 3)).sum()
        chi_square.backward()
        return chi_square

    optimizer.step(misfit)
    found = {name: GUESS[name] * factor.log_factor.detach().exp().flatten() for name, factor in factors.items()}
    return {**found, "curvature": curvature.shift.detach().flatten()}


def main(robots: int, iterations: int) -> None:
    """Identify and print a table."""
    found = identify(robots, iterations)
    print(f"{'':14}{'true':>12}{'guess':>12}{'found':>12}{'+-':>12}")
    for name, values in found.items():
        numbers = (TRUTH[name], GUESS[name], float(values.mean()), float(values.std()))
        print(f"{name:14}" + "".join(f"{number:12.4g}" for number in numbers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", type=int, default=16, help="how many times the rod is seen")
    parser.add_argument("--iterations", type=int, default=80, help="steps of the optimiser")
    arguments = parser.parse_args()
    main(arguments.robots, arguments.iterations)
