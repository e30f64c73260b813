"""The arm that reaches for targets."""

import torch

from studies.reach import reach


def test_gradients_find_feedback():
    """Take four updates on eight arms: the tip comes nearer to unseen targets than without any action."""
    torch.manual_seed(0)
    feedback = reach.trained_feedback(batch=8, updates=4, actions=10)
    env = reach.environment(16)
    still, acting = reach.final_distances(env, None)[0], reach.final_distances(env, feedback)[0]
    assert acting < 0.8 * still  # 0.47 of it was measured


def test_actuators_bend_their_halves():
    """Bend the upper half by BEND radians in all, about the axis across the plane."""
    model = reach.arm()
    matrix = reach.halves(model)
    springs = len(model.springs)
    assert matrix.shape == (2 * springs, 2)
    assert torch.allclose(matrix.sum(0), torch.full((2,), reach.BEND, dtype=torch.float64))
