"""The snake that finds faster waves."""

import math

import pytest
import torch

from studies.shape_tracking import swim
from studies.shape_tracking.shape_tracking import LENGTH, OMEGA, SLOPE, WAVES


def speeds(waves):
    """Return the mean speeds with these waves, alike from head to tail."""
    given = torch.tensor(waves, dtype=torch.float64)[:, None].expand(-1, 2)
    with torch.no_grad():
        return swim.mean_speeds(swim.environment(len(waves)), given)


def test_few_waves_are_fast():
    """Swim for half a second: with 0.9 waves the snake is several times as fast as with three."""
    env = swim.environment(2)
    at = env.began(torch.zeros(2).long(), torch.zeros(2).long())
    way = swim.middle(at.state)
    with torch.no_grad():
        for _ in range(3):
            at, outcome = env.acted(at, torch.tensor([[WAVES, WAVES], [0.9, 0.9]], dtype=torch.float64))
    assert not outcome.ended.any()
    gone = swim.middle(at.state) - way
    assert gone[0] > 0 and gone[1] > 4 * gone[0]


@pytest.mark.slow
def test_speeds_are_those_of_slender_bodies():
    """Swim with three to five waves: speeds by Gray and Hancock, less what a body of finite length loses."""
    found = speeds([3.0, 4.0, 5.0])
    k = 2 * math.pi * torch.tensor([3.0, 4.0, 5.0], dtype=torch.float64) / LENGTH
    slope = SLOPE * (WAVES * 2 * math.pi / LENGTH) / k
    theory = OMEGA / k * slope**2 / 2 / LENGTH  # (c_n - c_t) / c_t is 1 here
    # the wave grows in 0.25 of 2 s, and ends of the body swing freely
    assert ((found / theory > 0.65) & (found / theory < 1.05)).all()
    # as 1/k^3, within a tenth
    assert float(found[0] / found[2]) == pytest.approx((5 / 3) ** 3, rel=0.1)


@pytest.mark.slow
def test_gradients_find_a_faster_wave():
    """Climb from three waves, eight times: more than twice as fast; the gradient is that of differences."""
    env = swim.environment(1)
    at = torch.tensor([[2.0, 2.5]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(swim.mean_speeds(env, at).sum(), at)
    with torch.no_grad():
        for k in (0, 1):
            step = torch.zeros(1, 2, dtype=torch.float64)
            step[0, k] = 1e-4
            expected = (swim.mean_speeds(env, at + step) - swim.mean_speeds(env, at - step)) / 2e-4
            # 1e-4: steps are solved to 1e-8 N, of forces of 1e-5 N
            assert slope[0, k].item() == pytest.approx(expected.item(), rel=1e-4)
    waves = swim.climbed(updates=8)
    with torch.no_grad():
        slow, fast = swim.mean_speeds(swim.environment(2), torch.cat([torch.full_like(waves, WAVES), waves]))
    assert fast > 2 * slow
