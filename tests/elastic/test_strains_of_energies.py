"""Energies of the library for terms whose strains they are no functions of: refused when the robot is built."""

import pytest
import torch

from torchdismech import Circle, InputError, Material, RobotBuilder, meshes, straight
from torchdismech.elastic import LinearElastic, MooneyRivlin, NeoHookean, Plate, StVenantKirchhoff, Sum

HALF = torch.tensor(0.5, dtype=torch.float64)
ENERGIES = {
    "neo-hookean": lambda: NeoHookean(100.0),
    "mooney-rivlin": lambda: MooneyRivlin(50.0, 10.0),
    "linear membrane": lambda: StVenantKirchhoff(HALF, HALF),
    "plate": lambda: Plate(HALF, HALF),
    "one stiffness": lambda: LinearElastic({"k": 1.0}),
    "three stiffnesses": lambda: LinearElastic({"a": 1.0, "b": 1.0, "c": 1.0}),
}
IN_PLANE, CURVATURES = "membrane11, membrane22, membrane12", "curvature11, curvature22, curvature12"
SPRINGS = r"membrane_stretch; this membrane is made of springs: add_shell\(membrane=\"continuum\"\)"
WRONG = [
    (
        "springs",
        "membrane",
        "neo-hookean",
        f"NeoHookean: expected a term of the strains {IN_PLANE}, got one of {SPRINGS}",
    ),
    ("springs", "membrane", "linear membrane", f"StVenantKirchhoff: expected .* {IN_PLANE}, got one of {SPRINGS}"),
    ("continuum", "midedge", "neo-hookean", f"NeoHookean: expected .* {IN_PLANE}, got one of {CURVATURES}$"),
    ("continuum", "midedge", "mooney-rivlin", f"MooneyRivlin: expected .* {IN_PLANE}, got one of {CURVATURES}$"),
    ("continuum", "membrane", "plate", f"Plate: expected .* {CURVATURES}, got one of {IN_PLANE}$"),
    (
        "continuum",
        "membrane",
        "one stiffness",
        r"LinearElastic: expected a stiffness for each of the term's 3 strains \(",
    ),
    ("rod", "bend_twist", "neo-hookean", f"NeoHookean: expected .* {IN_PLANE}, got one of kappa1, kappa2, tau$"),
    (
        "rod",
        "stretch",
        "three stiffnesses",
        r"LinearElastic: expected .* 1 strains \(stretch\), got a, b, c; 0 is none",
    ),
]
RIGHT = [
    ("continuum", "membrane", "neo-hookean"),
    ("continuum", "membrane", "linear membrane"),
    ("continuum", "midedge", "plate"),
    ("springs", "hinge", "one stiffness"),
    ("rod", "bend_twist", "three stiffnesses"),
]


def robot(kind):
    """Return a builder with a rod, or a sheet whose edges or triangles stretch."""
    builder, mesh = RobotBuilder(), meshes.rectangle(0.06, 0.03, 0.01)
    if kind == "rod":
        builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 5), Circle(2e-3), Material(1e6, 1100.0))
    else:
        bending = "hinge" if kind == "springs" else "midedge"
        builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(3e5, 1000.0, 0.3), bending=bending)
    return builder


WAYS = {
    "replaced": lambda builder, term, energy: builder.replace_energy(term, energy),
    "added": lambda builder, term, energy: builder.add_energy(term, energy),
    "dissipation": lambda builder, term, energy: builder.add_dissipation(term, energy),
    "in a sum": lambda builder, term, energy: builder.replace_energy(term, Sum({"own": energy})),
}


@pytest.mark.filterwarnings("ignore:shell. bending 'hinge'")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "term", "energy", "said"), WRONG)
def test_other_strains(kind, term, energy, said, way):
    """Name the term, what the energy is a function of and what the term has."""
    builder = robot(kind)
    WAYS[way](builder, term, ENERGIES[energy]())
    with pytest.raises(InputError, match=f"^{term}: {said}"):
        builder.finalize()


@pytest.mark.filterwarnings("ignore:shell. bending 'hinge'")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "term", "energy"), RIGHT)
def test_their_own_strains(kind, term, energy, way):
    """Take them, and find finite energies."""
    builder = robot(kind)
    WAYS[way](builder, term, ENERGIES[energy]())
    model = builder.finalize()
    assert all(bool(torch.isfinite(value).all()) for value in model.energies(model.initial_state()).values())
