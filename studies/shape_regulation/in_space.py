r"""A rod takes the shape of a helix in space, with a twist of its own: regulation with stretch, both curvatures, twist.

The rod of `shape_regulation`, of 10 MPa, is clamped at one end, horizontally, under gravity. Its target is a helix of
curvature 60/m and torsion 30/m, 5 % longer than the rod, whose sections turn about it by -20 rad/m: against the
torsion, so both curvatures change along the rod, and twist is a target besides the shape. The helix begins at node 1,
with the direction and the section that the clamp holds. The loop measures strains only: an error anywhere moves all
nodes that come after.

Which rods can be held so? With the natural strains that carry the weight, gravity takes its part of the stiffness of
small motions about the shape. The lowest mode a obeys, with its eigenvalue m, the elastic part e of that, and the
damping c of the fluid,

    a'' + c a' + m a = e u,   u = -Kp a - Ki z,   z' = a,

a loop that holds for Ki < c (m / e + Kp), by Hurwitz's criterion. A soft rod has m < 0: its weight turns it over.
`python -m studies.shape_regulation.in_space` prints that beside the results for rods from 1.5 to 20 MPa (theory is on
the safe side: steps of implicit Euler damp, too), draws shape_regulation_in_space.png and checks the errors.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from studies.shape_regulation.shape_regulation import (
    DENSITY,
    DURATION,
    GRAVITY,
    LENGTH,
    LIMITS,
    POISSON,
    RADIUS,
    STEP,
    VISCOSITY,
    Number,
    Run,
    regulated,
)
from torchdismech import Circle, Control, Material, Model, RobotBuilder, forces, modes, straight
from torchdismech.control import PI, Fixed, Strains

NODES, YOUNGS = 51, 1e7  # Pa
CURVATURE, TORSION, TWIST, STRETCH = 60.0, 30.0, -20.0, 0.05  # 1/m, 1/m, rad/m, 1
MANY = (1.5e6, 2e6, 3e6, 5e6, 1e7, 2e7)  # Pa
SPACE_LIMITS: dict[str, Any] = {
    "rate": {**LIMITS["rate"], "twist": 400.0},
    "limit": {**LIMITS["limit"], "twist": 100.0},
    "smoothing": LIMITS["smoothing"],
}


def build(youngs: Number = YOUNGS, nodes: int = NODES, gravity: float = GRAVITY) -> Model:
    """Return the rod; numbers (B, 1) make robots of their own."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), nodes), Circle(RADIUS), Material(youngs, DENSITY, POISSON))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -gravity)))
    builder.add_force(forces.Viscous(VISCOSITY))
    return builder.finalize()


