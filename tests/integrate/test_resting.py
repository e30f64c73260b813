"""Equilibria with contacts that are constraints: a heavy rod, clamped above a floor, that lies on it from somewhere on.

Euler and Bernoulli's beam: from where it leaves the floor, at s = 0, y = R s^3 / (6 EI) - q s^4 / (24 EI), as height,
slope and curvature are zero there. At the clamp, s = l, the slope is zero: R = q l / 3, H = q l^4 / (72 EI). R is a
point force of the floor on the rod.
"""

import math

import pytest
import torch

from torchdismech import Circle, Control, Material, RobotBuilder, Static, Status, forces, straight
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty

LENGTH, RADIUS, YOUNGS, DENSITY = 1.0, 2e-3, 1e7, 1000.0
EI = YOUNGS * math.pi * RADIUS**4 / 4
WEIGHT = 9.81 * DENSITY * math.pi * RADIUS**2  # N/m
STATIC = Static(force_tolerance=1e-12, relative_tolerance=0.0)


def above_a_floor(height, edges=20, response=None, friction=None):
    """Return a straight rod, clamped above a floor by one height or several (B,)."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), edges + 1), Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    height = torch.as_tensor(height, dtype=torch.float64).reshape(-1, 1)
    floor = torch.cat([torch.zeros(len(height), 2), -height - RADIUS], dim=1)
    response = Complementarity() if response is None else response
    shape = HalfSpace(floor if len(floor) > 1 else floor[0], (0, 0, 1))
    builder.add_contact(Obstacle(shape, response, friction, name="floor"))
    return builder.finalize(compile=False)


def at_rest(model, static=STATIC):
    """Return the equilibrium and how it was found."""
    return static.step(model, model.initial_state(), throw=True)


def moment_at_clamp(model, after) -> float:
    """Return what the clamp exerts about y [N m]."""
    return STATIC.reactions(model, model.initial_state(), after)[0, 0, 4].item()


def test_lies_on_the_floor_as_theory_has_it():
    """Lift off where it should, press on the floor by as much, and by its own weight where it lies."""
    height, edges = 5e-3, 80
    lifted = (72 * EI * height / WEIGHT) ** 0.25
    model = above_a_floor(height, edges)
    after, info = at_rest(model)
    gap = after.positions[0, :, 2] + height
    found = LENGTH / edges * (gap > 1e-8).sum().item()
    assert found == pytest.approx(lifted, abs=LENGTH / edges)  # nodes lie, or do not
    assert gap.min().item() > -1e-8  # the contact's tolerance
    total = info.contact["force/floor"][0].tolist()
    # of second order: .03 % at 80 edges; the floor has no friction
    assert total == pytest.approx([0, 0, WEIGHT * (LENGTH - lifted + lifted / 3)], rel=1e-3, abs=1e-10)
    lying = info.contact["node_force"][0, -edges // 2 : -1, 2]
    # where it is straight; the force of the lift-off dies out by a fifth from node to node
    torch.testing.assert_close(lying, torch.full_like(lying, WEIGHT * LENGTH / edges), rtol=1e-6, atol=0)
    # of second order: 1.3 % at 80 edges, of which 11 are lifted
    assert moment_at_clamp(model, after) == pytest.approx(-WEIGHT * lifted**2 / 6, rel=2e-2)


def test_penalties_come_to_it():
    """Differ from a penalty's equilibrium by what this lets overlap: a tenth of that at ten times the stiffness."""
    exact, _ = at_rest(above_a_floor(2e-2, edges=10))
    off = []
    for stiffness in (1e2, 1e3):
        soft = above_a_floor(2e-2, 10, response=Penalty(stiffness, tolerance=10e-3 / stiffness))
        after, _ = at_rest(soft)
        off.append((after.positions - exact.positions).abs().max().item())
    assert off[0] < 1e-4  # m: 7.4e-5 by the softer one
    assert off[0] / off[1] == pytest.approx(10, rel=0.1)  # overlaps change where the rod lifts off, in their proportion


@pytest.mark.parametrize("options", [{"load_steps": 5}, {"unstable": "report"}], ids=str)
def test_finds_the_same_in_other_ways(options):
    """Have one equilibrium, with loads that grow and without."""
    model = above_a_floor(0.1)
    expected, _ = at_rest(model)
    after, info = at_rest(model, Static(force_tolerance=1e-12, relative_tolerance=0.0, **options))
    # gaps to 1e-8 m, the contact's tolerance
    torch.testing.assert_close(after.q, expected.q, rtol=0, atol=1e-7)
    assert info.stable.tolist() == [True]


def test_feels_no_friction():
    """Nothing slides, at rest."""
    smooth, _ = at_rest(above_a_floor(0.1))
    rough, _ = at_rest(above_a_floor(0.1, friction=Friction(0.8)))
    assert torch.equal(smooth.q, rough.q)


