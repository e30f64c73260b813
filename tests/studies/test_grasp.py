"""A gripper lifts a ball where friction carries its weight."""

import numpy as np
import pytest

from studies.grasp import grasp


def check_grasp(trajectory, result):
    """Check which fingers hold the ball, what carries it, and that no surface got into another."""
    assert not trajectory.failed.any()
    carried = grasp.FINGERS * np.array(grasp.FRICTION) * result.squeezes.numpy() / result.weight
    # nobody is near the limit, where the slope under the tips (a few per cent) would decide
    assert np.abs(carried - 1).min() > 0.05
    held = carried > 1
    np.testing.assert_allclose(result.holds, held, atol=0.01)
    # a ball let go may still rock between the fingertips: measured .07 of its weight on the coarse ball
    np.testing.assert_allclose(result.floors, ~held, atol=0.1)
    # what is held creeps down by less than the slip velocity times the time since the palm went up
    slipped = grasp.LIFT - result.lifts.numpy()
    assert (np.abs(slipped[held]) < grasp.SLIP_VELOCITY * (grasp.LIFTING + grasp.HOLDING)).all()
    assert (result.lifts.numpy()[~held] < 1e-3).all()
    assert result.overlaps.max() < 0.9 * grasp.TOLERANCE  # measured .77 of it, where a slippery finger pushes


@pytest.mark.slow
def test_a_gripper_lifts_a_ball():
    """Lift it with rough fingers, leave it on the floor with smooth ones."""
    _, trajectory, result = grasp.simulated(subdivisions=1, dt=5e-3)
    check_grasp(trajectory, result)


@pytest.mark.slow
def test_a_gripper_lifts_a_finer_ball():
    """Lift it as the example is shipped."""
    _, trajectory, result = grasp.simulated()
    check_grasp(trajectory, result)
