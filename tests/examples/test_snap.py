"""Buckled strips snap where theory has it."""

import numpy as np
import pytest

from examples.snap import snap


@pytest.fixture(scope="module")
def strips():
    """Return the model and the arches at rest."""
    model = snap.build()
    return model, snap.buckled(model)


def test_angles(strips):
    """Find the published number by the linear beam, and the strips' angles near it."""
    model, arches = strips
    assert abs(snap.theory() / 1.7818 - 1) < 1e-4
    # a shallow arch is 0.64 sqrt(e) high; the deepest is 0.60 sqrt(e)
    assert (arches.positions[:, snap.NODES // 2, 2] > 0.59 * snap.LENGTH * snap.SHORTER.sqrt()).all()
    ratios = snap.snapping_angles(model, arches) / snap.SHORTER.sqrt() / snap.theory()
    # measured 0.9973, rising to 1.0015: stretching lets the shallowest go early
    np.testing.assert_allclose(ratios.numpy(), 1.0, atol=4e-3)


def test_motion(strips):
    """Stay up until shortly before the angle of theory, and be down at the end."""
    run = snap.snapped(*strips)
    middle = run.positions[:, :, snap.NODES // 2, 2]
    turned = snap.FURTHEST * (run.time / snap.TURNING).clamp(max=1)
    before = int((turned < 0.99 * snap.theory()).sum()) - 1
    assert (middle[before] > 0.2 * middle[0]).all()
    assert (middle[-1] < -0.9 * middle[0]).all()
    assert run.velocities[-1].abs().max() < 0.1
