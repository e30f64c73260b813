"""A square plate under its weight: how far its centre sags, beside Kirchhoff's plate theory.

    python -m examples.plate.plate

The square plate among the examples of MAT-DiSMech's code: 0.1 m square, 1 mm thick, steel. Its sides are clamped
(`scene.toml`) or simply supported (`supported.toml`), and eight thicknesses are solved in one batch. The load q is the
weight per area; plate theory (Timoshenko and Woinowsky-Krieger, 1959) gives for the centre

    w = 0.001265 q a^4 / D  clamped,    w = 0.004062 q a^4 / D  simply supported

for every Poisson's ratio. With mid-edge normals D = E h^3 / (12 (1 - nu^2)). Hinges on equilateral triangles are a
plate of Poisson's ratio 1/3 whose D is E h^3 / 12, whatever nu of the material. The table shows w D / (q a^4) on meshes
of 13 and 26 edges a side, and what the two say about the limit of fine meshes: the error falls with the square of the
edges' length, so that limit is fine + (fine - coarse) / 3. The triangles of both meshes have to be alike, as hinges are
another plate on each kind: with 10 and 20 edges, thus 12 and 23 rows, this limit is 0.7 % wrong. The clamped plate
takes mid-edge normals: hinges know no slope at a border, so clamping them takes a strip of triangles, and the strip's
width is an error of first order.

`plate_13.obj` and `plate_26.obj` are made by `python -m examples.plate.plate --geometry`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from examples.running import run, start
from torchdismech import Trajectory, meshes
from torchdismech.io.meshes import write_mesh
from torchdismech.io.scene import load_scene

import numpy as np

FOLDER = Path(__file__).parent
SIDE = 0.1  # m
GRAVITY = 9.81  # m/s^2
DIVISIONS = (13, 26)  # edges a side, with 15 and 30 rows of triangles: both within 0.1 % of equilateral ones
SUPPORT = {"scene.toml": "clamped", "supported.toml": "simply supported"}
THEORY = {"scene.toml": 0.00126532, "supported.toml": 0.00406235}
CASES = (("scene.toml", "midedge"), ("supported.toml", "midedge"), ("supported.toml", "hinge"))


def write_geometry(folder: Path = FOLDER) -> None:
    """Write the two meshes of nearly equilateral triangles."""
    for divisions in DIVISIONS:
        mesh = meshes.rectangle(SIDE, SIDE, SIDE / divisions)
        write_mesh(folder / f"plate_{divisions}.obj", mesh.nodes, mesh.triangles)


def sagged(scene: str, bending: str, mesh: str | Path) -> Trajectory:
    """Return the run (one equilibrium) of the plates (8 robots) of a scene, on a mesh."""
    overrides: dict[str, Any] = {"shell.bending": bending, "robot.file": str(mesh)}
    return run(FOLDER / scene, progress=False, **overrides)


def unit_deflection(trajectory: Trajectory, scene: str, bending: str) -> np.ndarray:
    """Return q a^4 / D of each plate (8,) [m]."""
    (shell,) = load_scene(FOLDER / scene).document.shell
    thickness = trajectory.randomized["shell.thickness"].numpy()
    rigidity = shell.youngs * thickness**3 / 12
    if bending == "midedge":
        rigidity /= 1 - shell.poisson**2
    return shell.density * thickness * GRAVITY * SIDE**4 / rigidity


def coefficients(trajectory: Trajectory, scene: str, bending: str) -> np.ndarray:
    """Return w D / (q a^4) at the centre of each plate (8,), by the parabola that fits the nodes around it."""
    place = (trajectory.positions[0, 0, :, :2].numpy() - 0.5 * SIDE) / SIDE
    near = np.linalg.norm(place, axis=1) < 0.15
    x, y = place[near].T
    parabola = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)
    sag = -trajectory.positions[-1, :, near, 2].numpy()
    return np.linalg.lstsq(parabola, sag.T, rcond=None)[0][0] / unit_deflection(trajectory, scene, bending)


def drawn(runs: dict[tuple[str, str], Trajectory], path: Path) -> Path:
    """Draw how the plates of 1.1 mm sag along their middle beside theory's centre, and return the picture's path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (scene, bending), trajectory in runs.items():
        nodes = trajectory.positions[0, 0].numpy()
        middle = np.flatnonzero(abs(nodes[:, 0] - 0.5 * SIDE) < 1e-9)  # every other row has a node there
        middle = middle[np.argsort(nodes[middle, 1])]
        sag = trajectory.positions[-1, 3, middle, 2].numpy() / unit_deflection(trajectory, scene, bending)[3]
        axes.plot(nodes[middle, 1] / SIDE, sag, ".-", label=f"{SUPPORT[scene]}, {bending}")
    for number in THEORY.values():
        axes.plot(0.5, -number, "k+", ms=12)
    axes.set(xlabel="y / a", ylabel="-w D / (q a$^4$)", title="a square plate under its weight; +: Kirchhoff")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return path


def main() -> None:
    """Print the deflections beside theory's, and draw the plates on the finer mesh."""
    print(f"{'':30}" + "".join(f"{title:>12}" for title in (*(f"{n} edges" for n in DIVISIONS), "limit", "theory")))
    finest = {}
    for scene, bending in CASES:
        runs = [sagged(scene, bending, f"plate_{divisions}.obj") for divisions in DIVISIONS]
        coarse, fine = (coefficients(r, scene, bending).mean() for r in runs)
        numbers = (coarse, fine, fine + (fine - coarse) / 3, THEORY[scene])
        print(f"{SUPPORT[scene] + ', ' + bending:30}" + "".join(f"{number:12.6f}" for number in numbers))
        finest[scene, bending] = runs[-1]
    if importlib.util.find_spec("matplotlib"):
        print("wrote", drawn(finest, Path("plate.png")))


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