def test_each_robot_is_its_own():
    """Find for each of a batch what is found for it alone: high and low ones, and one that reaches no floor."""
    heights = [5e-3, 0.1, 2.0]
    together, info = at_rest(above_a_floor(heights))
    assert info.contact["active"].tolist()[2] == 0
    for k, height in enumerate(heights):
        alone, _ = at_rest(above_a_floor(height))
        torch.testing.assert_close(together.q[k], alone.q[0], rtol=0, atol=1e-7)  # gaps to 1e-8 m


def test_clamp_and_floor_carry_it():
    """Carry the weight, and hold the moments."""
    model = above_a_floor(0.1)
    after, info = at_rest(model)
    held = STATIC.reactions(model, model.initial_state(), after)[0, 0]
    mass = model.body.node_mass()
    assert (held[:3] + info.contact["force/floor"][0]).tolist() == pytest.approx(
        [0, 0, 9.81 * float(mass.sum())], abs=1e-9
    )
    felt = info.contact["node_force"][0, :, 2] - 9.81 * mass
    assert held[4].item() == pytest.approx((felt * after.positions[0, :, 0]).sum().item(), abs=1e-9)


def test_gradients():
    """By the weight, the floor's height and the stiffness: of where the rod is, as differences have it."""
    model = above_a_floor(0.1, edges=10)
    places = (model.forces[0].acceleration, model.obstacles[0].shape.point, model.term("bend_twist").energy.EI2)
    weight = torch.linspace(0, 1, model.n_dofs).double()

    def loss():
        return (at_rest(model)[0].q[0] * weight).sum()

    for place in places:
        place.requires_grad_()
    gradients = torch.autograd.grad(loss(), places)
    for place, gradient in zip(places, gradients, strict=True):
        entry = place.data.view(-1)[-1:]
        step, ends = 1e-5 * entry.abs().item(), []
        for change in (step, -2 * step):
            entry += change
            with torch.no_grad():
                ends.append(loss().item())
        entry += step
        # roots to 1e-12 N, gaps to less than 1e-10 m, over changes of 1e-5 of each constant
        assert gradient.view(-1)[-1].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)


def test_what_holds_nothing_else_lies():
    """Lie flat on a floor that alone holds a rod; it starts aslant, and may end anywhere along."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.01), (0.2, 0, 0.02), 11), Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Complementarity(), name="floor"))
    model = builder.finalize(compile=False)
    after, info = Static().step(model, model.initial_state(), throw=True)
    height = after.positions[0, :, 2]
    torch.testing.assert_close(height, torch.full_like(height, RADIUS), rtol=0, atol=1e-8)
    carried = info.contact["force/floor"][0, 2].item()
    # equilibria are balanced to 1e-8 of their forces
    assert carried == pytest.approx(9.81 * model.body.node_mass().sum().item(), rel=1e-8)


def test_moves_with_what_moves_it():
    """Come to the floor's height where a clamp is lowered onto it, from far above it."""
    model = above_a_floor(0.3, edges=10)
    target = model.initial_state().q.clone()
    target[0, 2] -= 0.2
    lowered, _ = STATIC.step(model, model.initial_state(), Control(clamped_q=target), throw=True)
    expected, _ = at_rest(above_a_floor(0.1, edges=10))
    difference = lowered.positions - expected.positions
    difference[..., 2] += 0.2
    assert difference.abs().max().item() < 1e-7  # gaps to 1e-8 m


def column(weight: float, load: float = 3.0):
    """Return a column in a plane that lies on a floor, hinged at both ends, under a load in parts of Euler's."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), 21), Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder.clamp(nodes=[0])
    builder.clamp(nodes=[20], axes="yz")
    builder.add_force(forces.Gravity((0.0, 0.0, -weight)))
    builder.add_force(forces.PointForce([20], (-load * math.pi**2 * EI / LENGTH**2, 0.0, 0.0)))
    floor = HalfSpace((0, 0, -RADIUS), (0, 0, 1))
    builder.add_contact(Obstacle(floor, Complementarity(), name="floor"))
    return builder.finalize(compile=False)


def test_tells_stability():
    """Hold a column down by its weight where its matrix alone is indefinite; without weight it lifts off."""
    after, info = at_rest(column(9.81))
    assert info.stable.tolist() == [True]
    assert after.positions[0, :, 2].abs().max().item() < 1e-8
    with pytest.warns(RuntimeWarning, match="robot 0 is no minimum"):
        after, info = at_rest(column(0.0), Static(force_tolerance=1e-12, relative_tolerance=0.0, unstable="report"))
    assert info.stable.tolist() == [False] and after.positions[0, :, 2].abs().max().item() < 1e-8
    assert at_rest(column(0.0, load=0.9))[1].stable.tolist() == [True]  # below Euler's load nothing has to hold it


def test_unstable_ones_may_fail():
    """Fail where nothing holds a column."""
    static = Static(force_tolerance=1e-12, relative_tolerance=0.0, unstable="fail")
    model = column(0.0)
    after, info = static.step(model, model.initial_state())
    assert info.status.tolist() == [Status.UNSTABLE]
    assert torch.equal(after.q, model.initial_state().q)
