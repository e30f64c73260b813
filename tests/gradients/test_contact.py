"""Gradients through steps in contact: of a robot with itself and with obstacles, sticking and sliding."""

import pytest
import torch

from tests.contact.robots import ROBOTS, constrained_between_nodes, constrained_crossing, constrained_on_obstacles
from tests.gradients.cases import EXACT, GradientCase
from torchdismech import (
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    straight,
    trainable,
)
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact


class TestRodsRubbing(GradientCase):
    """Two rods that press and rub each other; by all parameters: stiffness, tolerance, friction, slip velocity."""

    integrator = ImplicitEuler(0.005, **EXACT)

    def model(self):
        """Return the rods; the steps are slow against the slip velocity: they stick."""
        return ROBOTS["rods"]("penalty", True)


class TestRodsSliding(TestRodsRubbing):
    """The same where contacts slide."""

    def model(self):
        """Return the rods with friction that is saturated at a tenth of their speed."""
        model = super().model()
        model.self_contacts[0].law.friction.slip_velocity *= 0.01
        return model


class TestRodsThatCross(TestRodsRubbing):
    """The same on smooth centre lines."""

    def model(self):
        """Return the rods."""
        return ROBOTS["lines"]("penalty", True)


class TestShellAndRodsAtABarrier(GradientCase):
    """A shell and two rods held apart by a barrier, with friction, in the midpoint rule."""

    integrator = ImplicitMidpoint(0.002, **EXACT)
    steps = 2

    def model(self):
        """Return the shell and the rods."""
        return ROBOTS["shell"]("barrier", True)


class TestBetweenObstacles(GradientCase):
    """A rod among moving obstacles; by their places and sizes, too."""

    integrator = ImplicitEuler(0.005, **EXACT)

    def model(self):
        """Return the rod."""
        return ROBOTS["obstacles"]("penalty", True)


class TestObstaclesInNewmark(TestBetweenObstacles):
    """The same by a barrier in Newmark's method."""

    integrator = Newmark(0.002, **EXACT)

    def model(self):
        """Return the rod."""
        return ROBOTS["obstacles"]("barrier", True)


class TestRestingOnObstacles(GradientCase):
    """The equilibrium of a rod among smooth obstacles."""

    integrator = Static(**EXACT)
    steps = 1
    has_inertia = False

    def model(self):
        """Return the rod."""
        return ROBOTS["obstacles"]("penalty", False)


class TestEdgesBetweenObstacles(TestBetweenObstacles):
    """A rod and a shell that touch moving obstacles between their nodes."""

    def model(self):
        """Return the robots."""
        return ROBOTS["edges"]("penalty", True)


class TestPressedOnConstraints(GradientCase):
    """A rod on a tilted floor and a moving ball that it may not enter: some nodes stick, some slide."""

    integrator = ImplicitEuler(0.005, **EXACT)

    def model(self):
        """Return the rod."""
        return constrained_on_obstacles(0.3)


class TestSlidingOnConstraints(TestPressedOnConstraints):
    """The same with little friction: all contacts slide."""

    def model(self):
        """Return the rod."""
        return constrained_on_obstacles(0.05)


class TestHeldBetweenNodesByConstraints(TestPressedOnConstraints):
    """A rod that lies on moving posts between its nodes."""

    def model(self):
        """Return the rod."""
        return constrained_between_nodes(0.3)


class TestRodsHeldApartByConstraints(GradientCase):
    """A rod that falls on another one and rubs."""

    integrator = ImplicitEuler(0.005, **EXACT)

    def model(self):
        """Return the rods."""
        return constrained_crossing(0.3)


@pytest.mark.parametrize("name", ["self_contact.stiffness", "self_contact.tolerance"])
def test_by_constants_of_contact_alone(name):
    """Follow one number of a contact of rods, where neither the state nor any other number requires gradients."""
    builder = RobotBuilder()
    lower = builder.add_rod(straight((-0.05, 0, 0), (0.05, 0, 0), nodes=6), Circle(2e-3), Material(1e6, 1100.0))
    upper = builder.add_rod(
        straight((0.003, -0.05, 0.0046), (0.003, 0.05, 0.0046), nodes=6), Circle(2e-3), Material(1e6, 1100.0)
    )
    builder.clamp(nodes=[lower[0], lower[1], lower[-1], upper[0], upper[1]])
    builder.add_force(forces.PointForce([upper[-1]], (0, 0, -1e-3)))
    builder.add_contact(SelfContact(Penalty(200.0, 5e-4)))
    model = builder.finalize()
    constant = trainable.scaled(model, [name], shape=())

    def tip() -> torch.Tensor:
        state, _ = Static(force_tolerance=1e-14, relative_tolerance=1e-13).step(model, model.initial_state())
        return state.positions[0, int(upper[-1]), 2]

    (found,) = torch.autograd.grad(tip(), [constant.log_factor])
    with torch.no_grad():
        constant.log_factor += 1e-4
        above = tip()
        constant.log_factor -= 2e-4
        difference = (above - tip()) / 2e-4
    # central differences: 1e-8 of the derivative, and as much again of what the search leaves
    assert abs(float(difference)) > 1e-6 and float(found) == pytest.approx(float(difference), rel=1e-6)


def test_what_rests_in_a_corner_moves_with_no_load():
    """Find no gradient where a guide and a floor hold a node in its place, and friction is on its cone by chance."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 4e-3), (0.15, 0, 4e-3), 4), Circle(4e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], normal=(0.3, 0.4, 0.5))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Complementarity(), Friction(0.1)))
    model = builder.finalize()
    (factor,), integrator = trainable.scaled(model, ["mass"]).parameters(), ImplicitEuler(2e-3, **EXACT)
    state, _ = integrator.step(model, model.initial_state())
    for _ in range(3):
        state, info = integrator.step(model, state)
    assert bool(info.contact["sliding"].any())  # as its friction says
    (gradient,) = torch.autograd.grad(state.q[:, :3].sum(), factor)
    assert abs(float(gradient)) < 1e-15  # m; a node that is free to slide moves by 1e-5
