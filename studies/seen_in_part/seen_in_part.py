"""Find the stiffness and the drag of a sheet of which 5 nodes in 16 are seen, and whose velocities nobody knows.

    python -m studies.seen_in_part.seen_in_part --out runs/seen_in_part

A square of rubber is held along one edge, hangs at rest and is struck. Five markers on it are recorded with noise, in
some frames not all of them. The fit starts from half of the sheet's stiffness and a quarter of the drag, and is told
nothing about how it was struck: it finds stiffness, drag and, for each recording, the velocities of all free nodes at
its start. The results are printed over the true values, with error bars.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech import InputError, Static, unroll
from torchdismech.io.scene import load_scene
from training.config import load
from training.config.scene import SceneRobot
from training.fitting import fit

FOLDER = Path(__file__).parent
DT, NOISE, MISSING = 0.01, 2e-4, 0.05  # [s]; [m]; share of markers that are not seen
SPEED = 1.5  # [m/s]


def struck(nodes: Tensor, count: int) -> Tensor:
    """Return velocities (count, N, 3) [m/s] of a struck sheet: smooth in space, and different in each recording."""
    generator = torch.Generator().manual_seed(3)
    x, y = nodes[:, 0] / 0.15, nodes[:, 1] / 0.15 - 0.5
    ways = torch.stack([x**2, x * y, x**2 * (2 * y**2 - 0.2)])
    sizes = SPEED * torch.randn(count, 3, len(ways), generator=generator, dtype=torch.float64)
    sizes[:, :2] *= 0.2  # mostly up and down
    return torch.einsum("bcw,wn->bnc", sizes, ways)


@torch.no_grad()
def recorded(count: int, frames: int, markers: list[int], scene: Path = FOLDER / "scene.toml") -> np.ndarray:
    """Return noisy positions (count, frames, M, 3) [m] of the markers; NaN where one was not seen."""
    setup = load_scene(scene).build()
    model = setup.model
    rest, info = Static().step(model, model.initial_state(count))
    velocity = torch.zeros_like(rest.q)
    velocity[:, : 3 * len(model.nodes)] = struck(model.nodes, count).flatten(1)
    start = rest.replace(velocity=torch.where(model.free, velocity, 0.0))
    run = unroll(model, start, setup.integrator, frames - 1)
    if bool((run.status != 0).any() | (info.status != 0).any()):
        raise InputError(f"the sheet that is to be recorded failed: status {run.status.tolist()}")
    seen = run.positions.transpose(0, 1)[:, :, markers]
    generator = torch.Generator().manual_seed(4)
    seen = seen + NOISE * torch.randn(seen.shape, generator=generator, dtype=seen.dtype)
    missing = torch.rand(seen.shape[:3], generator=generator, dtype=seen.dtype) < MISSING
    return torch.where(missing[..., None], torch.nan, seen).numpy()


def main(out: Path, settings: list[str], count: int = 8, frames: int = 41) -> dict[str, tuple[float, float]]:
    """Record and fit; print and return the values that were found, with standard deviations, over the true ones."""
    out.mkdir(parents=True, exist_ok=True)
    data = out / "recordings.npz"
    config = load(FOLDER / "fit.toml", [f"data.path={data}", *settings])
    assert config.markers is not None and config.markers.nodes is not None and isinstance(config.robot, SceneRobot)
    positions = recorded(count + 2, frames, config.markers.nodes)
    np.savez(data, train=positions[:count], eval=positions[count:], dt=DT)
    errors = fit(config, out / "run")
    facts = json.loads((out / "run" / "certainty.json").read_text())["constants"]
    true = load_scene(FOLDER / "scene.toml").build().model.places
    places = {"stiffness": "hinge.hinge", "drag": "Viscous.viscosity"}
    ratios = {}
    for name, place in places.items():
        there = float(getattr(*true[place]).flatten()[0])
        value, spread = facts[name]
        if name == "stiffness":  # of the first tensor, all of which share the factor
            there = float(getattr(*true["membrane.membrane"]).mean())
        ratios[name] = (value / there, spread / there)
        print(f"{name:10} {value / there:.3f} +- {spread / there:.3f} of what is true")
    print(f"held out   {1e3 * errors.mean:.2f} mm open loop; noise alone {1e3 * NOISE * (2 / np.pi) ** 0.5:.2f} mm")
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings and the run")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="change a field of fit.toml")
    arguments = parser.parse_args()
    main(arguments.out, arguments.settings)
