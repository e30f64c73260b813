"""Find what a simulated rod hides: drag in a fluid, and a bending law that stiffens.

    python -m studies.hidden_laws.hidden_laws --out runs/hidden_laws

A rod is held at one end and shaken. Its bending energy is EI/2 kappa^2 + c/4 kappa^4 [J/m] and the fluid around it
drags on it. Markers on it are recorded with noise. The fit starts with a linear rod, a wrong stiffness and a fifth of
the drag: it finds the constants, then a convex network adds what is missing from the bending law. The laws that it
finds are printed and drawn beside the true ones, and the whole fit can be looked at with `make tensorboard`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech import ImplicitEuler, InputError, trainable, unroll
from torchdismech.elastic import Energy
from torchdismech.elastic.energy import Strain
from training.config import Config, Robot, load
from training.fitting import fit
from training.reports.evaluation import evaluate, trained_system
from training.reports.metrics import Errors
from training.robots.rod_models import rod_builder
from training.robots.rod_motion import HeldMotion, held_edges, held_twist, rod_state
from training.robots.rods import RodSystem
from training.robots.trees import Tree

DT, SETTLING = 0.01, 100  # [s]; frames in which the rod comes to rest before a recording begins
LENGTHS = torch.full((8,), 0.05, dtype=torch.float64)  # [m]
TREE = Tree.chain(LENGTHS)
BENDING, STIFFENING, DRAG = 2e-3, 2e-5, 0.1  # EI [N m^2], c [N m^4], [Pa s]
NOISE = 2e-4  # [m]


class StiffeningBending(Energy):
    """The bending energy beyond the linear law: c/4 (kappa1^2 + kappa2^2)^2 [J/m]."""

    def __init__(self, stiffening: float):
        super().__init__()
        self.stiffening = stiffening

    def density(self, strain: Strain) -> Tensor:
        """Return the energy density (S, B) [J/m]."""
        kappa1, kappa2, _ = strain
        return 0.25 * self.stiffening * (kappa1**2 + kappa2**2) ** 2


def shaken(count: int, frames: int) -> Tensor:
    """Return positions (count, frames, N, 3) [m] that shake the first two nodes, differently in each recording.

    Those of the other nodes count in the first frame only, in which the rod is straight.
    """
    generator = torch.Generator().manual_seed(7)
    time = DT * (torch.arange(frames, dtype=torch.float64) - SETTLING)
    ramp = (time / 0.1).clamp(0, 1) ** 2
    x = torch.zeros(count, frames, len(LENGTHS) + 1, 3, dtype=torch.float64)
    x[..., 1:, 0] = LENGTHS.cumsum(0)
    for axis, amplitude in ((1, 0.04), (2, 0.08)):
        rate = 6 + 10 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
        shift = amplitude * ramp * torch.sin(rate * time)
        x[..., axis] += shift[..., None]
    return x


@torch.no_grad()
def recorded(count: int, frames: int) -> np.ndarray:
    """Return noisy positions (count, frames, N, 3) [m] of the rod with its hidden laws."""
    truth = Robot(gripped=[0, 1], bending=BENDING, relaxation_time=0.01, drag=DRAG)
    builder = rod_builder(truth, TREE)
    builder.add_energy("bend_twist", StiffeningBending(STIFFENING))
    model = builder.finalize()
    motion = shaken(count, SETTLING + frames)
    first = torch.arange(count)
    turned = held_twist(motion, held_edges(model), TREE).at(first, torch.zeros_like(first))
    state = rod_state(model, motion[:, 0], motion[:, 0], DT, turned, TREE)
    schedule = HeldMotion(model, motion, state.twist, DT)
    run = unroll(model, state, ImplicitEuler(DT), SETTLING + frames - 1, schedule, progress=True)
    if bool((run.status != 0).any()):
        raise InputError(f"the rod that is to be recorded failed: status {run.status.tolist()}")
    positions = run.positions.transpose(0, 1)[:, SETTLING:]
    noise = NOISE * torch.randn(positions.shape, generator=torch.Generator().manual_seed(8), dtype=positions.dtype)
    return (positions + noise).numpy()


def moment(system: RodSystem, curvature: Tensor) -> Tensor:
    """Return the bending moment [N m] of the fitted law at curvatures [1/m] in a vertical plane, mean over springs.

    The first director is horizontal (`training.robots.rod_motion.held_twist`), so the curvature in a vertical plane is
    kappa2. The rod is shaken mostly up and down and bends five times as much there as sideways, of which the network
    has seen little.
    """
    term = system.model.term("bend_twist")
    strain = torch.zeros(3, term.stencil.count, len(curvature), dtype=curvature.dtype)
    strain[1] = curvature
    with torch.no_grad():
        return term.energy.slopes(tuple(strain))[1].expand(term.stencil.count, -1).mean(0)


def report(folder: Path, errors: dict[str, Errors]) -> dict[str, float]:
    """Print and draw the laws that were found beside the true ones; return relative errors of drag and bending law."""
    from training.reports.pictures import blank

    system, recordings, _ = trained_system(folder)
    assert isinstance(system, RodSystem)
    curvature = torch.linspace(0, largest_curvature(recordings.positions), 40, dtype=torch.float64)
    true = BENDING * curvature + STIFFENING * curvature**3
    found = moment(system, curvature)
    module, attribute = trainable.constants(system.model)["Viscous.viscosity"]
    drag = getattr(module, attribute).item()
    guessed = load(folder / "config.json").robot
    assert isinstance(guessed, Robot)
    linear = guessed.bending * curvature
    law = float((found - true).square().mean().sqrt() / true.square().mean().sqrt())
    guess = float((linear - true).square().mean().sqrt() / true.square().mean().sqrt())
    noise = NOISE * math.sqrt(2 / math.pi)
    print(f"drag          {drag:.4f} Pa s; true {DRAG}, guessed {guessed.drag}")
    print(f"bending law   off by {100 * law:.1f} % rms up to {curvature[-1]:.0f} 1/m; the guess by {100 * guess:.0f} %")
    print(f"evaluation    {1e3 * errors['model'].mean:.2f} mm open loop; noise alone {1e3 * noise:.2f} mm")
    figure = blank(5, 4)
    axes = figure.subplots()
    for moments, name, style in ((true, "true", "k-"), (linear, "guessed", "C7--"), (found, "found", "C0.")):
        axes.plot(curvature, moments, style, label=name)
    axes.set(xlabel="curvature [1/m]", ylabel="bending moment [N m]")
    axes.legend()
    figure.savefig(folder / "bending_law.png", dpi=150)
    return {"drag": abs(drag / DRAG - 1), "law": law}


def largest_curvature(positions: Tensor) -> float:
    """Return the 95 % quantile of the recorded curvatures [1/m], beyond which there is little to learn from."""
    e = positions.diff(dim=2)
    tangent = e / torch.linalg.vector_norm(e, dim=-1, keepdim=True)
    turn = 2 * torch.tan(0.5 * torch.acos((tangent[:, :, 1:] * tangent[:, :, :-1]).sum(-1).clamp(-1, 1)))
    return float((turn / float(LENGTHS.mean())).flatten()[::7].quantile(0.95))


def main(out: Path, settings: list[str]) -> dict[str, float]:
    """Record, fit, evaluate, report."""
    out.mkdir(parents=True, exist_ok=True)
    data = out / "recordings.npz"
    positions = recorded(count=12, frames=100)
    np.savez(data, train=positions[:9], eval=positions[9:], dt=DT)
    config: Config = load(Path(__file__).with_name("fit.toml"), [f"data.path={data}", *settings])
    fit(config, out / "run")
    return report(out / "run", evaluate(out / "run"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings and the run")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="change a field of fit.toml")
    arguments = parser.parse_args()
    main(arguments.out, arguments.settings)
