r"""Where the loop breaks: gains of the PI law for rods that take their natural shape at once, and for slow ones.

A rod that takes its natural shape within a sampling time T has s_{n+1} = u_{n+1}. Small errors then obey

    lambda^2 - (1 - Kp - Ki T) lambda - Kp = 0,

whose roots are within the unit circle for Kp + Ki T / 2 < 1 (and Ki > 0), and for Kp + Ki T < 1 errors fade without
changing sign from sample to sample. A rod that is heavy swings: the integral goes on to grow while the rod is still on
its way, and a hundredth of the gain is too much. One in a viscous fluid creeps, which damps the loop.

99 rods of 0.1 m and 9 nodes, each with gains of its own, shall take a slight S from rest, without gravity. A loop
breaks where its error grows in the end. `python -m studies.shape_regulation.stability` prints the
largest Ki T that holds for each Kp, beside theory's, and draws shape_regulation_stability.png.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from studies.shape_regulation.shape_regulation import LENGTH, POISSON, RADIUS
from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, forces, straight
from torchdismech.control import PI, Fixed, Strains
from torchdismech.runs.rollout import frames

NODES, STEP, STEPS = 9, 1e-2, 200  # s
PROPORTIONAL = torch.linspace(0.1, 1.1, 11, dtype=torch.float64)
INTEGRAL = torch.logspace(-2, 0.4, 9, dtype=torch.float64)  # Ki T
BEND = 1.0  # 1/m, of the target: small, so that theory is that of small errors


@dataclass(frozen=True)
class Plant:
    """A rod in a fluid: Young's modulus [Pa], density [kg/m^3], viscosity [Pa s]."""

    youngs: float
    density: float
    viscosity: float


PLANTS = {
    "at once": Plant(1e8, 1200.0, 0.1),
    "heavy": Plant(1e6, 30000.0, 0.1),
    "viscous": Plant(1e6, 1200.0, 3.0),
}


def build(plant: Plant) -> Model:
    """Return the rod, simply supported as in the example."""
    builder = RobotBuilder(planar=True)
    material = Material(plant.youngs, plant.density, POISSON)
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), NODES), Circle(RADIUS), material)
    builder.clamp(nodes=[0], axes="xz", twist=False)
    builder.clamp(nodes=[NODES - 1], axes="z", twist=False)
    builder.add_force(forces.Viscous(plant.viscosity))
    return builder.finalize()


def holds(plant: Plant, Kp: Tensor, KiT: Tensor, steps: int = STEPS) -> Tensor:
    """Return whether the loop holds with each pair of gains (B,)."""
    model = build(plant)
    strains = Strains(model, ["curvature"])
    s = torch.linspace(0, 2 * torch.pi, len(strains), dtype=torch.float64)
    # bounds the amplitude of a loop that breaks, so that its steps are easily solved
    limit = {"curvature": 5 * BEND}
    controller = PI(model, strains, Fixed(BEND * torch.sin(s)), STEP, Kp, KiT / STEP, limit=limit)
    integrator = ImplicitEuler(STEP, force_tolerance=1e-13, relative_tolerance=0)
    errors, status = [], torch.zeros(len(Kp), dtype=torch.long)
    for frame in frames(model, model.initial_state(len(Kp)), integrator, steps, controller=controller):
        errors.append((controller.reference.values - strains.measured(frame.state, model)).abs().amax(1))
        status = frame.status
    error = torch.stack(errors)
    half, late = error[steps // 3 : steps // 2].amax(0), error[-steps // 6 :].amax(0)
    # errors of a converged loop are rounding, and those of one with next to no integral are constant
    return (status == 0) & ((late < 1.001 * half) | (late < 1e-6 * BEND)) & (late < 2 * BEND)


def theory(Kp: Tensor) -> Tensor:
    """Return the Ki T below which a loop round a rod that takes its shape at once holds."""
    return (2 * (1 - Kp)).clamp_min(0)


def main() -> None:
    """Print and draw what holds."""
    Kp, KiT = (grid.flatten() for grid in torch.meshgrid(PROPORTIONAL, INTEGRAL, indexing="ij"))
    found = {name: holds(plant, Kp, KiT).reshape(len(PROPORTIONAL), -1) for name, plant in PLANTS.items()}
    print("largest Ki T that holds, of " + ", ".join(f"{value:.2g}" for value in INTEGRAL.tolist()))
    print("  Kp  theory" + "".join(f"{name:>10}" for name in found))
    for k, gain in enumerate(PROPORTIONAL.tolist()):
        most = (float(INTEGRAL[grid[k]].max()) if bool(grid[k].any()) else 0.0 for grid in found.values())
        print(f"{gain:4.2f}{float(theory(PROPORTIONAL[k])):8.2f}" + "".join(f"{value:10.2g}" for value in most))
    path = Path("shape_regulation_stability.png")
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no {path}: pictures need matplotlib, pip install 'torchdismech[view]'")
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    line = torch.linspace(0, 0.999, 200, dtype=torch.float64)
    for axes, (name, grid) in zip(figure.subplots(1, len(found), sharey=True), found.items(), strict=True):
        for mark, which, label in (("C0o", grid.flatten(), "holds"), ("C3x", ~grid.flatten(), "breaks")):
            axes.semilogy(Kp[which], KiT[which], mark, ms=4, label=label)
        axes.semilogy(line, theory(line), "k-", lw=1, label="Kp + Ki T / 2 = 1")
        axes.semilogy(line, 1 - line, "k:", lw=1, label="Kp + Ki T = 1")
        axes.set(title=name, xlabel="Kp", ylim=(0.007, 5))
    figure.axes[0].set_ylabel("Ki T")
    figure.axes[0].legend(fontsize=7, loc="lower left")
    figure.savefig(path, dpi=130)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
