"""Loads that act for a time alone, where equilibria and modes are asked for at another time, and steps miss them."""

import warnings

import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    Static,
    follow,
    forces,
    modes,
    rollout,
    straight,
)

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


RULES = {"end": [ImplicitEuler, Newmark, BDF2], "middle": [ImplicitMidpoint]}
MISSED = {  # in steps of 0.01 s, at their end, and in their middle
    "end": [(0.012, 0.018), (0.0905, 0.0995), (0.0, 0.009), (-1.0, 0.009), (0.02, 0.0299)],
    "middle": [(0.016, 0.024), (0.0851, 0.0949), (0.0, 0.004), (-1.0, 0.004), (0.025, 0.0349)],
}
MET = {
    "end": [(0.01, 0.02), (0.0199, 0.0201), (0.012, 1.0), (0.0, 0.01), (-1.0, 0.0), (0.101, 0.109), (0.3, 0.301)],
    "middle": [(0.01, 0.02), (0.0149, 0.0151), (0.016, 1.0), (0.0, 0.005), (-1.0, 0.0), (0.106, 0.114), (0.3, 0.301)],
}


def moved(model, state, rule):
    """Return whether ten steps of 0.01 s of each robot meet its load, and what they end with."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            rollout(model, state, rule(0.01), 10)
        except RuntimeWarning as warning:
            said = str(warning)
        else:
            said = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return said, rollout(model, state, rule(0.01), 10, throw=True).positions[-1, :, -1, 2]


@pytest.mark.parametrize(("when", "rule"), [(when, rule) for when, rules in RULES.items() for rule in rules])
def test_loads_between_two_steps_are_named(when, rule):
    """Name loads that ten steps never meet, though they are in their time; no other ones, and none beyond the end."""
    for start, stop in MISSED[when]:
        model = cantilever(start=start, stop=stop)
        said, tip = moved(model, model.initial_state(), rule)
        if start <= 0 and rule in (Newmark, BDF2):  # the acceleration to begin with has it
            assert not said
            assert tip.abs().max() > 0
            continue
        assert f"PointForce(start={start:g}, stop={stop:g}) never acts in steps of 0.01 s" in said, (start, stop)
        assert f"at the {when} of each step" in said
        assert tip.abs().max() == 0
    for start, stop in MET[when]:
        model = cantilever(start=start, stop=stop)
        said, tip = moved(model, model.initial_state(), rule)
        assert not said, (start, stop)
        if start > 0:
            assert bool(tip.abs().max() > 0) == (start < 0.1), (start, stop)


def test_each_robot_has_its_own_time():
    """Name a load that one of two robots misses; count steps from the time that each has, in single precision, too."""
    for dtype in (torch.float64, torch.float32):
        model = cantilever(start=0.0101, stop=0.0199).to(dtype)
        for begins, missed in ((0.0, True), (0.005, False)):
            state = model.initial_state(batch=2)
            state = state.replace(time=torch.tensor([0.005, begins], dtype=dtype))
            said, tip = moved(model, state, ImplicitEuler)
            assert bool(said) == missed
            assert (tip.abs() > 0).tolist() == [True, not missed]
