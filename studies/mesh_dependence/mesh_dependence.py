"""How much the mesh decides: plates under their weight on five kinds of mesh, by both bending models.

Three plates have known deflections: a square one on hinged and one on clamped sides (Timoshenko and Woinowsky-Krieger,
Theory of Plates and Shells, 1959, tables 8 and 35), and a strip held at one end (here against a beam; the strip is
stiffer near its clamp, where it cannot contract sideways). Each is meshed with equilateral triangles, squares halved
one way and both ways, equilateral triangles turned by 0.3 rad and an unstructured mesh, in three sizes.

Mid-edge normals converge to plate theory on all of them. Hinges do not converge to it on any: what they converge to
depends on the mesh, by a factor of 1.6 between two meshes of the same plate, and the clamped plate is three times too
soft, as its sides are hinged at the clamps. That is what paper 000 says of the two models; hinges are the cheap one.
On the mesh that is called equilateral they even go to and fro (1.20, 0.91 and 1.09 for the strip), as a whole number of
rows has to fit: its triangles are 8 % flatter to 15 % higher, and hinges are another plate on each kind of them.

Run `python -m studies.mesh_dependence.mesh_dependence`: it prints the ratios to theory and draws mesh_dependence.png.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchdismech import Material, RobotBuilder, Static, forces, meshes

YOUNGS, POISSON, DENSITY, THICKNESS = 1e9, 0.3, 1000.0, 1e-3
GRAVITY = 1e-3  # m/s^2: deflections of a thousandth of the thickness, where plate theory is exact
SIDE = 0.1  # m
RIGIDITY = YOUNGS * THICKNESS**3 / (12 * (1 - POISSON**2))
LOAD = DENSITY * THICKNESS * GRAVITY  # N/m^2
MESHES: dict[str, dict] = {
    "equilateral": {"pattern": "equilateral"},
    "right": {"pattern": "right"},
    "cross": {"pattern": "cross"},
    "rotated": {"pattern": "rotated", "angle": 0.3},
    "random": {"pattern": "random", "seed": 1},
}
SPACINGS = (0.02, 0.01, 0.005)  # m
TICKS = (20, 50, 100, 200, 500)  # nodes


@dataclass(frozen=True)
class Plate:
    """A plate whose deflection is known: its width [m], how its sides are held, the deflection [m] in theory."""

    width: float
    sides: str
    deflection: float


PLATES = {
    "hinged sides": Plate(SIDE, "hinged", 0.00406235 * LOAD * SIDE**4 / RIGIDITY),
    "clamped sides": Plate(SIDE, "clamped", 0.00126532 * LOAD * SIDE**4 / RIGIDITY),
    "strip held at one end": Plate(0.4 * SIDE, "one end", LOAD * SIDE**4 / (8 * YOUNGS * THICKNESS**3 / 12)),
}


def deflection_over_theory(plate: Plate, bending: str, spacing: float, mesh: str) -> tuple[float, int]:
    """Return the deflection over that in theory, and the number of nodes."""
    flat = meshes.rectangle(SIDE, plate.width, spacing, **MESHES[mesh])
    x = flat.nodes
    builder = RobotBuilder()
    builder.add_shell(x, flat.triangles, THICKNESS, Material(YOUNGS, DENSITY, POISSON), bending, membrane="springs")
    at_start, at_end = x[:, 0] < 1e-9, x[:, 0] > SIDE - 1e-9
    if plate.sides == "one end":
        # hinges have no angle at a side that could be held: they are held by a second row of nodes
        held = x[:, 0] < spacing + 1e-9 if bending == "hinge" else at_start
    else:
        held = at_start | at_end | (x[:, 1] < 1e-9) | (x[:, 1] > plate.width - 1e-9)
    builder.clamp(nodes=np.flatnonzero(held).tolist(), twist=plate.sides != "hinged")
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    model = builder.finalize()
    solver = Static(force_tolerance=1e-12, relative_tolerance=1e-9)
    state, _ = solver.step(model, model.initial_state(), throw=True)
    down = -state.positions[0, :, 2].numpy()
    if plate.sides != "one end":
        return float(down.max() / plate.deflection), len(x)
    # hinges begin to bend half an edge before the last row that is held, mid-edge normals at it
    bent = SIDE - 0.5 * x[held, 0].max()
    return float(down[at_end].mean() / (plate.deflection * (bent / SIDE) ** 4)), len(x)


def main() -> None:
    """Print the ratios to theory and draw them."""
    found = {}
    for name, plate in PLATES.items():
        print(f"\n{name}: deflection over theory at spacings of {', '.join(f'{1e3 * s:g}' for s in SPACINGS)} mm")
        for bending in ("midedge", "hinge"):
            for mesh in MESHES:
                ratios = [deflection_over_theory(plate, bending, spacing, mesh) for spacing in SPACINGS]
                found[name, bending, mesh] = ratios
                print(f"  {bending:8} {mesh:12}" + "".join(f"{ratio:9.4f}" for ratio, _ in ratios))
    if importlib.util.find_spec("matplotlib"):
        print("wrote", drawn(found, Path("mesh_dependence.png")))


def drawn(found: dict, path: Path) -> Path:
    """Draw the ratios over the number of nodes and return the picture's path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    for plot, name in zip(figure.subplots(1, 3), PLATES, strict=True):
        for bending, style in (("midedge", "-o"), ("hinge", "--s")):
            for k, mesh in enumerate(MESHES):
                ratios, nodes = zip(*found[name, bending, mesh], strict=True)
                label = f"{bending}, {mesh}" if name == "hinged sides" else None
                plot.plot(nodes, ratios, style, color=f"C{k}", ms=4, lw=1.2, label=label)
        plot.axhline(1, color="0.4", lw=0.8)
        plot.set(title=name, xlabel="nodes", xscale="log", xticks=TICKS, xticklabels=TICKS)
        plot.minorticks_off()
    figure.axes[0].set_ylabel("deflection / theory")
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    return path


if __name__ == "__main__":
    main()
