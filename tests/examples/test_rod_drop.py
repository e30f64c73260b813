"""Rods that fall on a floor do what contact asks of them."""

import numpy as np
import pytest

from examples.rod_drop import rod_drop


@pytest.mark.slow
def test_rod_drop():
    """Lie on the floor in the end, and have moved aside only where it is rough."""
    model, trajectory = rod_drop.simulated(dt=1e-3, duration=0.4)
    drop = rod_drop.measured(model, trajectory)
    assert not trajectory.failed.any()
    # implicit Euler has taken all but 1e-5 of the bouncing's energy
    np.testing.assert_allclose(drop.loads, 1.0, atol=1e-3)
    smooth = np.array(rod_drop.FRICTION) == 0
    assert drop.ways[smooth].max() < 1e-9  # nothing pushes sideways
    assert drop.ways[~smooth].min() > 1e-3  # measured 1.4 to 11 mm
    assert drop.overlaps.max() < 0.5 * rod_drop.TOLERANCE  # measured 0.32 of it, at the impact of the stiff rods
