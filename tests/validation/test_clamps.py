"""Clamps with a direction: rods bend, twist and vibrate as held ones do, to second or third order in edges' length."""

import math

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, Control, Material, RobotBuilder, modes, straight
from torchdismech.forces import Gravity, PointMoment
from torchdismech.integrate import Static

LENGTH, RADIUS, YOUNGS, DENSITY = 1.0, 5e-3, 1e7, 1000.0
EI = YOUNGS * math.pi * RADIUS**4 / 4
GJ = 0.5 * EI * 4 / 3  # nu = 1/2: G = E/3, J = 2 I
MASS_PER_LENGTH = DENSITY * math.pi * RADIUS**2


def cantilever(edges: int, forces=(), direction="rest", mass="lumped", rule="trapezoidal"):
    """Return a rod along x, held at its first node in a direction or by its first two nodes."""
    points, material = straight((0, 0, 0), (LENGTH, 0, 0), edges + 1), Material(YOUNGS, DENSITY)
    builder = rod_through(points, Circle(RADIUS), material, forces, "not", RobotBuilder(mass=mass, clamp_rule=rule))
    builder.clamp(nodes=[0] if direction else [0, 1], direction=direction)
    return builder.finalize(compile=False)


def settled(model, control=None):
    """Return the equilibrium."""
    # the loads are small, so that theory is linear: 1e-14 N against some 1e-8 N
    state, _ = Static(force_tolerance=1e-14).step(model, model.initial_state(), control, throw=True)
    return state


def dof_force(model, dof: int, value: float) -> Control:
    """Return a force on one dof."""
    force = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    force[0, dof] = value
    return Control(force=force)


def tip_load_error(edges: int, rule: str, direction="rest") -> float:
    """Return that of the deflection by a load at the tip, as a part of it."""
    model, load = cantilever(edges, direction=direction, rule=rule), 1e-3 * EI / LENGTH**2
    sag = -settled(model, dof_force(model, 3 * edges + 2, -load)).positions[0, -1, 2].item()
    return sag / (load * LENGTH**3 / (3 * EI)) - 1


def own_weight_error(edges: int, rule: str) -> float:
    """Return that of the deflection by its weight."""
    gravity = 1e-3 * EI / (MASS_PER_LENGTH * LENGTH**3)
    sag = -settled(cantilever(edges, [Gravity((0, 0, -gravity))], rule=rule)).positions[0, -1, 2].item()
    return sag / (MASS_PER_LENGTH * gravity * LENGTH**4 / (8 * EI)) - 1


def tip_moment_error(edges: int, rule: str) -> float:
    """Return that of the deflection by a moment on the last edge, as a part of it."""
    turn = 1e-3  # of the tip
    model = cantilever(edges, [PointMoment((0.0, turn * EI / LENGTH, 0.0), edges=[edges - 1])], rule=rule)
    return -settled(model).positions[0, -1, 2].item() / (0.5 * turn * LENGTH) - 1


def frequency_errors(edges: int, mass: str, rule: str) -> np.ndarray:
    """Return those of the first three bending modes (each comes twice, in two planes)."""
    model = cantilever(edges, mass=mass, rule=rule)
    found = 2 * math.pi * modes(model, model.initial_state(), 6).frequency[0, ::2].numpy()
    exact = np.array([1.8751040687, 4.6940911330, 7.8547574382]) ** 2 * math.sqrt(EI / MASS_PER_LENGTH) / LENGTH**2
    return found / exact - 1


@pytest.mark.parametrize(("rule", "most", "order"), [("trapezoidal", 3e-3, 2), ("gregory", 1.3e-4, 3)])
@pytest.mark.parametrize("error", [tip_load_error, own_weight_error])
def test_orders_of_deflections(error, rule, most, order):
    """A fourth of the error with twice the edges, or an eighth."""
    coarse, fine = error(20, rule), error(40, rule)
    assert abs(coarse) < most
    # deflections of .03 % of the length are linear to 1e-7 of themselves, the errors at 40 are 4e-6 and more; terms of
    # the next order have a share of 1/40
    assert coarse / fine == pytest.approx(2**order, rel=0.03)


def test_a_moment_at_a_free_end():
    """Exact by the trapezoidal rule; by Gregory's the clamp is corrected for and nothing is at the free end."""
    # linear to turn^2 / 12 = 1e-7, the tolerance of forces a part of 1e-7 of the moment's
    assert tip_moment_error(20, "trapezoidal") == pytest.approx(0, abs=1e-6)
    found = [tip_moment_error(edges, "gregory") for edges in (20, 40)]
    # errors of 1e-4 and more of what is linear to 1e-7: 1e-3 of them
    assert found == pytest.approx([-1 / 2400, -1 / 9600], rel=3e-3)


def test_two_clamped_nodes_are_half_an_edge_too_many():
    """What clamps without a direction cost."""
    # to first order in the edge's length; what comes next is 1.7 % of it
    assert tip_load_error(20, "trapezoidal", None) == pytest.approx(-1.5 / 20, rel=0.03)


