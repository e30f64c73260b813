"""Loads so small that a residual which counts as solved may be a part of them."""

import warnings

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    Static,
    follow,
    forces,
    helix,
    magnetics,
    rollout,
    straight,
)


def test_loads_that_no_residual_counts_are_warned_of():
    """Say that a fibre lighter than the force tolerance would float; with a smaller tolerance it falls."""
    fibre = straight((0, 0, 0), (0.01, 0, 0), 5)
    builder = RobotBuilder()
    builder.add_rod(fibre, Circle(1e-8), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    with pytest.warns(RuntimeWarning, match="robot 0: its loads are .* below force_tolerance"):
        rollout(model, model.initial_state(), ImplicitEuler(0.01), 1)
    run = rollout(model, model.initial_state(), ImplicitEuler(0.01, force_tolerance=1e-20), 10)
    assert run.positions[-1, 0, :, 2].max() < -0.04  # half of g t^2 is 49 mm


def fibre_in_a_field(length):
    """Return a magnetised fibre, a 25th as thick as it is long, held at one end; it bends by a third of its length."""
    section, material = Circle(length / 50), Material(1e6, 2000.0)
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (length, 0, 0), 21), section, material)
    builder.clamp(nodes=[0], direction="rest")
    strength = 3 * 1e6 * 1e-4 / 5e4  # T: A M B L^2 / (E I) = 3, and I / A = r^2 / 4
    builder.add_force(magnetics.Magnetic((5e4, 0.0, 0.0), (0.0, 0.0, strength)))
    return builder.finalize()


@pytest.mark.parametrize(
    ("length", "message"),
    [(1e-5, "not far above force_tolerance .* may be off by .* %"), (2e-7, "below force_tolerance")],
)
def test_torques_of_fields_are_loads_that_may_not_count(length, message):
    """Warn of magnetic loads near the tolerance, where the equilibrium is that of a part of the field, or of none."""
    model = fibre_in_a_field(length)
    with pytest.warns(RuntimeWarning, match=message):
        Static().step(model, model.initial_state())
    with pytest.warns(RuntimeWarning, match=message):
        rollout(model, model.initial_state(), ImplicitEuler(1e-3), 1)
    with pytest.warns(RuntimeWarning, match=message):
        follow(model, model.initial_state(), steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = Static(force_tolerance=1e-20).step(model, model.initial_state(), throw=True)
    assert found.q[0, 62].item() == pytest.approx(0.6033 * length, rel=1e-4)  # the same elastica at any size


def test_fibres_of_a_millimetre_need_no_setting():
    """Bend a small robot as a large one: with 1e-8 N as the tolerance of all the smaller one was 2 % off."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in (1e-3, 0.1):
            model = fibre_in_a_field(length)
            found, _ = Static().step(model, model.initial_state(), throw=True)
            assert found.q[0, 62].item() == pytest.approx(0.6033 * length, rel=1e-4)


def test_loads_that_cancel_are_none():
    """Say nothing of a robot that floats, of which rounding leaves some 1e-20 N, and that its natural shape moves."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0.02, 0.03), 11), Circle(1e-3), Material(1e6, 1000.0))
    gravity = (0.3, 0.2, -9.81)
    builder.add_force(forces.Gravity(gravity))
    builder.add_force(forces.Buoyancy(gravity, 1000.0))
    builder.add_force(forces.Viscous(0.1))
    model = builder.finalize()
    bent = 0.5 * torch.ones_like(model.natural_strains(1).natural_curvature)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = rollout(
            model, model.initial_state(), ImplicitEuler(1e-2), 5, schedule=lambda *_: Control(natural_curvature=bent)
        )
    assert (run.positions[-1] - run.positions[0]).abs().max() > 1e-4


def test_magnets_along_a_field_bear_no_load():
    """Say nothing of rods that are magnetised along a field that then turns: rounding leaves some 1e-19 N of it."""
    section, material = Circle(1.5e-4), Material(2e9, 1100.0)
    builder = RobotBuilder()
    coil = helix((0, 0, 0), (1e-3, 0, 0), (0, 0, 1), angle=6 * torch.pi, height=18e-3, nodes=61)
    builder.add_rod(coil, section, material)
    builder.add_force(forces.Resistive(tangential=1.0, normal=2.0))
    builder.add_force(magnetics.Magnetic((1e5, 0, 0), magnetics.Rotating(5e-3, 1.0, (1, 0, 0), (0, 1, 0))))
    model = builder.finalize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = rollout(model, model.initial_state(), ImplicitEuler(2e-3), 50)
    assert (run.positions[-1] - run.positions[0]).abs().max() > 1e-4
