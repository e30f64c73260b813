"""Nodes, edges and triangles that callers choose: by indices or by masks, and what is neither."""

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, Control, InputError, Material, RobotBuilder, forces, straight
from torchdismech.actuation import AtNodes, OnEdges, Tendons
from torchdismech.contact import HalfSpace, Obstacle, Penalty
from torchdismech.control.strains import Strains

NODES = 6
POINTS = straight((0, 0, 0), (0.5, 0, 0), NODES)
FLOOR, LAW = HalfSpace((0.0, 0.0, -1.0), (0.0, 0.0, 1.0)), Penalty(100.0, 1e-3)


def builder():
    """Return the builder of a free rod."""
    return rod_through(POINTS, Circle(2e-3), Material(1e6, 1000.0), held="not")


def clamped(chosen):
    """Return which dofs move."""
    robot = builder()
    robot.clamp(nodes=chosen)
    return robot.finalize(compile=False).free


def masses(chosen):
    """Return the masses of the nodes."""
    robot = builder()
    robot.add_mass(chosen, 0.1)
    return robot.finalize(compile=False).body.node_mass()


def force(load):
    """Return a load at rest."""
    robot = builder()
    robot.add_force(load)
    model = robot.finalize(compile=False)
    return model.forces[0](model.rest_state(1), Control())


def touching(chosen):
    """Return the gaps of the nodes."""
    robot = builder()
    robot.add_contact(Obstacle(FLOOR, LAW, nodes=chosen))
    model = robot.finalize(compile=False)
    return model.obstacles[0].gap(model.body.rest_q[None], torch.zeros(1))


def thrown(chosen):
    """Return the velocities."""
    model = builder().finalize(compile=False)
    return model.thrown(model.initial_state(), (0.0, 0.0, 1.0), nodes=chosen).velocity


CHOSEN = {
    "clamp.nodes": (NODES, clamped),
    "mass.nodes": (NODES, masses),
    "PointForce.nodes": (NODES, lambda chosen: force(forces.PointForce(chosen, (0, 0, 1.0)))),
    "LineLoad.edges": (NODES - 1, lambda chosen: force(forces.LineLoad((0, 0, 1.0), edges=chosen))),
    "PointMoment.nodes": (NODES, lambda chosen: force(forces.PointMoment((0, 0, 1.0), nodes=chosen))),
    "PointMoment.edges": (NODES - 1, lambda chosen: force(forces.PointMoment((0, 0, 1.0), edges=chosen))),
    "AtNodes.nodes": (NODES, lambda chosen: force(Tendons([AtNodes(chosen, (0, 0, 1e-3))], tension=1.0))),
    "OnEdges.edges": (NODES - 1, lambda chosen: force(Tendons([OnEdges(chosen, (0, 0, 1e-3))], tension=1.0))),
    "Obstacle.nodes": (NODES, touching),
    "thrown: nodes": (NODES, thrown),
    "elements: stretch: rod edges": (
        NODES - 1,
        lambda chosen: torch.as_tensor(
            Strains(builder().finalize(compile=False), ["stretch"], {"stretch": chosen}).elements["stretch"]
        ),
    ),
}


@pytest.mark.parametrize(("count", "found"), CHOSEN.values(), ids=CHOSEN)
def test_masks_choose_as_indices_do(count, found):
    """Take a mask for where it is true, of arrays, tensors and lists; it was taken for the nodes 0 and 1."""
    mask = np.zeros(count, dtype=bool)
    mask[[2, 4]] = True
    expected = found([2, 4])
    for chosen in (mask, torch.as_tensor(mask), mask.tolist(), np.array([2, 4], dtype=np.uint8), {2, 4}):
        assert torch.equal(found(chosen), expected)


@pytest.mark.parametrize(("name", "count", "found"), [(name, *of) for name, of in CHOSEN.items()], ids=CHOSEN)
def test_what_is_neither_indices_nor_a_mask_is_refused(name, count, found):
    """Say who was given what, when the robot is built at the latest."""
    for chosen, got in (
        ([0.9], r"\[0.9\]"),
        ([-1], r"\[-1\]"),
        ([1, count], rf"\[{count}\]"),
        ("a", "'a'"),
        ([], "none"),
        ([[1, 2], [3]], r"\[\[1, 2\], \[3\]\]"),
        (np.ones(count + 1, dtype=bool), rf"a mask of shape \({count + 1},\)"),
        (np.zeros(count, dtype=bool), "none"),
    ):
        expected = rf"^{name}: expected indices 0 to {count - 1} or a mask \({count},\), at least one; got {got}$"
        with pytest.raises(InputError, match=expected):
            found(chosen)


@pytest.mark.parametrize(("name", "found"), [("clamp.nodes", clamped), ("mass.nodes", masses)])
def test_nodes_that_are_there_twice_are_refused(name, found):
    """Hold and weigh a node once: of a mass that was to be added twice, one was left out."""
    with pytest.raises(InputError, match=rf"^{name}: expected indices, each once, got \[2, 4, 2\]$"):
        found([2, 4, 2])


def test_a_mask_of_sides_is_refused():
    """Sides are pairs of nodes."""
    with pytest.raises(InputError, match="LineLoad.sides: expected indices 0 to 5 .* got a mask"):
        force(forces.LineLoad((0, 0, 1.0), sides=np.ones((3, 2), dtype=bool)))


def test_the_end_of_a_rod_is_clamped_by_a_mask():
    """Hold the node at the far end, and no other."""
    robot = RobotBuilder()
    robot.add_rod(POINTS, Circle(2e-3), Material(1e6, 1000.0))
    robot.clamp(nodes=robot.nodes[:, 0] > 0.44)
    free = robot.finalize(compile=False).free[: 3 * NODES].reshape(-1, 3).any(1)
    assert free.tolist() == [True] * (NODES - 1) + [False]
