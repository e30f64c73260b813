"""An energy of one's own: Sadowsky's ribbon, twisted.

A thin ribbon that cannot stretch bends and twists along straight lines. Sadowsky (1930) integrated its bending energy
over the width: with kappa the curvature about the soft axis, tau the twist and D = E w h^3 / (12 (1 - nu^2)), as the
ribbon bends like a plate, psi = D/2 (kappa^2 + tau^2)^2 / kappa^2.

It is not convex where |tau| > |kappa| and singular at kappa = 0. Its convex envelope there is psi = D/2 (2 tau)^2
(Freddi, Hornung, Mora and Paroni, "A corrected Sadowsky functional for inextensible elastic ribbons", J. Elasticity
2016): smooth where the two meet, bounded below. The stiff axis has the stiffness of a beam.

A user writes `density` only; derivatives come from autograd. `python -m examples.ribbon.ribbon` twists a paper ribbon,
prints the torque beside that of a linear rod, and draws both if matplotlib is there.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

from examples.running import start
from torchdismech import Control, Material, Model, Rectangle, RobotBuilder, Static, straight
from torchdismech.elastic import Energy
from torchdismech.testing import check_energy

import torch
from torch import Tensor

LENGTH, WIDTH, THICKNESS, NODES = 0.2, 1e-2, 2e-4, 41  # m
YOUNGS, POISSON = 2e9, 0.3  # paper, Pa
BENDING = YOUNGS * WIDTH * THICKNESS**3 / (12 * (1 - POISSON**2))  # of a plate, N m^2


class Sadowsky(Energy):
    """Energy [J/m] of an inextensible ribbon, by kappa1 (soft), kappa2 (stiff) and twist tau, all in 1/m.

    Parameters
    ----------
    bending : D, that of a plate [N m^2].
    stiff : bending stiffness about the stiff axis [N m^2].
    """

    def __init__(self, bending: float, stiff: float):
        super().__init__()
        self.bending, self.stiff = bending, stiff

    def density(self, strain: tuple[Tensor, ...]) -> Tensor:
        """Return the relaxed Sadowsky energy plus that of the stiff axis."""
        kappa, stiff, tau = strain
        bends = kappa.abs() > tau.abs()
        safe = torch.where(bends, kappa, 1.0)  # keeps the branch that is not taken, and its gradient, finite
        sadowsky = torch.where(bends, (safe + tau**2 / safe) ** 2, 4 * tau**2)
        return 0.5 * self.bending * sadowsky + 0.5 * self.stiff * stiff**2


def strip() -> Model:
    """Return a straight ribbon along x, held by the first and the last edge, as a linear rod."""
    builder = RobotBuilder()
    section = Rectangle(width=WIDTH, height=THICKNESS)
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), NODES), section, Material(YOUNGS, 700.0, POISSON))
    builder.clamp(nodes=[0, 1])
    builder.clamp(nodes=[NODES - 2, NODES - 1])
    return builder.finalize()


def ribbon() -> Model:
    """Return the same strip with Sadowsky's energy in place of the linear one."""
    model = strip()
    model.term("bend_twist").energy = Sadowsky(BENDING, YOUNGS * THICKNESS * WIDTH**3 / 12)
    return model


def twisted(model: Model, angle: float, approach: float = 0.0) -> tuple[float, Tensor]:
    """Return the torque [N m] and the nodes (N, 3), the end turned by `angle` and pushed in by `approach` [m]."""
    state = model.initial_state()
    if approach:  # a first push to the side, so that the ribbon knows where to buckle
        q = state.q.clone()
        x = state.positions[0, :, 0] / LENGTH
        q[0, 2 : 3 * NODES : 3] += 0.5 * math.sqrt(approach * LENGTH) * torch.sin(math.pi * x.clamp(0, 1)) ** 2
        q[0, [2, 5, 3 * NODES - 4, 3 * NODES - 1]] = 0.0
        state = model.frames.moved(state, q)
    target = state.q.clone()
    target[0, [3 * NODES - 6, 3 * NODES - 3]] -= approach
    target[0, -1] = angle
    state, _ = Static(load_steps=8).step(model, state, Control(clamped_q=target), throw=True)
    torque = -model.mechanics.elastic_force(model.start_step(state), state.q)[0, -1].item()
    return torque, state.positions[0]


def main() -> None:
    """Print the torques, and draw the shapes where matplotlib is installed."""
    print(check_energy(Sadowsky(1.0, 100.0), strains=3, size=1.0))
    print(f"{'turns':>6} {'ribbon [N mm]':>14} {'linear rod [N mm]':>18}")
    for turns in (0.125, 0.25, 0.5):
        torques = [1e3 * twisted(model, 2 * math.pi * turns)[0] for model in (ribbon(), strip())]
        print(f"{turns:6.3f} {torques[0]:14.5f} {torques[1]:18.5f}")
    if importlib.util.find_spec("matplotlib"):
        draw(Path("ribbon.png"))


def draw(path: Path) -> None:
    """Draw ribbon and rod, pushed in by a tenth and turned by half a turn."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    side, top = figure.subplots(2, 1, sharex=True)
    for model, name in ((ribbon(), "Sadowsky's ribbon"), (strip(), "linear rod")):
        x, y, z = 1e3 * twisted(model, math.pi, approach=0.1 * LENGTH)[1].t().numpy()
        side.plot(x, z, label=name)
        top.plot(x, y)
    side.set(ylabel="z [mm]", aspect="equal", title="a paper strip, pushed in by a tenth and turned by half a turn")
    top.set(xlabel="x [mm]", ylabel="y [mm]", aspect="equal")
    side.legend()
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


if __name__ == "__main__":
    start(__doc__, main)
