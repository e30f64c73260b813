"""Robots that sink into obstacles that are too soft for them are warned of when a run ends."""

import re
import warnings

import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, Status, forces, rollout, straight
from torchdismech.contact import Box, HalfSpace, Obstacle, Penalty, SelfContact, Sphere
from torchdismech.contact.penetration import PenetrationWatch

RADIUS = 3e-3
SHAPES = {
    "half-space": lambda: HalfSpace((0, 0, 0), (0, 0, 1)),
    "sphere": lambda: Sphere((0, 0, -0.02), 0.02),
    "box": lambda: Box((0, 0, -0.01), (0.2, 0.2, 0.02)),
}


def falling(shape, stiffness, more=()):
    """Return a rod 3 cm above what is at the origin, with a node in its middle."""
    points = straight((-0.05, 0, 0.03), (0.05, 0, 0.03), 11)
    builder = rod_through(points, Circle(RADIUS), Material(1e6, 1100.0), [forces.Gravity((0, 0, -9.81))], held="not")
    for obstacle in (Obstacle(shape, Penalty(stiffness, 5e-4), name="thing"), *more):
        builder.add_contact(obstacle)
    return builder.finalize()


def warned(model, steps=40, every=1, batch=1):
    """Return the run and the warnings it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = rollout(model, model.initial_state(batch), ImplicitEuler(5e-3, max_substeps=16), steps, every=every)
    return run, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_falls_through_is_named(shape, every):
    """Name the obstacle, how deep, the contact radius and stiffnesses, once a run."""
    run, said = warned(falling(shape(), 1e-3), every=every)
    assert not bool(run.failed.any())  # nothing else would tell
    (message,) = said
    depth = float(re.search(r"robot 0 sank (\S+) m into obstacle 'thing'", message)[1])
    # three digits are said; with frames every ten steps the depth between two of them counts, too
    assert depth == pytest.approx(float(run.contact["penetration"].max()), rel=5e-3)
    assert "contact radius of 0.003 m" in message and "stiffness is 0.001 N/m" in message


def test_the_stiffness_that_is_advised_holds():
    """Take the stiffness for an impact, and find that nothing sinks in deep any more, and nothing is said."""
    _, (message,) = warned(falling(HalfSpace((0, 0, 0), (0, 0, 1)), 1.0))
    advised = float(re.search(r"(\S+) N/m stop such an impact", message)[1])
    run, said = warned(falling(HalfSpace((0, 0, 0), (0, 0, 1)), advised))
    assert not said
    assert float(run.contact["penetration"].max()) < RADIUS


def test_the_obstacle_that_it_sinks_into_is_named():
    """Name the soft one of two obstacles, though the other one is touched, too."""
    firm = Obstacle(Box((0.04, 0, -0.01), (0.03, 0.2, 0.02)), Penalty(200.0, 5e-4), name="firm")
    _, (message,) = warned(falling(HalfSpace((0, 0, 0), (0, 0, 1)), 1e-2, [firm]), batch=2)
    assert "into obstacle 'thing'" in message


def test_rods_that_pass_through_each_other_are_told_to_be_stiffer():
    """Say what helps where the step is in smallest parts already: a soft penalty lets one rod through another."""
    builder = rod_through(straight((-0.05, 0, 0), (0.05, 0, 0), 9), Circle(RADIUS), Material(1e8, 1100.0))
    builder.add_rod(straight((3e-3, -0.03, 0.01), (3e-3, 0.03, 0.01), 6), Circle(RADIUS), Material(1e6, 1100.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(SelfContact(Penalty(1e-3, 5e-4)))
    run, said = warned(builder.finalize(), 20)
    assert run.status[-1].tolist() == [Status.PASSED_THROUGH]
    assert "max_substeps" in said[-1] and "take a stiffer Penalty, or Barrier" in said[-1]


def test_what_begins_deep_and_stays_is_left_alone():
    """Say nothing of a rod that stands in a soft floor, where it is clamped."""
    points = straight((0, 0, -0.06), (0, 0, 0.18), 5)
    builder = rod_through(points, Circle(RADIUS), Material(2e6, 1100.0), [forces.Gravity((0, 0, -9.81))], held="edge")
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(10.0, 1e-3)))
    _, said = warned(builder.finalize(), 5)
    assert not said


def beside_a_floor(radii, heights):
    """Return rods of these radii that are fixed at heights of their middles above a floor."""
    builder = RobotBuilder()
    for k, (radius, height) in enumerate(zip(radii, heights, strict=True)):
        points = straight((0, 0.1 * k, height), (0.1, 0.1 * k, height), 6)
        builder.add_rod(points, Circle(radius), Material(1e6, 1100.0))
    builder.clamp(nodes=range(6 * len(radii) - 1))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(1.0, 5e-4), name="thing"))
    return builder.finalize()


def test_a_depth_counts_against_the_radius_of_its_own_point():
    """Say nothing of a thick rod and a thin one, neither of which is deep; name the thin one where it is."""
    model = beside_a_floor([1e-3, 1e-2], [0.0001, 0.005])  # overlaps of .9 and 5 mm
    for depth, thin, expected in ((5e-3, 0.0, None), (5e-3, -2e-3, 2.9e-3)):
        state = model.initial_state()
        q = state.q.clone()
        q[:, 2:18:3] += thin  # m, of the first rod
        deepest = PenetrationWatch(model.obstacles)
        none = {"penetration": torch.zeros(1, dtype=torch.float64), "load/thing": torch.zeros(1)}
        deepest.see(state, none)
        deepest.see(state.replace(q=q), none | {"penetration": torch.tensor([depth], dtype=torch.float64)})
        found = deepest._deepest
        assert (None if found is None else found.depth) == (None if expected is None else pytest.approx(expected))
        assert found is None or found.radius == 1e-3


def test_overlap_with_itself_hides_no_robot_that_sinks():
    """Name a robot that sinks into the floor after its own parts have overlapped by more."""
    model = beside_a_floor([1e-2], [0.02])
    state = model.initial_state()
    deepest = PenetrationWatch(model.obstacles)

    def report(depth):
        return {"penetration": torch.tensor([depth], dtype=torch.float64), "load/thing": None, "load/self": None}

    deepest.see(state, report(0.0))
    deepest.see(state, report(15e-3))
    assert deepest._deepest is None
    q = state.q.clone()
    q[:, 2:18:3] -= 22e-3  # to 2 mm below the floor: an overlap of 12 mm
    deepest.see(state.replace(q=q), report(12e-3))
    assert deepest._deepest.depth == pytest.approx(12e-3)
