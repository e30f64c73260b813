"""Magnetised robots: their numbers against those of the page, beam theory, theorems and estimates."""

import math

import numpy as np
import pytest

from studies.magnetic_beam import magnetic_beam as beam
from studies.magnetic_crawler import magnetic_crawler as crawler
from studies.magnetic_swimmer import magnetic_swimmer as swimmer


def test_beam_at_rest():
    """Bend in eight fields as the elastica with a distributed couple says, to 0.1 % of the length."""
    expected = np.array([beam.shot(strength) for strength in beam.STRENGTHS])
    # second order in the edges' lengths, 0.7 mm at 20 T
    assert np.abs(beam.bent() - expected).max() < 1e-3


@pytest.mark.slow
def test_beam_in_a_turning_field():
    """Be where the page's beam is at five times, to the last digit that is known."""
    trajectory = beam.turned(20.0)
    for time, published in beam.PUBLISHED.items():
        assert np.abs(beam.tip_at(trajectory, time) - published).max() < 6e-7, time


@pytest.mark.slow
def test_reversed_waves_swim_backward():
    """Swim forward with a wave that runs backward, and backward with the reversed wave."""
    forward = float(swimmer.ways(*swimmer.swum(duration=0.6))[-1, 0])
    backward = float(swimmer.ways(*swimmer.swum(waves=[-1.0], duration=0.6, held=0))[-1, 0])
    assert forward > 0.03
    # mirror images but for the phase of the field; measured: 37.3 mm both
    assert backward == pytest.approx(-forward, rel=0.02)


@pytest.mark.slow
def test_swimmer():
    """Get as far as the page's swimmer; farther with smaller steps."""
    way = swimmer.ways(*swimmer.swum(late=swimmer.STEP))[:, 0]
    for time, published in swimmer.PUBLISHED.items():
        assert abs(float(way[round(time / 1e-2)]) - published) < 1.5e-6, time
    for dt, expected in ((5e-3, 0.852), (2.5e-3, 0.876)):
        assert abs(float(swimmer.ways(*swimmer.swum(dt=dt, late=dt))[-1, 0]) - expected) < 2e-3


@pytest.mark.slow
def test_speeds_of_swimmers():
    """Swim about as fast as small motions say; with the reversed wave backward, as fast as forward."""
    omegas = swimmer.FREQUENCIES
    found = swimmer.speeds(*swimmer.swum(omegas, [1.0] * 4, duration=4.0), omegas)
    for omega, speed in zip(omegas, found, strict=True):
        # slopes reach 1, where a theory of small ones gives too much: 0.82, 0.75, 0.67 and 0.61 of it
        assert 0.55 < speed / swimmer.expected_speed(omega, 1.0) < 0.9, omega
    backward = swimmer.speeds(*swimmer.swum(omegas, [-1.0] * 4, duration=4.0, held=0), omegas)
    # the means are over whole periods, up to the time between two frames; steadily so only after some seconds
    assert np.allclose(backward, -np.array(found), rtol=0.05)


def test_crawler_is_the_page_s():
    """Have 169 nodes, 168 edges and 182 bends; a stiff trunk; right angles at rest where legs begin."""
    model = crawler.build([0.3], [1.0])
    assert (len(model.nodes), len(model.rod_edges), len(model.springs)) == (169, 168, 182)
    stiffness = model.term("bend_twist").energy.EI1
    plain = crawler.YOUNGS * math.pi * crawler.RADIUS**4 / 4
    stiff = (model.springs < crawler.TRUNK_NODES).all(1)
    at_legs = (model.springs[:, 1] < crawler.TRUNK_NODES) & ~stiff
    assert (stiff.sum(), at_legs.sum()) == (47, 30)
    assert np.allclose(stiffness[stiff] / plain, 50.0) and np.allclose(stiffness[~stiff & ~at_legs] / plain, 1.0)
    assert np.allclose(stiffness[at_legs] / plain, 2 / (1 + 1 / 50))  # half an edge of the trunk, and half a leg's
    natural = model.natural_strains(1).natural_curvature[0, :, 0].numpy()
    assert np.allclose(np.abs(natural[at_legs]), 2.0)
    # coordinates are rounded, and nothing else is bent
    assert np.allclose(natural[~at_legs], 0.0)


def test_crawlers_push_where_there_is_friction():
    """Keep the middle of mass in place without friction, and not with it."""
    model, trajectory = crawler.simulated([0.0, 0.3], [1.0, 1.0], periods=0.1)
    x = crawler.middle(model, trajectory)
    way = (x[-1] - x[0]).abs()
    assert way[0] < 1e-12 and way[1] > 1e-6


@pytest.mark.slow
def test_crawlers_walk():
    """Walk along the wave of the legs by about four swings of a foot a period; not at all without friction."""
    model, trajectory = crawler.simulated([0.3, 0.3, 0.0, 0.7], [1.0, -1.0, 1.0, 1.0], periods=3)
    x = crawler.middle(model, trajectory)
    assert float((x[:, 2] - x[0, 2]).abs().max()) < 1e-8
    last = crawler.ways(model, trajectory)[-1]
    expected = 4 * crawler.swing()
    # an estimate of the size: 9.6, 13.2 and 14.9 mm of 12.1, which smaller steps change by as much (docs/magnetics.md)
    for robot, sign in ((0, 1), (1, -1), (3, 1)):
        assert float(last[robot]) == pytest.approx(sign * expected, rel=0.5)
