"""A cantilever as a rod, as a shell with hinges and as one with mid-edge normals: figure 8 of MAT-DiSMech.

A strip of length L = 0.1 m, 20 mm wide and 1 mm thick, sags under its weight, for Young's moduli from 20 GPa
(deflections of a tenth of a millimetre, where beams are linear) to 20 MPa (where it hangs down). What comes out is
the deflection of the tip over that of Euler-Bernoulli's beam, rho g A L^4 / (8 E I). L counts from where bending
begins: at the node that holds the rod in a direction, or at the last held normals of mid-edge bending; half an edge
before the last held node for hinges, whose bending is spread over half an edge to either side. At 20 GPa

- the rod must meet it: the beam is what a discrete rod converges to;
- hinges do on this mesh, by chance: its triangles are a little flatter than equilateral ones. The stiffness that the
  paper gives them makes a sheet of equilateral triangles as stiff as the beam if it bends to a cylinder. A strip, which
  may curl sideways, is softer and sinks 4 to 10 % further, by its width and mesh (see studies/mesh_dependence);
- mid-edge normals must lie between it and the plate that cannot contract sideways, 1 - nu^2 = 0.75 of it: near its held
  end the strip is such a plate;

and towards 20 MPa all leave it alike: a strip that hangs down does not sink further.

`python -m examples.cantilever.cantilever` prints the ratios and draws cantilever.png; `--geometry` writes rod.txt and
strip.obj anew.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from examples.running import run, start, straight_rod
from torchdismech import meshes, write_dismech
from torchdismech.io.meshes import write_mesh

import numpy as np

FOLDER = Path(__file__).parent
LENGTH, WIDTH, THICKNESS, DENSITY = 0.1, 0.02, 1e-3, 1200.0
EDGE = {"rod": 2e-3, "shell": 4e-3}  # m
# the scene, the bending model, and how far before the last held node bending begins [m]
MODELS = {
    "rod": ("scene.toml", None, 0.0),
    "hinge": ("shell.toml", "hinge", 0.5 * EDGE["shell"]),
    "midedge": ("shell.toml", "midedge", 0.0),
}


def write_geometry(folder: Path = FOLDER) -> None:
    """Write the line of the rod and the mesh of the shell."""
    write_dismech(folder / "rod.txt", straight_rod(LENGTH, round(LENGTH / EDGE["rod"]) + 1))
    mesh = meshes.rectangle(LENGTH, WIDTH, EDGE["shell"])
    write_mesh(folder / "strip.obj", mesh.nodes, mesh.triangles)


def ratios(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Return Young's moduli (4,) [Pa] and the deflections of the tip over those of the linear beam (4,)."""
    scene, bending, before = MODELS[model]
    found = run(FOLDER / scene, progress=False, **({"shell.bending": bending} if bending else {}))
    (youngs,) = found.randomized.values()
    x = found.positions[0, 0, :, 0]
    held = (found.positions[-1] == found.positions[0]).all(-1).all(0)  # the last row that stays where it is
    free_length = LENGTH - x[held].max().item() + before
    tip = x > LENGTH - 1e-9
    down = -found.positions[-1, :, tip, 2].mean(1).numpy()
    bending_stiffness = youngs.numpy() * WIDTH * THICKNESS**3 / 12
    beam = DENSITY * 9.81 * WIDTH * THICKNESS * free_length**4 / (8 * bending_stiffness)
    return youngs.numpy(), down / beam


def main() -> None:
    """Print the ratios, and draw the deflections over Young's modulus."""
    found = {name: ratios(name) for name in MODELS}
    print("deflection over Euler-Bernoulli's, by Young's modulus [Pa]")
    print(f"{'':10}" + "".join(f"{e:10.0e}" for e in found["rod"][0]))
    for name, (_, ratio) in found.items():
        print(f"{name:10}" + "".join(f"{r:10.4f}" for r in ratio))
    if importlib.util.find_spec("matplotlib"):
        print("wrote", drawn(found, Path("cantilever.png")))


def drawn(found: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> Path:
    """Draw the ratios over Young's modulus and return the picture's path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    plot = figure.subplots()
    for (name, (youngs, ratio)), marker in zip(found.items(), "os^", strict=True):
        plot.plot(youngs, ratio, f"-{marker}", label=name)
    plot.axhline(1, color="0.4", lw=0.8, label="Euler-Bernoulli")
    plot.set(xscale="log", xlabel="Young's modulus [Pa]", ylabel="deflection / Euler-Bernoulli")
    plot.legend(frameon=False)
    figure.savefig(path, dpi=110)
    return path


if __name__ == "__main__":
    start(__doc__, main, geometry=write_geometry)
