"""Rods and springs found in networks of edges."""

import numpy as np
import pytest
import torch

from torchdismech import Circle, Material, RobotBuilder, straight
from torchdismech.geometry.topology import find_rods, find_springs


def found(n_nodes, edges):
    """Return rods and springs of a network."""
    edges = np.array(edges)
    rods = find_rods(n_nodes, edges)
    return rods, find_springs(n_nodes, edges, rods)


def test_a_chain_is_one_rod_in_file_order():
    """Walk a chain from its first edge's first node."""
    (rod,), springs = found(4, [[0, 1], [1, 2], [2, 3]])
    assert rod.nodes.tolist() == [0, 1, 2, 3] and rod.signs.tolist() == [1, 1, 1]
    assert springs.nodes.tolist() == [[0, 1, 2], [1, 2, 3]]
    assert springs.along_rod.all()


def test_reversed_and_shuffled_edges():
    """Pass the earliest edge as it is stored, the others as they come."""
    (rod,), springs = found(4, [[2, 1], [2, 3], [0, 1]])
    assert rod.nodes.tolist() == [3, 2, 1, 0]
    assert rod.edges.tolist() == [1, 0, 2] and rod.signs.tolist() == [-1, 1, -1]
    assert springs.signs.tolist() == [[-1, 1], [1, -1]]


def test_a_ring_is_closed():
    """Return to the first node, with a spring there, too."""
    (rod,), springs = found(4, [[0, 1], [1, 2], [2, 3], [3, 0]])
    assert rod.closed and rod.nodes.tolist() == [0, 1, 2, 3, 0]
    assert springs.nodes.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]]


def test_branches_end_rods():
    """End rods at a node with three edges, and put a spring between each pair there, after those along rods."""
    rods, springs = found(6, [[0, 1], [1, 2], [3, 2], [2, 4], [4, 5]])
    assert [rod.nodes.tolist() for rod in rods] == [[0, 1, 2], [3, 2], [2, 4, 5]]
    assert springs.nodes.tolist() == [[0, 1, 2], [2, 4, 5], [1, 2, 3], [1, 2, 4], [3, 2, 4]]
    assert springs.signs.tolist() == [[1, 1], [1, 1], [1, -1], [1, 1], [1, 1]]
    assert springs.along_rod.tolist() == [True, True, False, False, False]


def test_a_lasso_has_its_knot_spring_once():
    """Count the pairs at the knot of a loop with a tail once each."""
    rods, springs = found(4, [[0, 1], [1, 2], [2, 3], [3, 1]])
    assert len(rods) == 2
    assert sorted(map(tuple, springs.edges.tolist())) == [(0, 1), (0, 3), (1, 2), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("degrees", "slope", "expected"),
    [(0, 0, (0, 0, 1)), (89.99, 0, (0, 0, 1)), (90, 0, (0, 0, 1)), (-90, 0, (0, 0, 1)), (0, 90, (-1, 0, 0))],
)
def test_first_directors_of_horizontal_rods_are_up(degrees, slope, expected):
    """Give horizontal rods d1 = z, also one along y, a vertical one d1 along x."""
    angle, rise = np.radians(degrees), np.radians(slope)
    tangent = np.array([np.cos(angle) * np.cos(rise), np.sin(angle) * np.cos(rise), np.sin(rise)])
    builder = RobotBuilder()
    builder.add_rod([0 * tangent, tangent], Circle(0.1), Material(1.0, 1.0))
    found = builder.finalize(compile=False).body.directors[0]
    assert torch.allclose(found, torch.tensor(expected, dtype=found.dtype), atol=1e-12)


def test_rods_that_go_on_from_others_carry_their_directors_on():
    """Carry d1 = t x y of a vertical rod around the corner to a rod along y of another call, not up."""
    builder = RobotBuilder()
    builder.add_rod([[0, 0, 0], [0, 0, 1]], Circle(0.1), Material(1.0, 1.0))
    builder.add_rod([[0, 0, 1], [0, 1, 1]], Circle(0.1), Material(1.0, 1.0))
    found = builder.finalize(compile=False).body.directors
    assert torch.allclose(found, found.new_tensor([[-1.0, 0.0, 0.0]]).expand(2, 3), atol=1e-12)


def test_directors_along_x():
    """Give a rod along x in the x-z plane d1 = z, so that kappa1 is positive where it curls up."""
    builder = RobotBuilder()
    builder.add_rod([[0, 0, 0], [1, 0, 0], [2, 0, 0.2]], Circle(0.1), Material(1.0, 1.0))
    model = builder.finalize()
    assert torch.allclose(model.directors[0], torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    strains = model.strains(model.initial_state())
    angle = np.arctan2(0.2, 1)
    assert torch.allclose(strains["kappa1"], torch.tensor(2 * np.tan(angle / 2)))
    assert strains["kappa2"].abs().max() < 1e-15


def test_reversing_edges_changes_nothing():
    """Have the same energy and nodal forces however the edges are stored."""
    nodes = np.array([[0, 0, 0], [1, 0, 0.1], [2, 0.2, 0], [2.5, 1, 0], [2.6, -1, 0.5]]) * 0.1
    results = []
    for edges in ([[0, 1], [1, 2], [2, 3], [2, 4]], [[0, 1], [2, 1], [3, 2], [2, 4]]):
        builder = RobotBuilder()
        builder.add_rods(nodes, edges, Circle(5e-3), Material(1e6, 1000.0), natural="straight")
        model = builder.finalize()
        q = model.initial_state().q.clone()
        q[0, :15] += 0.005 * torch.randn(15, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        state = model.initial_state(q=q)
        force = model.mechanics.elastic_force(model.start_step(state), state.q)[:, :15]
        results.append((force, sum(model.energies(state).values())))
    # rounding of forces of 10 N
    assert (results[0][0] - results[1][0]).abs().max() < 1e-10
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-12)


def test_coincident_nodes_are_joined():
    """Join rods that meet at a point, and keep them apart elsewhere."""
    builder = RobotBuilder()
    first = builder.add_rod(straight((0, 0, 0), (1, 0, 0), 3), Circle(0.01), Material(1e6, 1000.0))
    second = builder.add_rod(straight((0.5, 0, 0), (0.5, 1, 0), 3), Circle(0.02), Material(1e6, 1000.0))
    assert second[0] == first[1] and len(builder.nodes) == 5
    model = builder.finalize()
    assert len(model.springs) == 1 + 3
    # edges of two sections: EA of each its own
    assert model.term("stretch").energy.EA[[0, -1]].tolist() == [1e6 * np.pi * 1e-4, 1e6 * np.pi * 4e-4]
