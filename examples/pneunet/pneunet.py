"""Pneumatic actuators: natural curvature against gravity and a force at the tip, after the PneuNet of MAT-DiSMech.

Three rods of 0.1 m, held at one end, whose chambers under pressure bend them by 45, 90 and 180 degrees. Two numbers
come out:

- without loads each is a regular polygon of its natural angle: the tangent at the tip has turned by exactly that;
- with loads the moment of each spring, EI (kappa - natural kappa) / L, balances the weight and the force beyond its
  node. The largest imbalance over the largest moment is printed.

`python -m examples.pneunet.pneunet` prints both and draws pneunet.png; `--geometry` writes actuator.txt anew.
"""

from __future__ import annotations

import math
from pathlib import Path

from examples.pneunet.pressure import ANGLES
from examples.running import run, start, straight_rod
from torchdismech import Trajectory, write_dismech
from torchdismech.io.scene import load_scene
from torchdismech.view import pictured

import numpy as np
import torch

FOLDER = Path(__file__).parent
SCENE = FOLDER / "scene.toml"
UNLOADED = FOLDER / "unloaded.toml"


def write_geometry(path: Path = FOLDER / "actuator.txt", nodes: int = 51) -> None:
    """Write a straight rod of 0.1 m."""
    write_dismech(path, straight_rod(0.1, nodes))


def tip_angles(trajectory: Trajectory) -> np.ndarray:
    """Return the angles by which the tangents at the tips have turned (B,) [rad]."""
    x = trajectory.positions[-1]
    last = (x[:, -1] - x[:, -2]).numpy()
    return np.arctan2(-last[:, 2], last[:, 0]) % (2 * math.pi)


def imbalance(trajectory: Trajectory) -> float:
    """Return the largest difference of a spring's moment from that of the loads beyond it, over the largest moment."""
    scene = load_scene(SCENE)
    setup = scene.build(allow_code=True)
    model = setup.model
    state = model.initial_state(q=model.body.q_of(trajectory.positions[-1]))
    control = setup.schedule(state.time, model)
    term = model.term("bend_twist")
    natural = control.natural_curvature[..., 0]
    strain = model.strains(state)["kappa1"]
    angle = 2 * torch.atan(strain / 2)
    # the torque of E = EI/2 (kappa - natural)^2 / L by the angle between the edges, kappa = 2 tan(angle / 2)
    moment = term.energy.EI1 * (strain - natural) / term.measure / torch.cos(angle / 2) ** 2
    x = state.positions
    weight = model.body.node_mass()[:, None] * torch.tensor(scene.document.environment.gravity, dtype=torch.float64)
    loads = weight.repeat(3, 1, 1)
    loads[:, -1] += torch.tensor(scene.document.point_force[0].force, dtype=torch.float64)
    needed = torch.stack(
        [_moment(x[:, k + 1 :] - x[:, k : k + 1], loads[:, k + 1 :]) for k in model.springs[:, 1].tolist()], dim=1
    )
    return float((moment - needed).abs().max() / needed.abs().max())


def _moment(arm: torch.Tensor, force: torch.Tensor) -> torch.Tensor:
    """Return the moments (B,) about -y, the sense in which kappa1 counts, of forces (B, k, 3) at arms (B, k, 3)."""
    return (arm[..., 0] * force[..., 2] - arm[..., 2] * force[..., 0]).sum(-1)


def main() -> None:
    """Print the two numbers and draw the loaded actuators."""
    free = run(UNLOADED, allow_code=True, progress=False)
    print("angle of the tip [deg]:  " + ", ".join(f"{a:.6f}" for a in np.degrees(tip_angles(free))))
    print("natural angle [deg]:     " + ", ".join(f"{math.degrees(a):.6f}" for a in ANGLES))
    loaded = run(SCENE, allow_code=True, progress=False)
    print(f"imbalance of moments:    {imbalance(loaded):.1e} of the largest")
    pictured(loaded, Path("pneunet.png"))


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
