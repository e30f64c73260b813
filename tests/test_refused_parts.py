"""What a builder is given by mistake, refused in the call that gives it."""

import math

import numpy as np
import pytest

from torchdismech import Circle, InputError, Material, RobotBuilder, straight

SECTION, MATERIAL = Circle(2e-3), Material(1e6, 1000.0)


def rod():
    """Return a builder with a rod of four edges."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 5), SECTION, MATERIAL)
    return builder


@pytest.mark.parametrize("distance", [-1e-9, math.nan, math.inf, "1e-9", None, np.zeros(2)])
def test_a_join_distance_that_is_none(distance):
    """It was taken: below zero and NaN, so that nothing was joined, infinity, so that all was one node."""
    with pytest.raises(InputError, match=r"join_distance: expected a finite length from 0 up \[m\], got"):
        RobotBuilder(join_distance=distance)


def test_join_distances():
    """Take zero, and numbers of NumPy."""
    for distance in (0, 0.0, np.float32(1e-6)):
        assert RobotBuilder(join_distance=distance).join_distance == distance