FREQUENCIES = {
    ("lumped", "trapezoidal"): ([-0.00211, -0.0106, -0.0221], 2),
    ("lumped", "gregory"): ([-0.00101, -0.00718, -0.0171], 2),
    ("consistent", "trapezoidal"): ([-0.00115, -0.00397, -0.00650], 2),
    ("consistent", "gregory"): ([-0.0000396, -0.000481, -0.00132], 3),
}


@pytest.mark.parametrize(("mass", "rule"), FREQUENCIES)
def test_frequencies(mass, rule):
    """Masses and springs of a chain are off by (k h)^2 / 12 each, which cancels; the clamp's part is the rule's."""
    coarse, fine = frequency_errors(20, mass, rule), frequency_errors(40, mass, rule)
    expected, order = FREQUENCIES[mass, rule]
    assert coarse == pytest.approx(expected, rel=0.01)  # expected ones have three digits: up to .5 %
    # rounding of frequencies, 1e-9, is 2e-4 of the least error; the next order has a share of (k h)^2 / 12
    assert coarse / fine == pytest.approx([2**order] * 3, rel=0.05)


def test_gregory_moves_a_twelfth_of_an_edge():
    """From the spring of each clamp to the next along the rod: none between two clamps, none lost."""
    builder = RobotBuilder(clamp_rule="gregory")
    points = [(0, 0, 0), (0.12, 0, 0), (0.36, 0, 0), (0.48, 0, 0), (0.6, 0, 0)]
    builder.add_rod(points, Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder.clamp(nodes=[0, 3, 4], direction="rest")
    term = builder.finalize(compile=False).term("bend_twist")
    # between edges: nodes 1 and 2; at clamps: node 0, node 3 on either side, node 4
    moved = torch.tensor([0.01, 0.01, -0.01, -0.01, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(term.scale - term.stencil.voronoi, moved)
    torch.testing.assert_close(term.measure, term.scale)


def test_twist_is_exact():
    """Twist is uniform: springs have all of its length."""
    model, torque = cantilever(20), 1e-4
    state = settled(model, dof_force(model, 3 * 21 + 19, torque))
    # the torque acts on the last edge, whose angle is that in its middle
    assert state.twist[0, 19].item() == pytest.approx(torque * (LENGTH - LENGTH / 40) / GJ, rel=1e-9)


def about_x(angle: float) -> list[float]:
    """Return the quaternion of a turn about x."""
    return [math.cos(angle / 2), math.sin(angle / 2), 0.0, 0.0]


def test_a_turning_gripper_twists_a_rod():
    """One end is turned three times in steps of a third of a turn: a uniform twist, and the torque that it takes."""
    edges, steps, torsion = 20, 9, 0.1 * EI  # soft in torsion, or it would buckle
    points, stiffness = straight((0, 0, 0), (LENGTH, 0, 0), edges + 1), {"GJ": torsion}
    builder = RobotBuilder()
    builder.add_rod(points, Circle(RADIUS), Material(YOUNGS, DENSITY), stiffness=stiffness)
    builder.clamp(nodes=[0], direction="rest")
    builder.clamp(nodes=[edges], direction="rest")
    model = builder.finalize(compile=False)
    static, state, pose = Static(force_tolerance=1e-13), model.initial_state(), model.rest_poses[None].clone()
    for k in range(steps):
        pose[0, 1, 3:] = torch.tensor(about_x((k + 1) * 2 * math.pi / 3))
        before, control = state, Control(pose=pose)
        state, _ = static.step(model, state, control, throw=True)
    turn = 6 * math.pi
    angle = (np.arange(edges) + 0.5) / edges * turn
    # the straight twisted rod is an equilibrium of the chain: what is left is the tolerance of the forces over GJ
    assert state.twist[0, :edges].numpy() == pytest.approx(angle, rel=1e-8)
    torque = static.reactions(model, before, state, control)[0, :, 3]
    assert torque.numpy() == pytest.approx(np.array([-1, 1]) * torsion * turn / LENGTH, rel=1e-8)


def test_a_turning_gripper_bends_a_rod():
    """Both ends are turned towards each other, one may slide: a circular arc, and the moment that it takes."""
    edges, angle = 20, 0.5  # at each end
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), edges + 1), Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder.clamp(nodes=[0], direction="rest")
    builder.clamp(nodes=[edges], direction="rest", axes="yz")
    model = builder.finalize(compile=False)
    static, state, pose = Static(force_tolerance=1e-13), model.initial_state(), model.rest_poses[None].clone()
    for end, sign in ((0, 1), (1, -1)):
        pose[0, end, 3:] = torch.tensor([math.cos(angle / 2), 0.0, sign * math.sin(angle / 2), 0.0])
    control = Control(pose=pose)
    after, _ = static.step(model, state, control, throw=True)
    moments = static.reactions(model, state, after, control)[0, :, 4]
    # the strain of a spring that turns by x is 2 tan(x / 2), its moment too large by x^2 / 3, with x = 1 / 20
    assert moments.numpy() == pytest.approx(np.array([1, -1]) * EI * 2 * angle / LENGTH * (1 + 1 / 1200), rel=1e-4)
    sag = after.positions[0, edges // 2, 2].item()
    assert sag == pytest.approx(-LENGTH / (2 * angle) * (1 - math.cos(angle)), rel=2e-3)  # an arc, to second order
