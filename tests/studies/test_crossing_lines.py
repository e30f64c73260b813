"""Lines that are pushed into a canopy stay on their side of it."""

import numpy as np
import pytest

from studies.crossing_lines import crossing_lines


@pytest.mark.slow
def test_lines_rest_on_the_canopy():
    """Keep all nodes of lines on their side of the cloth that they are pushed into, and balance what pushes them."""
    trajectory, crossing = crossing_lines.simulated(rings=4, dt=5e-3, duration=0.8)
    assert not trajectory.failed.any()
    surfaces = 2e-3 + 0.5 * crossing_lines.THICKNESS
    assert crossing.distances.min() > surfaces - 0.6 * crossing_lines.TOLERANCE
    assert crossing.overlaps.max() < 0.6 * crossing_lines.TOLERANCE  # measured 0.46 of it
    # the canopy still swings a little: measured 1.2 % of the load
    np.testing.assert_allclose(-crossing.pushes[:, 2], crossing.loads[:, 2], rtol=0.03)
    assert (np.diff(crossing.loads[:, 2]) > 0).all()
