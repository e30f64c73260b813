"""Ropes that cross: how unstable straight edges make them, as docs/contact.md has it."""

import numpy as np
import pytest

from studies.crossing_ropes.crossing_ropes import crossing, hanging


@pytest.mark.slow
@pytest.mark.parametrize("edges", [15, 51])
def test_ropes_leave_the_middle_as_their_modes_say(edges):
    """Have two unstable modes, whatever the edges, that curvature pushes back; grow in steps as the first does."""
    found = crossing(edges)
    # 0.2669 N with 201 edges, of second order: 15 are 180 times as far off; eigenvalues of 15 to 201 edges lie between
    assert found.force == pytest.approx(0.267, rel=0.07 if edges == 15 else 0.006)
    assert -131 < found.eigenvalues[0] < -100 and -46 < found.eigenvalues[1] < -20
    assert found.eigenvalues[0] / 2 < found.restored < 0 if edges == 15 else found.restored > -20
    assert found.measured == pytest.approx(found.growth[0], rel=0.02)  # of first order in steps of 2 ms


def test_arcs_have_edges_of_one_length():
    """Hang from the pins in edges that are 1 m together."""
    points = hanging(11)
    lengths = np.linalg.norm(np.diff(points, axis=0), axis=1)
    assert lengths == pytest.approx(np.full(11, 1 / 11), rel=1e-12)  # 60 halvings
    assert points[[0, -1]] == pytest.approx(np.array([[-0.4, 0], [0.4, 0]]), abs=1e-12)
    assert points[:, 1].min() < -0.2
