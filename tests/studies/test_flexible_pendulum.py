"""The flexible pendulum: its numbers against an independent code, a continuous cable, and statistics."""

import numpy as np
import pytest
import torch

from studies.flexible_pendulum import flexible_pendulum as pendulum
from studies.flexible_pendulum import identification
from torchdismech import Trajectory
from torchdismech.rigid import natural_frequencies


@pytest.mark.slow
def test_swing():
    """Find the published angles, the known distances of tips, and a pendulum of 20 segments that runs as well."""
    runs = {n: pendulum.swing(pendulum.cable(n)) for n in pendulum.SEGMENTS}
    for n, angles in pendulum.PUBLISHED.items():
        # parts of 5 ms leave 1e-5 rad
        assert [float(runs[n].twist[k, 0, 0]) for k in (250, 501)] == pytest.approx(angles, abs=2e-5)
    known = {3: 0.0280, 5: 0.0082}
    for n, distance in known.items():
        assert pendulum.tip_rms(runs[n], runs[10]) == pytest.approx(distance, abs=1e-4)
    # of second order in the length of a segment: that of 20 is a quarter of what 5 and 10 differ by
    assert pendulum.tip_rms(runs[20], runs[10]) == pytest.approx(known[5] / 4, rel=0.1)


def test_half_a_second_of_the_swing(tmp_path):
    """Follow the independent code's first half second; write it, read it and draw it."""
    trajectory = pendulum.swing(pendulum.cable(3), steps=50)
    trajectory.save(tmp_path / "pendulum.h5")
    read = Trajectory.load(tmp_path / "pendulum.h5")
    assert read.energies.keys() == {"kinetic", "gravity", "elastic"} and read.positions.shape == (51, 1, 5, 3)
    # it falls from rest: no energy comes from anywhere but the motor, which does little yet
    total = sum(read.energies.values())[:, 0]
    assert float(total[10] - total[0]) < 1e-3
    pytest.importorskip("matplotlib")
    pendulum.pictured(read, tmp_path / "pendulum.png")
    assert (tmp_path / "pendulum.png").stat().st_size > 1000


def test_frequencies_approach_the_beam():
    """Fall to Euler and Bernoulli's three frequencies with the square of the length of segments."""
    beam = pendulum.beam_frequencies(3)
    assert beam[0] == pytest.approx(1.71042, abs=5e-6)
    errors = [natural_frequencies(pendulum.cable(n), 3)[0].numpy() / beam - 1 for n in (10, 20)]
    # rotary inertia, which the beam has not, is below 1e-4
    assert np.allclose(errors[0] / errors[1], 4, rtol=0.1), errors


@pytest.mark.parametrize(("segments", "mode"), [(5, 0), (9, 1), (12, 2)])
def test_segments_that_the_page_advises(segments, mode):
    """Meet the first, second and third frequency to 1 % with 5, 9 and 12 segments, and not with one fewer."""
    beam = pendulum.beam_frequencies(3)[mode]
    fewer, error = (
        float(natural_frequencies(pendulum.cable(n), 3)[0, mode]) / beam - 1 for n in (segments - 1, segments)
    )
    assert 0 < error < 0.01 < fewer


@pytest.mark.slow
def test_sagging():
    """Rest where a continuous cable does, all sixty-four, and closer with more segments."""
    errors = [np.abs(tips - expected).max() for tips, expected in map(pendulum.sagging, (5, 10))]
    # of second order but for 0.2 mm of swing that is left after 8 s
    assert errors[1] < 1.5e-3 and errors[0] > 3 * errors[1]


def test_pendulums_sink_past_where_a_cable_rests():
    """Let a stiff and a soft pendulum fall from the horizontal in one batch: statics tells how far they sink."""
    youngs = torch.tensor([[1.2e10], [9e10]], dtype=torch.float64)
    chain = pendulum.cable(10, youngs)
    gain = torch.tensor([3.0, 12.0], dtype=torch.float64)
    run = pendulum.swing(chain, 40, parts=1, gain=gain, damping=pendulum.HOLDING, goal=0.0)
    expected = [pendulum.cable_at_rest(*pair) for pair in zip(youngs[:, 0].tolist(), gain.tolist(), strict=True)]
    lowest = (run.positions[:, :, -1, 2] - pendulum.BASE[2]).min(0).values.numpy()
    # a load that comes at once makes a spring sink by twice of what it does at rest, less damping
    assert (lowest < expected).all() and (lowest > 2 * np.array(expected)).all()


def test_identification():
    """Recover both constants within three error bars, which are as wide as statistics says."""
    steps = 30
    found = identification.identify(robots=6, iterations=12, steps=steps)
    expected = identification.expected_errors(steps=steps)
    for name, values in found.items():
        mean, spread = float(values.mean()), float(values.std())
        assert abs(mean - identification.TRUTH[name]) < 3 * expected[name] / 6**0.5, name
        # the spread of six is known to within a factor of two or so
        assert 0.4 < spread / expected[name] < 2, name
