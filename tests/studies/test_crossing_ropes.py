"""Ropes that cross: how unstable straight edges make them, as docs/contact.md has it."""

import numpy as np
import pytest

from studies.crossing_ropes.crossing_ropes import crossing, hanging

# 15 edges cross in the middle of two, 16 at two nodes; between which numbers both eigenvalues are [1/s^2]
EIGENVALUES = {
    (15, "straight"): [(-131, -90), (-46, -15)],  # as with 201 edges: -130 and -46
    (15, "smooth"): [(-60, -40), (10, 30)],
    (16, "straight"): [(40, 80), (80, 120)],  # a node holds a node, which many edges have no use for
    (16, "smooth"): [(25, 45), (40, 60)],
}


@pytest.mark.parametrize(("edges", "centre_line"), EIGENVALUES)
def test_modes_of_ropes_that_cross(edges, centre_line):
    """Leave the middle along both ropes on straight edges; on smooth lines along one at most, and half as strongly."""
    found = crossing(edges, centre_line)
    assert found.force == pytest.approx(0.267, rel=0.07)  # with many edges; of second order
    for value, (low, high) in zip(found.eigenvalues, EIGENVALUES[edges, centre_line], strict=True):
        assert low < value < high


@pytest.mark.slow
@pytest.mark.parametrize(("centre_line", "lowest"), [("straight", -125), ("smooth", -29.4)])
def test_ropes_leave_the_middle_as_their_modes_say(centre_line, lowest):
    """Grow in steps as the first mode does, which is much slower on smooth lines."""
    found = crossing(51, centre_line)
    assert found.force == pytest.approx(0.267, rel=0.006)
    assert found.eigenvalues[0] == pytest.approx(lowest, rel=0.01)
    assert found.measured() == pytest.approx(found.growth, rel=0.02)  # of first order in steps of 2 ms


def test_arcs_have_edges_of_one_length():
    """Hang from the pins in edges that are 1 m together."""
    points = hanging(11)
    lengths = np.linalg.norm(np.diff(points, axis=0), axis=1)
    assert lengths == pytest.approx(np.full(11, 1 / 11), rel=1e-12)  # 60 halvings
    assert points[[0, -1]] == pytest.approx(np.array([[-0.4, 0], [0.4, 0]]), abs=1e-12)
    assert points[:, 1].min() < -0.2
