"""Clamped sides of shells that bend by hinges: what two held rows of nodes cost, and what the page on shells says."""

import math

import numpy as np
import pytest
import torch

from torchdismech import Control, Material, RobotBuilder, Static, forces, meshes

YOUNGS, THICKNESS, WIDTH = 1e9, 1e-3, 0.4


def deflection(rows: int, outside: bool) -> float:
    """Return that of a cantilever of length 1 by a load at its end, in parts of a beam's [1].

    Parameters
    ----------
    rows : of squares along it.
    outside : whether the second of the rows of nodes that are held is outside of the cantilever, and hinges between the
        two are twice as stiff, instead of inside.
    """
    cell = 1 / rows
    mesh = meshes.rectangle(WIDTH, 1 + cell * outside, cell, "right")
    nodes = mesh.nodes - [0, cell * outside, 0]
    builder = RobotBuilder()
    builder.add_shell(nodes, mesh.triangles, THICKNESS, Material(YOUNGS, 1000.0, 1 / 3), "hinge", membrane="springs")
    builder.clamp(nodes=np.flatnonzero(nodes[:, 1] < (0.5 if outside else 1.5) * cell).tolist())
    model = builder.finalize(compile=False)
    if outside:
        hinge = model.term("hinge").energy.hinge
        at_clamp = (np.abs(nodes[model.hinges[:, :2], 1]) < 1e-9).all(1)
        hinge.data = torch.where(torch.as_tensor(at_clamp), 2 * hinge, hinge)
    end = np.flatnonzero(nodes[:, 1] > 1 - 1e-9)
    stiffness = YOUNGS * THICKNESS**3 / 12 * WIDTH
    force = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    force[0, 3 * end + 2] = 1e-3 * stiffness / len(end)
    static = Static(force_tolerance=1e-13, relative_tolerance=0.0)
    after, _ = static.step(model, model.initial_state(), Control(force=force), throw=True)
    return after.positions[0, end, 2].mean().item() / (1e-3 / 3)


def test_two_rows_inside_are_an_edge_and_a_half_too_many():
    """Shorten a cantilever as a rod's two nodes do, an error of first order; come to the same limit from outside."""
    coarse, fine, finest = (deflection(rows, False) for rows in (10, 20, 40))
    limit = finest + (finest - fine)
    # the next order has a tenth of it at 10 rows
    assert np.array([coarse, fine]) / limit - 1 == pytest.approx([-0.15, -0.075], rel=0.2)
    outside = np.array([deflection(rows, True) for rows in (10, 20)]) / limit - 1
    # measured: 2.2 and .9 %, of which some belongs to the free sides
    assert np.abs(outside) == pytest.approx([0, 0], abs=0.03)
    assert outside[1] < 0.5 * outside[0]


def test_the_limit_is_not_theory():
    """Have hinges on halved squares bend a fifth too far, which no clamp mends."""
    assert deflection(40, True) == pytest.approx(1.19, abs=0.01)  # 1.192; mid-edge normals .96, as it cannot contract


@pytest.mark.parametrize(
    ("height", "within"),
    [(0.8333, (0.99, 1.01)), (math.sqrt(3) / 2, (1.05, 1.07)), (0.9167, (1.14, 1.17))],
    ids=["flatter", "equilateral", "higher"],
)
def test_strips_of_triangles_sag_by_their_height(height, within):
    """Meet a beam with the flat triangles of `examples/cantilever` by chance, and miss it with equilateral ones.

    A sheet of equilateral triangles bends to a cylinder as a beam does; a strip may curl sideways, and is softer.
    """
    edge, length, gravity, density = 4e-3, 0.1, 9.81, 1200.0
    mesh = meshes.rectangle(length, 6 * height * edge * (1 - 1e-6), edge)
    x = mesh.nodes[:, 0]
    builder = RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, THICKNESS, Material(2e10, density), "hinge", membrane="springs")
    builder.clamp(nodes=np.flatnonzero(x < 1.01 * edge).tolist())
    builder.add_force(forces.Gravity((0.0, 0.0, -gravity)))
    model = builder.finalize(compile=False)
    after, _ = Static(force_tolerance=1e-10).step(model, model.initial_state(), throw=True)
    free = length - 0.5 * edge  # it bends from half an edge before the last node that is held
    beam = density * gravity * THICKNESS * free**4 / (8 * 2e10 * THICKNESS**3 / 12)
    ratio = -after.positions[0, x > length - 1e-9, 2].mean().item() / beam
    assert within[0] < ratio < within[1]
