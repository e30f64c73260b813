"""Equilibria that robots have to touch something for, from where they touch nothing."""

import numpy as np
import pytest
import torch

from torchdismech import Circle, Control, Material, RobotBuilder, Status, forces, straight
from torchdismech.contact import Barrier, Complementarity, Obstacle, Penalty, SelfContact, Sphere
from torchdismech.integrate import Static
from torchdismech.integrate.equilibria import settling

LAWS = {
    "penalty": lambda: Penalty(1e3, tolerance=1e-3),
    "barrier": lambda: Barrier(1e3, tolerance=1e-3),
    "complementarity": lambda: Complementarity(),
}


def crossing(law: str, weight: float | torch.Tensor = 9.81, nodes: int = 21):
    """Return two ropes that cross at a height of 5 cm, and a control that lowers the ends of the upper by 15 cm."""
    s = np.linspace(-0.5, 0.5, nodes)
    builder = RobotBuilder()
    for line in (np.stack([s, 0 * s, 0 * s], axis=1), np.stack([0 * s, s, 0 * s + 0.05], axis=1)):
        rope = builder.add_rod(line, Circle(5e-3), Material(1e7, 1000.0))
        for end in (rope[0], rope[-1]):
            builder.clamp(nodes=[end], direction="rest")
    gravity = torch.as_tensor(weight, dtype=torch.float64).reshape(-1, 1) * torch.tensor([0.0, 0.0, -1.0]).double()
    builder.add_force(forces.Gravity(gravity if len(gravity) > 1 else gravity[0]))
    builder.add_contact(SelfContact(LAWS[law]()))
    model = builder.finalize(compile=False)
    pose = model.rest_poses.expand(len(gravity), -1, -1).clone()
    pose[:, 2:, 2] -= 0.15
    return model, Control(pose=pose)


@pytest.mark.parametrize("law", ["penalty", "complementarity", pytest.param("barrier", marks=pytest.mark.slow)])
def test_ropes_come_to_rest_on_each_other(law):
    """Lower one onto the other in one step: the upper hangs on the lower, which carries what it is pulled by."""
    model, control = crossing(law)
    static = Static(force_tolerance=1e-9)
    after, info = static.step(model, model.initial_state(), control, throw=True)
    assert bool(info.stable.all()) and info.contact["active"].item() > 0
    lower, upper = after.positions[0, [10, 31], 2].tolist()
    # the upper lies on the lower: a diameter, less the overlap or more by the gap, 1 mm at most
    assert upper - lower == pytest.approx(0.01, abs=1e-3)
    steps = Static(force_tolerance=1e-9, load_steps=10)
    if law != "barrier":  # these find the contact if the ropes come near in small shares
        expected, _ = steps.step(model, model.initial_state(), control, throw=True)
        # one equilibrium, each to 1e-9 N of forces with stiffnesses of 1 N/m and more
        torch.testing.assert_close(after.positions, expected.positions, rtol=0, atol=1e-8)


def test_robots_settle_alone():
    """Each robot of a batch finds what it finds alone, whether its neighbours have to settle or not."""
    weights = torch.tensor([9.81, 0.0])
    model, control = crossing("penalty", weights)
    static = Static(force_tolerance=1e-9)
    together, info = static.step(model, model.initial_state(), control, throw=True)
    for k, weight in enumerate(weights):
        alone, own = crossing("penalty", weight)
        expected, _ = static.step(alone, alone.initial_state(), own, throw=True)
        torch.testing.assert_close(together.positions[k], expected.positions[0], rtol=0, atol=1e-8)


def test_robots_that_never_rest(monkeypatch):
    """Give a robot up, after so many iterations, that rolls off a ball and falls; it stays where it was."""
    monkeypatch.setattr(settling, "MAX_ITERATIONS", 150)
    builder = RobotBuilder()
    builder.add_rod(straight((-0.09, 0, 0.056), (0.11, 0, 0.056), 5), Circle(5e-3), Material(1e6, 1100.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(Sphere((0, 0, 0), 0.05), LAWS["penalty"]()))
    model = builder.finalize()
    state = model.initial_state()
    after, info = Static(max_iterations=10).step(model, state)
    assert info.status.tolist() == [Status.MAX_ITERATIONS] and torch.equal(after.q, state.q)
    # the first search and the last two take 10 at most, and so does what is begun before the limit: 90 in a step of
    # three attempts; without a limit there are 2,000
    assert 150 <= info.iterations.item() < 150 + 3 * 10 + 90


def test_robots_whose_nodes_are_all_held():
    """Settle where angles alone may move, too; it ended in an error of torch."""
    builder = RobotBuilder()
    turn = np.linspace(0, 1.5, 6)
    bow = 0.1 * np.stack([np.cos(turn), np.sin(turn), 0 * turn], axis=1)
    for node in builder.add_rod(bow, Circle(2e-3), Material(1e6, 1000.0)):
        builder.clamp(nodes=[node])
    builder.add_contact(Obstacle(Sphere((0, 0, 0), 0.05), LAWS["penalty"]()))
    model = builder.finalize()
    state, natural = model.initial_state(), model.natural_strains(1).natural_curvature
    static = Static(max_iterations=5)  # the search takes eight
    with pytest.warns(RuntimeWarning, match="no minimum"):
        after, info = static.step(model, state, Control(natural_curvature=0.3 - 3 * natural), throw=True)
    assert info.iterations.item() > 5
    assert torch.equal(after.positions, state.positions) and not torch.equal(after.q, state.q)


def test_gradients_do_not_see_how_it_was_found():
    """By the weight, at the root: against central differences."""
    model, control = crossing("penalty")
    gravity = model.forces[0].acceleration.requires_grad_()
    static, weight = Static(force_tolerance=1e-11, relative_tolerance=0.0), torch.linspace(0, 1, 126).double()

    def loss():
        after, _ = static.step(model, model.initial_state(), control, throw=True)
        return (after.q[0, :126] * weight).sum()

    (gradient,) = torch.autograd.grad(loss(), gravity)
    found, step = [], 1e-3
    with torch.no_grad():
        for sign in (1, -2):
            gravity[2] += sign * step
            found.append(float(loss()))
        gravity[2] += step
    # truncation of 1e-6 of a weight's change of 1e-4 of itself; roots to 1e-11 N
    assert gradient[2].item() == pytest.approx((found[0] - found[1]) / (2 * step), rel=1e-5)
