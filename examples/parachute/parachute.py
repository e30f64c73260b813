"""A parachute falls, opens and settles: its terminal speed beside the balance of weight and drag.

    python -m examples.parachute.parachute

After the parachute of MAT-DiSMech: a flat hexagonal canopy of 1 m sides and 1 mm thickness, six ropes tied to its
corners, a payload where they meet; gravity, and drag with rho = 1 kg/m^3, C_d = 10. Eight payloads fall in one batch.
The ropes are a hundred times stiffer and the payloads heavier than the paper's, whose canopy outweighs its payload:
here one shape carries all of them. The paper's own, with ropes of 10 MPa and 0.13 kg, opens and settles as well, at
1.88 m/s with its stiff joints of ropes and canopy and with pinned ones (`tests/examples/test_shell_robots.py`).

At the end nothing accelerates any more, so drag has to equal weight, both computed here from scratch: the weight from
volumes and densities, the drag 1/2 rho C_d sum A |w| w n from the last positions and velocities. Its ratio to the
weight is the number that comes out. The opened canopy is a membrane whose shape depends on the directions of its loads
more than on their size, so that the speed goes with the square root of the weight: speed^2 / weight is nearly the same
for all, and larger than the 2 / (rho C_d A) of a flat plate.

Payloads end at 5.5 kg because the symmetric fall becomes unstable: with 8 kg a tilt grows from rounding, tenfold each
0.2 s, until the parachute glides aside and falls faster.

`parachute.txt` is made by `python -m examples.parachute.parachute --geometry`.
"""

from __future__ import annotations

import math
from pathlib import Path

from examples.running import run, start
from torchdismech import Geometry, Trajectory, meshes, straight, write_dismech
from torchdismech.io.scene import Scene, load_scene
from torchdismech.view import pictured

import numpy as np

FOLDER = Path(__file__).parent
SIDE = 1.0  # m, of the hexagon
DIVISIONS = 6  # edges of triangles a side
DROP = 1.5  # m, of the payload below the canopy
ROPE_EDGES = 6


def parachute(divisions: int = DIVISIONS) -> Geometry:
    """Return the canopy and six ropes; the payload's node follows those of the canopy, then those of the ropes."""
    canopy = meshes.hexagon(SIDE, divisions)
    payload = len(canopy.nodes)
    nodes, edges = [canopy.nodes, np.array([[0.0, 0.0, -DROP]])], []
    corners = np.flatnonzero(np.linalg.norm(canopy.nodes, axis=1) > SIDE * (1 - 1e-9))
    for k, corner in enumerate(corners):
        inner = payload + 1 + k * (ROPE_EDGES - 1) + np.arange(ROPE_EDGES - 1)
        nodes.append(straight(canopy.nodes[corner], nodes[1][0], ROPE_EDGES + 1)[1:-1])
        rope = np.concatenate([[corner], inner, [payload]])
        edges.append(np.stack([rope[:-1], rope[1:]], axis=1))
    return Geometry(np.concatenate(nodes), np.concatenate(edges), canopy.triangles)


def write_geometry(folder: Path = FOLDER, divisions: int = DIVISIONS) -> Path:
    """Write the parachute and return the file's path."""
    path = folder / "parachute.txt"
    write_dismech(path, parachute(divisions))
    return path


def weights(scene: Scene) -> np.ndarray:
    """Return the weight of each parachute with its payload (B,) [N]."""
    document = scene.document
    (canopy,), (ropes,) = document.shell, document.rod
    area = 1.5 * math.sqrt(3) * SIDE**2
    length = 6 * math.hypot(SIDE, DROP)
    cloth = canopy.density * canopy.thickness * area
    assert ropes.section.shape == "circle"
    rope = ropes.density * math.pi * ropes.section.radius**2 * length
    payload = scene.randomized["mass.0.add"].numpy()
    assert document.environment.gravity is not None
    return -document.environment.gravity[2] * (cloth + rope + payload)


def drags(trajectory: Trajectory, scene: Scene) -> np.ndarray:
    """Return the upward drag on each canopy at the end (B,) [N], node by node of each triangle."""
    drag = scene.document.environment.drag
    assert drag is not None
    start, x, u = (z.numpy()[..., trajectory.triangles, :] for z in _ends(trajectory))
    area = 0.5 * np.linalg.norm(_normal(start), axis=-1)
    normal = _normal(x)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    across = np.einsum("bfcx,bfx->bfc", u, normal)
    force = -0.5 * drag.density * drag.coefficient * area * (abs(across) * across).sum(axis=-1) / 3
    return (force * normal[..., 2]).sum(axis=-1)


def _ends(trajectory: Trajectory):
    """Return the first positions (N, 3) and the last positions and velocities (B, N, 3)."""
    return trajectory.positions[0, 0], trajectory.positions[-1], trajectory.velocities[-1]


def _normal(corners: np.ndarray) -> np.ndarray:
    """Return twice the area vectors (.., F, 3) of triangles (.., F, 3, 3)."""
    return np.cross(corners[..., 1, :] - corners[..., 0, :], corners[..., 2, :] - corners[..., 0, :])


def main() -> None:
    """Print speeds and the balance of forces, and draw the first parachute."""
    scene = load_scene(FOLDER / "scene.toml")
    trajectory = run(scene.path)
    pictured(trajectory, Path("parachute.png"), snapshots=4)
    weight, drag = weights(scene), drags(trajectory, scene)
    speed = -trajectory.velocities[-1].mean(dim=1)[:, 2].numpy()
    titles = ("payload [kg]", "weight [N]", "drag [N]", "drag/weight", "speed [m/s]", "speed^2/weight")
    print("".join(f"{title:>15}" for title in titles))
    payload = scene.randomized["mass.0.add"].numpy()
    for row in zip(payload, weight, drag, drag / weight, speed, speed**2 / weight, strict=True):
        print("".join(f"{number:15.4f}" for number in row))


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
