"""Saddles that are left where contacts are constraints: columns that buckle between walls, on floors, under ceilings.

A hinged column under P = (2 u / L)^2 EI buckles by h until its middle touches a wall: w = A sin(2 u x / L) + C x up to
there. From w = h and w' = 0 in the middle follow A = h / (sin u - u cos u) and C = -A (2 u / L) cos u, and the wall
presses with 2 P C. From u = pi on, at 4 times Euler's load, it lies flat from x = pi L / (2 u) on, and each end of the
flat part is pressed by P h / x.
"""

import math
import warnings

import pytest
import torch

from torchdismech import Circle, Control, Material, RobotBuilder, Static, forces, straight
from torchdismech.contact import Complementarity, HalfSpace, Obstacle, Penalty

LENGTH, RADIUS, YOUNGS, DENSITY = 1.0, 5e-3, 1e7, 1000.0
EI = YOUNGS * math.pi * RADIUS**4 / 4
EULER = math.pi**2 * EI / LENGTH**2  # N
GAP = 1e-2


def column(gap=GAP, walls="+-", edges=40, planar=True, response=None):
    """Return a hinged column along x with walls on some sides (of z) at a gap from its surface."""
    builder = RobotBuilder(planar=planar)
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), edges + 1), Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder.clamp(nodes=[0])
    builder.clamp(nodes=[edges], axes="z" if planar else "yz")
    for wall in walls:
        sign = 1.0 if wall == "+" else -1.0
        shape = HalfSpace((0, 0, sign * (gap + RADIUS)), (0, 0, -sign))
        builder.add_contact(Obstacle(shape, response or Complementarity(), name=f"wall {wall}"))
    return builder.finalize(compile=False)


def pressed(model, ratios, static=None):
    """Return the equilibria under multiples of Euler's load, from straight."""
    force = torch.zeros(len(ratios), model.n_dofs, dtype=torch.float64)
    force[:, 3 * model.body.n_nodes - 3] = -EULER * torch.as_tensor(ratios)
    return (static or Static()).step(model, model.initial_state(len(ratios)), Control(force=force), throw=True)


def force_of_wall(ratio: float) -> float:
    """Return what a wall at the gap presses with on what touches it in one point, by the beam's theory."""
    u = math.pi / 2 * math.sqrt(ratio)
    return -2 * ratio * EULER * GAP / (math.sin(u) - u * math.cos(u)) * (2 * u / LENGTH) * math.cos(u)


def test_buckles_until_it_touches():
    """Press on the wall with the force of theory, to second order; go towards +z; below the load, stay straight."""
    ratios, errors = [0.9, 1.2, 2.0, 3.0], []
    for edges in (20, 40):
        state, info = pressed(column(edges=edges), ratios)
        assert info.stable.all()
        top, found = state.positions[:, :, 2].amax(1), -info.contact["force/wall +"][:, 2]
        assert top[0] == 0 and found[0] == 0
        torch.testing.assert_close(top[1:], torch.full_like(top[1:], GAP), rtol=0, atol=2e-8)  # the law's tolerance
        assert not info.contact["force/wall -"].any()
        errors.append([f / force_of_wall(r) - 1 for f, r in zip(found[1:].tolist(), ratios[1:], strict=True)])
    # second order and, of theory, (gap / length)^2 = 1e-4
    assert all(abs(fine) < 2e-3 and abs(fine) < abs(coarse) / 2 for coarse, fine in zip(*errors, strict=True))


def test_lies_flat():
    """Lie on the wall beyond four times Euler's load, pressed where it lifts off, if the load comes in shares."""
    state, info = pressed(column(), [6.0], Static(load_steps=6))
    assert info.stable.all()
    flat = state.positions[0, :, 0][GAP - state.positions[0, :, 2] < 1e-7]
    lifted = LENGTH / math.sqrt(6.0)
    assert flat[0].item() == pytest.approx(lifted, abs=LENGTH / 40)  # nodes lie, or do not
    assert -info.contact["force/wall +"][0, 2].item() == pytest.approx(2 * 6 * EULER * GAP / lifted, rel=3e-3)