def target(model: Model) -> tuple[Tensor, Tensor]:
    """Return the nodes (N, 3) [m] of the target, and the directors m1 (E, 3) of the sections on its edges."""
    count = model.body.n_nodes
    way = (1 + STRETCH) * LENGTH / (count - 1) * np.arange(-1, count - 1)
    turn = float(np.hypot(CURVATURE, TORSION))  # about the helix's axis, a length
    at, middle = turn * way, turn * (way[1:] + way[:-1]) / 2
    x = np.stack([CURVATURE * np.cos(at), CURVATURE * np.sin(at), TORSION * at], axis=1) / turn**2
    tangent = np.diff(x, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    normal = -np.stack([np.cos(middle), np.sin(middle), 0 * middle], axis=1)
    angle = ((TWIST - TORSION) * (way[1:] - way[1]))[:, None]
    m1 = np.cos(angle) * normal + np.sin(angle) * np.cross(tangent, normal)
    # the helix is continued by one edge, which is turned into the clamp
    held_along, held_m1 = np.array([1.0, 0.0, 0.0]), model.directors[0].numpy()
    clamp = np.stack([held_along, held_m1, np.cross(held_along, held_m1)])
    turned = np.stack([tangent[0], m1[0], np.cross(tangent[0], m1[0])]).T @ clamp
    nodes = (x - x[1]) @ turned + model.nodes[1].numpy()
    nodes[0] = model.nodes[0].numpy()
    return torch.tensor(nodes), torch.tensor(m1 @ turned)


def loop(model: Model, **options: Any) -> PI:
    """Return the controller that holds the helix; options are those of `PI`."""
    strains = Strains(model, ["stretch", "curvature", "twist"])
    return PI(model, strains, Fixed(strains.of_shape(model, *target(model))), STEP, **options)


def held(model: Model, robots: int = 1, duration: float = DURATION, **options: Any) -> tuple[Run, PI]:
    """Return the run of the loop to the helix, and its controller."""
    controller = loop(model, **options)
    return regulated(model, robots, duration, controller, target(model)[0]), controller


@dataclass(frozen=True)
class Lowest:
    """The lowest modes of rods at rest on the helix: eigenvalue and its elastic part [1/s^2], damping [1/s] (B,)."""

    eigenvalue: Tensor
    elastic: Tensor
    damping: Tensor

    def largest_gain(self, Kp: float) -> Tensor:
        """Return the Ki (B,) below which the loop holds [1/s]."""
        return (self.damping * (self.eigenvalue / self.elastic + Kp)).clamp_min(0)


def lowest(youngs: Tensor, run: Run, controller: PI) -> Lowest:
    """Return the lowest modes of rods (B, 1) on the helix.

    Stiffness is E times a matrix, plus a part due to the weight, which does not change with E: so the derivative of an
    eigenvalue by log E is its elastic part.

    Parameters
    ----------
    run : run of one rod of YOUNGS that ended there. The difference of its natural strains from the target carries the
        weight, and is proportional to 1/E.
    """
    step = 1e-3
    reference, at = controller.reference(torch.zeros(1)), run.state.rows([0] * len(youngs))
    found = []
    for factor in (1 - step, 1.0, 1 + step):
        model = build(factor * youngs)
        natural = reference + YOUNGS / (factor * youngs) * (run.natural - reference)
        found.append(modes(model, at, 1, controller.strains.set_by(natural, Control(), model)))
    below, mode, above = (each.eigenvalue[:, 0] for each in found)
    return Lowest(mode, (above - below) / (2 * step), found[1].damping[:, 0])


def drawn(many: Run, limited: Run, path: Path) -> None:
    """Draw shapes and errors over time, where matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no {path}: pictures need matplotlib, pip install 'torchdismech[view]'")
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    shapes = figure.add_subplot(1, 2, 1, projection="3d")
    robot = MANY.index(YOUNGS)
    for at in (0.0, 0.1, 0.25, 0.5, 4.0):
        shapes.plot(*(1e3 * many.positions[many.at(at), robot]).t(), lw=1, label=f"{at:g} s")
    shapes.plot(*(1e3 * target(build())[0]).t(), "k:", label="target")
    shapes.set(xlabel="x [mm]", ylabel="y [mm]", zlabel="z [mm]", aspect="equal")
    shapes.locator_params(nbins=4)
    shapes.legend(fontsize=7)
    errors = figure.add_subplot(1, 2, 2)
    for k, youngs in enumerate(MANY):
        errors.semilogy(many.time, many.error[:, k], lw=1, label=f"{youngs / 1e6:g} MPa")
    errors.semilogy(limited.time, limited.error[:, 0], "k--", lw=1, label=f"{YOUNGS / 1e6:g} MPa, limits, smoothing")
    errors.axhline(1e-5, color="0.7", lw=0.7)
    errors.set(title="RMSE of the nodes [m]", xlabel="t [s]")
    errors.legend(fontsize=7)
    figure.savefig(path, dpi=130)
    print(f"wrote {path}")


def main() -> None:
    """Print which rods are held and which should be, draw them, and assert that the errors are small in the end."""
    youngs = torch.tensor(MANY, dtype=torch.float64)[:, None]
    plain, controller = held(build())
    limited, _ = held(build(), **SPACE_LIMITS)
    many, _ = held(build(youngs), len(MANY))
    print(repr(controller))
    print("RMSE of the nodes [m]: time [s]; 10 MPa; with limits and smoothing")
    for time in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0):
        print(f"{time:6g}" + "".join(f"{float(run.error[run.at(time), 0]):10.1e}" for run in (plain, limited)))
    print("E [MPa]; lowest eigenvalue, its elastic part [1/s^2]; largest Ki [1/s] by theory; RMSE at 2 and 4 s [m]")
    mode = lowest(youngs, plain, controller)
    for k, most in enumerate(mode.largest_gain(float(controller.Kp)).tolist()):
        late = "".join(f"{float(many.error[many.at(time), k]):10.1e}" for time in (2.0, 4.0))
        print(f"{MANY[k] / 1e6:6g}{float(mode.eigenvalue[k]):10.0f}{float(mode.elastic[k]):8.0f}{most:8.1f}  {late}")
    drawn(many, limited, Path("shape_regulation_in_space.png"))
    firm = youngs[:, 0] >= 3e6
    assert plain.worst_after(1.5) < 1e-5 and limited.worst_after(1.5) < 1e-5 and many.error[-1, firm].max() < 1e-5
    print("held within 1e-5 m: 10 MPa from 1.5 s on, with limits and smoothing, too; 3 to 20 MPa at 4 s")


if __name__ == "__main__":
    main()
