"""A manta ray that flaps and undulates: how far it swims with each stroke.

    python -m examples.manta_ray.manta_ray

After the ray of MAT-DiSMech: a rhombic sheet of equilateral triangles in water, flapped by the hinges along its centre
line, whose natural angles are -pi/4 (1 + sin(2 pi f t + lag s)) with s from -1/2 at the tail to 1/2 at the nose.
Gravity, buoyancy and drag along the triangles' normals act. The body is slightly heavier than water and as stiff as the
paper's; its size (span 1.39 m, length 0.8 m), frequencies and lags are this example's own.

Where the nose moves first, a wave runs to the tail and pushes water backwards: the ray swims forward (+y). Two
symmetries must hold: sheet and flapping are mirror images across x = 0, so the body's middle never leaves that plane;
and since the sheet is the same fore and aft, the opposite lag swims the same path backwards. What comes out is its way
per stroke in body lengths; there is no drag within the surface, so the rays gather speed from stroke to stroke. They
also sink, by 5 to 8 cm in 4 s, as nothing lifts a body that is heavier than water; the paper's ray, at
3.4 Hz, almost keeps its altitude.

`ray.obj` is made by `python -m examples.manta_ray.manta_ray --geometry`.
"""

from __future__ import annotations

import math
from pathlib import Path

from examples.manta_ray.flapping import FREQUENCY, LAG
from examples.running import run, start
from torchdismech import Trajectory
from torchdismech.geometry.meshes import Mesh
from torchdismech.io.meshes import write_mesh
from torchdismech.view import pictured

import numpy as np

FOLDER = Path(__file__).parent
LENGTH = 0.8  # m, from nose to tail, also of the sides
DIVISIONS = 6  # edges a side


def ray(divisions: int = DIVISIONS) -> Mesh:
    """Return a rhombus of 2 divisions^2 equilateral triangles in the x-y plane, nose on +y, wing tips on the x axis."""
    edge = LENGTH / divisions
    right, left = ((sign * math.sqrt(3) / 2 * edge, -edge / 2, 0.0) for sign in (1, -1))
    i, j = (k.reshape(-1, 1) for k in np.indices((divisions + 1, divisions + 1)))
    nodes = i * np.array(right) + j * np.array(left) + (0, LENGTH / 2, 0)
    front = (np.arange(divisions)[:, None] * (divisions + 1) + np.arange(divisions)).reshape(-1)  # of each cell
    at_left, at_right, back = front + 1, front + divisions + 1, front + divisions + 2
    halves = [np.stack([front, at_left, back], axis=1), np.stack([front, back, at_right], axis=1)]
    return Mesh(nodes, np.concatenate(halves))


def write_geometry(folder: Path = FOLDER, divisions: int = DIVISIONS) -> Path:
    """Write the ray and return the file's path."""
    path, mesh = folder / "ray.obj", ray(divisions)
    write_mesh(path, mesh.nodes, mesh.triangles)
    return path


def middles(trajectory: Trajectory) -> np.ndarray:
    """Return the mean of the nodes of each ray over time (T, B, 3) [m]."""
    return trajectory.positions.mean(dim=2).numpy()


def advances(trajectory: Trajectory) -> list[np.ndarray]:
    """Return for each ray the way of its middle forward (+y) in each whole stroke, in body lengths."""
    time, y = trajectory.time.numpy(), middles(trajectory)[:, :, 1]
    found = []
    for robot, frequency in enumerate(FREQUENCY[: y.shape[1]]):
        strokes = np.arange(math.floor(time[-1] * frequency + 1e-9) + 1) / frequency
        found.append(np.diff(np.interp(strokes, time, y[:, robot])) / LENGTH)
    return found


def main() -> None:
    """Print the way per stroke of each ray, and draw the first."""
    trajectory = run(FOLDER / "scene.toml", allow_code=True)
    pictured(trajectory, Path("manta_ray.png"), snapshots=4)
    print(f"{'frequency [Hz]':>14}{'lag [deg]':>10}   body lengths forward in each stroke")
    for frequency, lag, ways in zip(FREQUENCY, LAG, advances(trajectory), strict=True):
        print(f"{frequency:14.2f}{math.degrees(lag):10.0f}   " + "".join(f"{way:8.3f}" for way in ways))
    print(f"left the plane of symmetry by at most {abs(middles(trajectory)[:, :, 0]).max():.1e} m")


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
