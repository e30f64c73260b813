"""A plate folds onto itself: as high as the folded elastica, whatever its modulus."""

import numpy as np
import pytest

from studies.folding_plate import folding_plate


def check_fold(trajectory, fold, accuracy):
    """Check rest, the floor's load, heights by theory and by order, and that nothing got through."""
    assert not trajectory.failed.any()
    assert fold.speeds.max() < 0.02
    # what still moves: 1e-2 m/s in 0.1 s is a hundredth of g
    np.testing.assert_allclose(fold.loads, 1.0, atol=0.02)
    assert (np.diff(fold.heights) > 0).all()
    theory = folding_plate.elastica_height() * folding_plate.lengths()
    np.testing.assert_allclose(fold.heights, theory, rtol=accuracy)
    assert fold.overlaps.max() < 0.6 * folding_plate.THICKNESS  # surfaces of two plates meet in the middle at 1


def test_elastica():
    """Find the loop of a heavy strip."""
    # an independent integration, with the pull left out, gives 0.906594 at 400 places
    assert abs(folding_plate.elastica_height() - 0.90660) < 1e-5


@pytest.mark.slow
def test_plate_folds():
    """Come to rest as high as the elastica, on a coarse mesh."""
    # sides of 0.56 to 0.26 of the length that the loop scales with: measured 13 % on the softest, 2 % on the stiffest
    check_fold(*folding_plate.simulated(spacing=0.05, dt=4e-3, duration=0.9), accuracy=0.17)


@pytest.mark.slow
def test_plate_folds_as_high_as_the_elastica():
    """Come to rest as the example is shipped."""
    # sides of 0.28 to 0.13 of that length: measured 2.9 % on the softest, 0.8 % on the stiffest
    check_fold(*folding_plate.simulated(), accuracy=0.04)
