"""Where constant curvature fails: the paper's arm against the same arm as discrete elastic rods, in the plane, at rest.

The rods have 30 edges a section and the stiffness of a section of the length s, EA = 3 K s and EI = 1.5 K r^2 s. At
rest they have the length and the curvature that forces of the first chambers give, so that without weight both are the
same arcs. The weight, spread evenly, bends a rod most where the moment is largest; a section of constant curvature
spreads the bend over its length. The more the base leans, the more that matters.

`python -m studies.pneumatic_arm.against_rods` prints how far apart the tips are and draws against_rods.png.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import torch

from studies.pneumatic_arm.scenarios import LENGTHS, MASSES, RADIUS, STIFFNESS, hanging
from torchdismech import Circle, Material, RobotBuilder, Static, forces
from torchdismech.constant_curvature import equilibrium
from torchdismech.constant_curvature.posture import Posture
from torchdismech.errors import SimulationError, Status

EDGES = 30  # of a section
TILTS = [0.0, 15.0, 30.0, 45.0, 60.0, 75.0, 90.0]  # degrees that the base leans from straight down
FORCE = 5.0  # N, of the first chamber of every section


def axes(arm, q: torch.Tensor) -> np.ndarray:
    """Return the arm's axis (91, 3), at the ends of the rod's edges."""
    share = torch.arange(1, EDGES + 1, dtype=torch.float64) / EDGES
    turn = torch.linalg.matrix_exp(_skew(arm.orientation))[:, :, None]
    shape = arm.shape(q).permute(2, 1, 0)
    points = Posture(shape, share, torch.zeros(3, 1, dtype=torch.float64), turn).points[..., 0]
    return np.vstack([np.zeros(3), points.flatten(1).t().numpy()])


def _skew(v: torch.Tensor) -> torch.Tensor:
    zero = torch.zeros_like(v[0])
    rows = ((zero, -v[2], v[1]), (v[2], zero, -v[0]), (-v[1], v[0], zero))
    return torch.stack([torch.stack(row) for row in rows])


def pair(tilt: float, force: float = FORCE) -> tuple[np.ndarray, np.ndarray]:
    """Return the axes (91, 3) at rest of the arm and of the rods, whose base leans by `tilt` [degrees]."""
    arm = hanging([], 0, orientation=(0.0, np.pi - np.radians(tilt), 0.0))
    pushed = torch.zeros(1, 3, 3, dtype=torch.float64)
    pushed[:, :, 0] = force
    pushed = pushed.flatten(1)
    with torch.no_grad():
        rest = pushed / STIFFNESS  # without weight
        q = rest
        for share in np.arange(1, 11) / 10:  # of the weight, so that each search begins near
            arm.gravity[2] = -9.81 * share
            q, status = equilibrium(arm, q, pushed)
            if status.item() != Status.CONVERGED:
                raise SimulationError.from_status(status, f"rest of an arm leaning by {tilt} degrees")
        return axes(arm, q), rods(axes(arm, rest), arm.shape(rest)[0, :, 0].numpy())


def rods(nodes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the nodes (91, 3) at rest under gravity of rods that have the shape `nodes` without it."""
    each = {"EA": 3 * STIFFNESS * lengths, "EI1": 1.5 * STIFFNESS * RADIUS**2 * lengths}
    constants = {name: torch.tensor(np.repeat(value, EDGES)) for name, value in each.items()}
    section = Circle(RADIUS)
    density = np.repeat(np.array(MASSES) / lengths, EDGES) / (np.pi * RADIUS**2)
    builder = RobotBuilder(planar=True)
    builder.add_rod(nodes, section, Material(1e5, torch.tensor(density)), stiffness=constants)
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    model = builder.finalize()
    state, _ = Static(load_steps=8).step(model, model.initial_state(), throw=True)
    return state.positions[0].numpy()


def distances(arm: np.ndarray, rod: np.ndarray) -> tuple[float, float]:
    """Return the distance of the tips, and the largest distance of points at the same share of the length [m]."""
    apart = np.linalg.norm(arm - rod, axis=1)
    return float(apart[-1]), float(apart.max())


def draw(pairs: list[tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """Draw both axes for every tilt, where matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no {path}: pictures need matplotlib, pip install 'torchdismech[view]'")
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axis = figure.add_subplot(aspect="equal", xlabel="x [m]", ylabel="z [m]")
    for k, (arm, rod) in enumerate(pairs):
        color = f"C{k}"
        axis.plot(arm[:, 0], arm[:, 2], color=color, label=f"{TILTS[k]:g} degrees")
        axis.plot(rod[:, 0], rod[:, 2], color=color, linestyle="--")
    axis.legend(title="base leans by\n(dashed: rods)", fontsize="small", loc="upper left", bbox_to_anchor=(1.02, 1.0))
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


def main(out: Path) -> None:
    """Print the distances and draw the axes."""
    print(f"{sum(LENGTHS):g} m arm; base leans [degrees], tips apart, axes apart at most [mm]")
    pairs = [pair(tilt) for tilt in TILTS]
    for tilt, (arm, rod) in zip(TILTS, pairs, strict=True):
        tips, most = distances(arm, rod)
        print(f"{tilt:5g}{1e3 * tips:10.1f}{1e3 * most:10.1f}")
    draw(pairs, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("against_rods.png"))
    main(parser.parse_args().out)
