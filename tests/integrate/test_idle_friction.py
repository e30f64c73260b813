"""Friction, which has no part in equilibria, is named where it may be what holds a robot."""

import math
import warnings

import pytest
import torch

from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    RobotBuilder,
    SimulationError,
    Static,
    Status,
    follow,
    forces,
    rollout,
    straight,
)
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Path, Penalty, SelfContact
from torchdismech.integrate.equilibria import settling

PENALTY = Penalty(100.0, 5e-4)
SMOOTHED = Friction(2.0, 1e-3)
BELT = Path.uniform((0, 0.1, 0))


def on_floor(response, friction, path=None, height=0.0):
    """Return a rod that is held by an end, lies on a floor and is pulled along it by the other."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 2e-3), (0.1, 0, 2e-3), 6), Circle(2e-3), Material(1e7, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.PointForce([5], (0, 1e-3, 0)))
    plane = HalfSpace((0, 0, -height), (0, 0, 1))
    builder.add_contact(Obstacle(plane, response, friction, path=path, name="floor"))
    return builder.finalize(compile=False)


def crossing(friction):
    """Return two rods that cross, the upper pressed onto the lower."""
    builder = RobotBuilder()
    for points in (straight((-0.1, 0, 0), (0.1, 0, 0), 5), straight((0, -0.1, 4e-3), (0, 0.1, 4e-3), 5)):
        rod = builder.add_rod(points, Circle(2e-3), Material(1e7, 1000.0))
        for end in (rod[0], rod[-1]):
            builder.clamp(nodes=[end], direction="rest")
    builder.add_force(forces.PointForce([7], (0, 0, -0.01)))
    builder.add_contact(SelfContact(PENALTY, friction))
    return builder.finalize(compile=False)


def slope(response, friction):
    """Return a rod that nothing but friction holds: it lies on a slope of .2, along it."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 2e-3), (0.1, 0, 2e-3), 6), Circle(2e-3), Material(1e7, 1000.0))
    builder.add_force(forces.Gravity((9.81 * math.sin(0.2), 0, -9.81 * math.cos(0.2))))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), response, friction, name="slope"))
    return builder.finalize(compile=False)


def words_of(model):
    """Return what `Static` warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Static().step(model, model.initial_state())
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "made, called",
    [
        (lambda: on_floor(PENALTY, SMOOTHED), "obstacle 'floor' (HalfSpace)"),
        (lambda: on_floor(PENALTY, Friction(0.0, 1e-3, static=0.5)), "obstacle 'floor' (HalfSpace)"),
        (lambda: on_floor(Complementarity(), Friction(2.0)), "obstacle 'floor' (HalfSpace)"),
        (lambda: on_floor(Complementarity(), Friction(2.0), BELT), "obstacle 'floor' (HalfSpace)"),
        (lambda: crossing(SMOOTHED), "SelfContact 'self_contact'"),
    ],
    ids=["penalty", "static", "complementarity", "belt by complementarity", "parts"],
)
def test_friction_of_contacts_under_load_is_named(made, called):
    """Say once what is left out, and what to do to have it."""
    (said,) = words_of(made())
    assert said.startswith(f"Static: the friction of {called} has no part in equilibria")
    assert "time steps with damping" in said


@pytest.mark.parametrize(
    "made",
    [
        lambda: on_floor(PENALTY, None),
        lambda: on_floor(PENALTY, Friction(0.0, 1e-3)),
        lambda: on_floor(PENALTY, SMOOTHED, BELT),
        lambda: on_floor(PENALTY, SMOOTHED, height=0.05),
        lambda: crossing(None),
    ],
    ids=["smooth", "coefficient 0", "belt", "out of reach", "parts"],
)
def test_nothing_is_said_where_friction_is_none_or_acts(made):
    """Belts pull, and what touches nothing is not rubbed."""
    assert words_of(made()) == []


def test_coefficients_of_each_robot_and_robots_that_do_not_run():
    """Look at running robots alone, by their own coefficients."""
    model = on_floor(PENALTY, Friction(torch.tensor([[0.0], [0.5]], dtype=torch.float64), 1e-3))
    state = model.initial_state(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Static().step(model, state, running=torch.tensor([True, False]))
    with pytest.warns(RuntimeWarning, match="the friction of obstacle 'floor'"):
        Static().step(model, state, running=torch.tensor([False, True]))


@pytest.mark.parametrize(
    "response, friction", [(PENALTY, Friction(0.5, 1e-3)), (Complementarity(), Friction(0.5))], ids=["penalty", "exact"]
)
def test_what_friction_alone_holds_has_no_equilibrium_and_is_told_why(response, friction, monkeypatch):
    """Name friction in the error, and in a warning without one."""
    monkeypatch.setattr(settling, "MAX_STEPS", 2)  # of the 200 in which it slides down, without an end
    model, method = slope(response, friction), Static(max_iterations=8)
    with pytest.warns(RuntimeWarning, match="static equilibrium: the friction of obstacle 'slope'"):
        _, info = method.step(model, model.initial_state())
    assert info.status.item() != Status.CONVERGED
    with pytest.raises(SimulationError, match="the friction of obstacle 'slope' .* if it is what holds, settle by"):
        method.step(model, model.initial_state(), throw=True)


def test_the_warning_is_right():
    """Friction holds what the equilibrium lets go: by steps the tip moves by a hundredth."""
    model = on_floor(PENALTY, SMOOTHED)
    with pytest.warns(RuntimeWarning, match="has no part"):
        rest, _ = Static().step(model, model.initial_state())
    held = rollout(model, model.initial_state(), ImplicitEuler(1e-2), 20).state
    assert 0 < held.positions[0, -1, 1] < 0.01 * rest.positions[0, -1, 1]


def test_paths_of_equilibria_say_so_too():
    """`follow` leaves friction out as `Static` does."""
    model = crossing(SMOOTHED)
    with pytest.warns(RuntimeWarning, match="follow: the friction of SelfContact 'self_contact'"):
        follow(model, model.initial_state(), steps=3, force_tolerance=1e-9)
