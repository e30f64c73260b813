"""Loads that act for a time alone, where equilibria and modes are asked for at another time, and steps miss them."""

import warnings

import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, Material, Static, follow, forces, modes, straight

CALLERS = {
    "Static": lambda model, state: Static().step(model, state),
    "follow": lambda model, state: follow(model, state, steps=1),
    "modes": lambda model, state: modes(model, state, 1),
}


def cantilever(**times):
    """Return a rod with a load at its tip that acts at some times."""
    load = forces.PointForce([4], (0, 0, -1e-4), **times)
    return rod_through(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(3e-3), Material(1e6, 1e3), [load]).finalize()


def at(model, *times):
    """Return the state at rest of robots at these times."""
    return model.initial_state(batch=len(times)).replace(time=torch.tensor(times, dtype=torch.float64))


@pytest.mark.parametrize("caller", CALLERS)
def test_loads_that_do_not_act_at_the_time_of_a_state_are_named(caller):
    """Name the load, its times and the robot's; nothing is said where it acts, in all robots."""
    model = cantilever(start=0.1, stop=0.5)
    for times, shown in (((0.0,), "0 s"), ((0.3, 0.6), "0.6 s")):
        words = rf"{caller}: PointForce\(start=0.1, stop=0.5\) does not act at {shown}, the time of the state"
        with pytest.warns(RuntimeWarning, match=words):
            CALLERS[caller](model, at(model, *times))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CALLERS[caller](model, at(model, 0.3, 0.5))


def test_robots_that_do_not_run_are_not_spoken_of():
    """Look at the times of running robots alone."""
    model = cantilever(stop=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Static().step(model, at(model, 0.0, 0.6), running=torch.tensor([True, False]))


def test_equilibria_have_loads_that_start_at_zero():
    """Bend a rod by a load that starts at 0, where its state is, as by one without a start."""
    found = []
    for model in (cantilever(), cantilever(start=0.0, stop=1.0)):
        found += [Static().step(model, model.initial_state(), throw=True)[0].q]
        found += [follow(model, model.initial_state(), length=0.5).states[-1].q]
    assert found[0][0, 14] < -1e-3  # the tip, in m
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
