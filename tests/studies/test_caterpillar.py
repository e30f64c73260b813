"""A caterpillar crawls as far as statics say, on both kinds of floor."""

import numpy as np
import pytest

from studies.caterpillar import caterpillar


@pytest.mark.parametrize("constraint", [pytest.param(True, marks=pytest.mark.slow), False])
def test_ways(constraint):
    """Get on by the stroke less what the segments give way, and nowhere without friction or with too short a stroke."""
    _, trajectory = caterpillar.simulated(constraint, cycles=2, dt=0.25)
    assert not trajectory.failed.any()
    crawl, expected = caterpillar.measured(trajectory), caterpillar.expected_ways().numpy()
    ways, crawls = crawl.ways[-1].numpy(), expected > 0
    # inertia: a foot that starts pushes another one back, by 0.02 to 0.04 mm; on the penalty they creep by 0.02 mm more
    np.testing.assert_allclose(ways[crawls], expected[crawls], rtol=0.02)
    assert np.abs(ways[~crawls]).max() < 2e-5
    smooth = np.array(caterpillar.FRICTION) == 0
    assert crawl.drifts[smooth].abs().max() < 1e-10  # momentum is kept to rounding
    assert crawl.drifts[crawls].min() > 5e-3
    assert crawl.overlaps.max() < 1e-8  # the constraint's tolerance; the penalty's onset bears a foot before overlap
