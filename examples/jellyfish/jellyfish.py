"""A jellyfish that pulses: how far it rises with each stroke.

    python -m examples.jellyfish.jellyfish

After the jellyfish of Py-DiSMech: a hemispherical bell with six tentacles at its rim, in water. The natural angles of
all hinges of the bell grow and fall back (`pulsing.py`), so it contracts and refills; the thrust is proportional to the
volume that it expels and acts while it does. Drag acts on the bell, resistive forces on the tentacles. The paper's
jellyfish is weightless in water, with a bell of 10 GPa. This one (radius 0.1 m) is half a per cent heavier than water,
so that it has to work to stay up. A sphere cannot bend without stretching, so how far its hinges narrow it depends on
how stiff it is in bending beside stretching, whatever its Young's modulus. This bell resists stretching by a seventieth
of what its material would, so that strokes are large. With the whole of it strokes are small, at 1 MPa and at 10 GPa
alike: the paper's jellyfish rises by millimetres a stroke (`tests/examples/test_shell_robots.py`).

Nine pulse in one batch. What comes out is the rise per stroke of the bell's top. The first has no thrust and sinks. A
rigid bell would sink at the speed at which drag carries its weight in water W: drag counts the speed along the normal
n, so on a half sphere 1/2 rho C_d v^2 (sum of A n_z^3) = 1/2 rho C_d v^2 pi R^2 / 2 = W, that is

    v = sqrt(4 W / (rho C_d pi R^2)).

The pulsing one sinks more slowly: its rim moves through the water as well, and the drag grows with the square of
the speed. The other eight rise, with each stroke the faster, the larger the coefficient of the thrust.

`jellyfish.txt` is made by `python -m examples.jellyfish.jellyfish --geometry`.
"""

from __future__ import annotations

import math
from pathlib import Path

from examples.jellyfish.pulsing import FREQUENCY
from examples.running import run, start
from torchdismech import Geometry, Trajectory, meshes, straight, write_dismech
from torchdismech.io.scene import load_scene
from torchdismech.view import pictured

import numpy as np

FOLDER = Path(__file__).parent
RADIUS = 0.1  # m
SPACING = 0.025  # m, of the bell's nodes
TENTACLES, TENTACLE_LENGTH, TENTACLE_EDGES = 6, 0.12, 6  # length in m
TOP = 0  # node


def jellyfish(spacing: float = SPACING) -> Geometry:
    """Return a bell that opens downwards and straight tentacles that hang from its rim."""
    bell = meshes.hemisphere(RADIUS, spacing)
    rim = np.flatnonzero(bell.nodes[:, 2] == 0)  # in the order of their azimuths
    nodes, edges, count = [bell.nodes], [], len(bell.nodes)
    for root in rim[:: len(rim) // TENTACLES]:
        start = bell.nodes[root]
        nodes.append(straight(start, start - (0, 0, TENTACLE_LENGTH), TENTACLE_EDGES + 1)[1:])
        tentacle = np.concatenate([[root], count + np.arange(TENTACLE_EDGES)])
        edges.append(np.stack([tentacle[:-1], tentacle[1:]], axis=1))
        count += TENTACLE_EDGES
    return Geometry(np.concatenate(nodes), np.concatenate(edges), bell.triangles)


def write_geometry(folder: Path = FOLDER, spacing: float = SPACING) -> Path:
    """Write the jellyfish and return the file's path."""
    path = folder / "jellyfish.txt"
    write_dismech(path, jellyfish(spacing))
    return path


def rises(trajectory: Trajectory) -> list[np.ndarray]:
    """Return for each jellyfish the rise of its top in each whole stroke [m]."""
    time, z = trajectory.time.numpy(), trajectory.positions[:, :, TOP, 2].numpy()
    found = []
    for robot, frequency in enumerate(FREQUENCY[: z.shape[1]]):
        strokes = np.arange(math.floor(time[-1] * frequency + 1e-9) + 1) / frequency
        found.append(np.diff(np.interp(strokes, time, z[:, robot])))
    return found


def sinking_speed() -> float:
    """Return the speed at which a rigid half sphere of the bell's material sinks [m/s]."""
    document = load_scene(FOLDER / "scene.toml").document
    (bell,), environment = document.shell, document.environment
    assert environment.drag is not None and environment.gravity is not None and environment.fluid_density is not None
    volume = 2 * math.pi * RADIUS**2 * bell.thickness
    weight = -environment.gravity[2] * volume * (bell.density - environment.fluid_density)
    return math.sqrt(4 * weight / (environment.drag.density * environment.drag.coefficient * math.pi * RADIUS**2))


def main() -> None:
    """Print the rise per stroke of each jellyfish, and draw the fourth."""
    trajectory = run(FOLDER / "scene.toml", allow_code=True)
    pictured(trajectory, Path("jellyfish.png"), robot=3, snapshots=4)
    coefficients = trajectory.randomized["environment.thrust.coefficient"].tolist()
    print(f"{'frequency [Hz]':>14}{'thrust [N s/m^3]':>18}   rise in each stroke [mm]")
    for frequency, coefficient, ways in zip(FREQUENCY, coefficients, rises(trajectory), strict=True):
        print(f"{frequency:14.1f}{coefficient:18.0f}   " + "".join(f"{1e3 * way:7.1f}" for way in ways))
    print(f"a rigid bell sinks at {1e3 * sinking_speed():.1f} mm/s")


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
