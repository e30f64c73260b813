"""Equilibrium paths that meet obstacles and other parts of the robot."""

import math

import numpy as np
import pytest
import torch

from torchdismech import Circle, InputError, Material, RobotBuilder, Static, Status, follow, forces, straight
from torchdismech.contact import Barrier, Complementarity, HalfSpace, Obstacle, Penalty, SelfContact

LOAD = 0.05


def truss(law, floor: float):
    """Two bars that lean on each other, pressed down where they meet, above a floor for that node at a height."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(
        np.array([[-1, 0, 0], [0, 0, 0.3], [1, 0, 0]]),
        Circle(0.01),
        Material(1e6, 1000.0),
        stiffness={"EA": 1.0, "EI1": 1e-12},
    )
    builder.clamp(nodes=[0, 2])
    builder.add_force(forces.PointForce([1], (0, 0, -LOAD)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, floor - 0.01), (0, 0, 1)), law, nodes=[1], name="floor"))
    return builder.finalize(compile=False)


def crossing(law, radius: float = 0.01):
    """Two rods that cross 5 cm apart, clamped at their ends; the upper is pressed down onto the lower."""
    builder = RobotBuilder()
    for points in (straight((-0.5, 0, 0), (0.5, 0, 0), 21), straight((0, -0.5, 0.05), (0, 0.5, 0.05), 21)):
        rod = builder.add_rod(points, Circle(radius), Material(1e7, 1000.0))
        for end in (rod[0], rod[-1]):
            builder.clamp(nodes=[end], direction="rest")
    builder.add_force(forces.PointForce([31], (0, 0, -3.0)))
    builder.add_contact(SelfContact(law))
    return builder.finalize(compile=False)


@pytest.mark.parametrize(
    "law", [Penalty(10.0, tolerance=1e-3), Barrier(0.1, tolerance=1e-2)], ids=["penalty", "barrier"]
)
def test_two_bars_snap_onto_a_floor(law):
    """Go over the highest load and down to the floor, where the load rises again: by what the floor presses."""
    model = truss(law, floor=0.1)
    path = follow(model, model.initial_state(), steps=70, length=0.03, force_tolerance=1e-12)
    assert path.reached.tolist() == [True] and len(path.limits()) == 2
    height = torch.stack([state.positions[0, 1, 2] for state in path.states])
    pressed = torch.stack([model.contact.report(state)["force/floor"][0, 2] for state in path.states])
    bars = 2 * height * (1 / (1 + height**2).sqrt() - 1 / math.sqrt(1.09))  # as in test_following
    # 4e-10: what bending of 1e-12 N m^2 adds
    assert (LOAD * path.load_factor[:, 0] - bars - pressed).abs().max() < 2e-9
    assert pressed[0] == 0 and pressed[-1] > 0.04  # in full, whatever the load factor
    assert height[-1].item() == pytest.approx(0.1, abs=3e-3)


def test_comes_to_the_equilibrium():
    """End at what `Static` finds under the whole load: one rod carries the other, all the way."""
    model = crossing(Penalty(1e4, tolerance=1e-4))
    path = follow(model, model.initial_state())
    expected, _ = Static(load_steps=10).step(model, model.initial_state(), throw=True)
    assert path.reached.tolist() == [True] and path.stable is not None and path.stable.all()
    # roots to 1e-8 N; the softest motion has some 100 N/m
    torch.testing.assert_close(path.states[-1].q, expected.q, rtol=0, atol=1e-9)
    lower, upper = path.states[-1].positions[0, [10, 31], 2].tolist()
    assert upper - lower == pytest.approx(0.02, abs=1e-4)


def test_thin_rods_do_not_pass_through_each_other():
    """Take shorter steps where one would lead through: rods of 1 mm, pressed on by far more than they bear."""
    model = crossing(Penalty(1e4, tolerance=5e-5), radius=5e-4)
    path = follow(model, model.initial_state(), steps=40, length=0.5)
    for state in path.states:
        lower, upper = state.positions[0, [10, 31], 2].tolist()
        assert upper > lower
    assert path.states[-1].positions[0, 10, 2] < -1e-3  # the lower one carries


def test_a_path_ends_before_what_it_would_pass_through(monkeypatch):
    """End with the status of what stands in the way, where shorter steps are of no use."""
    model = crossing(Penalty(1e4, tolerance=1e-4))

    def passed(candidates, after):
        return after.positions[:, 31, 2] < 0.045

    monkeypatch.setattr("torchdismech.integrate.candidates.ContactCandidates.passed", passed)
    path = follow(model, model.initial_state())
    assert path.status.tolist() == [Status.PASSED_THROUGH] and path.reached.tolist() == [False]
    assert path.states[-1].positions[0, 31, 2].item() == pytest.approx(0.045, abs=1e-6)


def above_a_floor(force):
    """Return a cantilever above a floor with a force at its tip, one for each robot."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 11), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.PointForce([10], 1e-2 * force))
    builder.add_contact(Obstacle(HalfSpace((0, 0, -0.05), (0, 0, 1)), Penalty(100.0, 1e-3), name="floor"))
    return builder.finalize(compile=False)


def test_each_robot_of_a_batch_walks_as_alone():
    """Take the points that the robot alone takes, whichever touches first."""
    together = above_a_floor(torch.tensor([[0.0, 0, -3.0], [0.0, 0, -1.0]]).double())
    path = follow(together, together.initial_state(), steps=12)
    for robot, load in enumerate((-3.0, -1.0)):
        model = above_a_floor(torch.tensor([0.0, 0, load]).double())
        alone = follow(model, model.initial_state(), steps=12)
        torch.testing.assert_close(path.load_factor[:, robot], alone.load_factor[:, 0], rtol=0, atol=1e-8)


def test_constraints_are_refused():
    """A path would have corners: name what to take."""
    model = crossing(Complementarity())
    with pytest.raises(InputError, match="take Penalty or Barrier"):
        follow(model, model.initial_state())