def test_a_penalty_comes_to_it():
    """Differ from a penalty's buckled shape by what that lets overlap."""
    exact, _ = pressed(column(edges=20), [2.0])
    soft, _ = pressed(column(edges=20, response=Penalty(1e3, tolerance=1e-4)), [2.0])
    # the wall's 2.4e-3 N press a node in by 1.2e-6 m (2 k = 2e3 N/m), and the column follows: 3.2e-6 m seen
    assert (soft.positions - exact.positions).abs().max() < 1e-5
    assert (soft.positions - exact.positions).abs().max() > 1e-7


@pytest.mark.parametrize(("walls", "sign"), [("-", 1.0), ("+", -1.0)], ids=["floor", "ceiling"])
def test_leaves_what_touches_without_load(walls, sign):
    """Go away from what it lies on, or hangs under: a mode opens what bears no load and does not close it."""
    free, _ = pressed(column(walls="", edges=20), [1.2])
    state, info = pressed(column(0.0, walls, edges=20), [1.2])
    assert info.stable.all()
    # roots to 1e-8 N; the softest motion of the buckled column has about 1 N/m
    torch.testing.assert_close(state.positions[..., 2], sign * free.positions[..., 2], rtol=0, atol=1e-6)


def test_goes_where_there_is_room():
    """Buckle sideways between two walls without a gap; in their plane stay, and say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it may turn about its own axis; rounding decides on that
        state, _ = pressed(column(0.0, planar=False, edges=10), [1.2])
    assert state.positions[0, :, 2].abs().max() < 1e-7 and state.positions[0, 5, 1] > 0.1
    with pytest.warns(RuntimeWarning, match="robot 0 is no minimum"):
        state, info = pressed(column(0.0, edges=10), [1.2])
    assert state.positions[0, :, 2].abs().max() < 1e-7 and info.stable.tolist() == [False]


def test_each_robot_is_its_own():
    """Find for each of a batch what is found for it alone, to the law's tolerance."""
    model, ratios = column(edges=20), [0.5, 1.2, 3.0]
    together, _ = pressed(model, ratios)
    for k, ratio in enumerate(ratios):
        alone, _ = pressed(model, [ratio])
        torch.testing.assert_close(together.q[k], alone.q[0], rtol=0, atol=1e-7)


def test_gradients():
    """By the stiffness, of where the buckled column is that touches the wall: as central differences have it."""
    model = column(edges=10)
    stiffness = model.term("bend_twist").energy.EI1
    stiffness.requires_grad_()
    weight, static = torch.linspace(0, 1, model.n_dofs).double(), Static(force_tolerance=1e-12, relative_tolerance=0.0)

    def loss():
        return (pressed(model, [2.0], static)[0].q[0] * weight).sum()

    (gradient,) = torch.autograd.grad(loss(), stiffness)
    entry, ends = stiffness.data.view(-1), []
    step = 1e-5 * entry[0].item()
    for change in (step, -2 * step):
        entry += change
        with torch.no_grad():
            ends.append(loss().item())
    entry += step
    # roots to 1e-12 N over changes of 1e-5
    assert gradient.sum().item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)


def test_iterations():
    """Come from straight to the wall in few iterations, and to rest on a floor that alone holds a rod."""
    _, info = pressed(column(), [1.2, 2.0, 3.0])
    assert info.iterations.max() < 15  # 4 to 5
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.01), (0.2, 0, 0.02), 11), Circle(RADIUS), Material(YOUNGS, DENSITY))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Complementarity(), name="floor"))
    model = builder.finalize(compile=False)
    with pytest.warns(RuntimeWarning, match="free to move"):
        _, info = Static().step(model, model.initial_state(), throw=True)
    assert info.iterations.item() < 10  # 2
