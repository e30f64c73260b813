"""How much curves writhe."""

import numpy as np
import pytest

from torchdismech import helix
from torchdismech.geometry.curves import polygon_writhe


def test_flat_curves_do_not_writhe():
    """Find none in an arc, wherever its plane is."""
    arc = helix((0, 0, 0), (0.1, 0, 0), (0, 0.6, 0.8), 2.0, 0.0, 30)
    assert polygon_writhe(arc) == pytest.approx(0, abs=1e-6)  # arcsines at their ends: the root of rounding


def test_long_helices_writhe_as_theory_says():
    """Find n (1 - sin(pitch angle)) in n turns, of Fuller 1971; its mirror image has the opposite."""
    turns, radius, rise = 20, 0.01, 0.02  # m, m a turn
    line = helix((0, 0, 0), (radius, 0, 0), (0, 0, 1), 2 * np.pi * turns, turns * rise, 40 * turns + 1)
    sine = rise / np.hypot(rise, 2 * np.pi * radius)
    # where the ends go on straight to far away something is added that does not grow with the turns: 0.017 here
    assert polygon_writhe(line) == pytest.approx(turns * (1 - sine), abs=0.05)
    assert polygon_writhe(line * [-1, 1, 1]) == pytest.approx(-polygon_writhe(line), rel=1e-12)
