"""How sections stand in space, and which way natural strains above zero bend and twist them."""

import math

import numpy as np
import pytest
import torch

from torchdismech import Circle, Control, InputError, Material, RobotBuilder, Static, forces, straight
from torchdismech.geometry.quaternions import rotation_of_vector

EDGES, ANGLE = 6, 0.3  # of each spring [rad]
ALONG = {"x": (1, 0, 0), "-x": (-1, 0, 0), "down": (0, 0, -1), "up": (0, 0, 1), "slanted": (1, 2, -2)}
M1 = {"x": (0, 0, 1), "-x": (0, 0, -1), "down": (1, 0, 0), "up": (-1, 0, 0)}  # as docs/rods.md has them


def held(along, loads=()):
    """Return a rod of 12 cm from the origin, held at its end and in its direction there."""
    builder = RobotBuilder()
    tip = 0.12 * np.array(along) / np.linalg.norm(along)
    builder.add_rod(straight((0, 0, 0), tip, EDGES + 1), Circle(1e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    for load in loads:
        builder.add_force(load)
    return builder.finalize()


@pytest.mark.parametrize("along", ALONG)
def test_strains_above_zero_bend_towards_the_directors_and_twist_to_the_right(along):
    """Let three robots take kappa1, kappa2 and a twist: their sections are turned about m2, -m1 and t, in sums."""
    model = held(ALONG[along])
    own = model.natural_strains(3)
    curvature, twist = own.natural_curvature.clone(), own.natural_twist.clone()
    curvature[0, :, 0] = curvature[1, :, 1] = 2 * math.tan(ANGLE / 2)
    twist[2] = ANGLE
    control = Control(natural_curvature=curvature, natural_twist=twist)
    state, _ = Static().step(model, model.initial_state(batch=3), control, throw=True)
    (built,) = model.orientations(model.initial_state())[:, 0]
    m1, m2, t = built.unbind(1)
    if along in M1:
        torch.testing.assert_close(m1, torch.tensor(M1[along], dtype=torch.float64))
    torch.testing.assert_close(torch.linalg.cross(m1, m2), t)
    of_clamp = torch.tensor([2 * math.atan(math.tan(ANGLE / 2) / 2)] * 2 + [ANGLE / 2])  # half an edge's spring
    turned = of_clamp[:, None] + ANGLE * torch.arange(EDGES)
    axes = torch.stack([m2, -m1, t])
    wanted = rotation_of_vector(turned[..., None].double() * axes[:, None]) @ built
    found = model.orientations(state)
    assert (found - wanted).abs().max() < 1e-6  # the balance is found to 1e-12 N, of moments of 1e-7 N m over an edge
    towards = state.positions[:, -1] @ torch.stack([m1, m2], 1)
    assert towards[0, 0] > 0.05 and towards[1, 1] > 0.05
    strains = model.strains(state)
    assert strains["kappa1"][0].min() > 0.1 and strains["kappa2"][1].min() > 0.1 and strains["tau"][2].min() > 0.1


def test_orientations_are_differentiated_by_the_state():
    """Compare the gradient by positions and angles with differences, at a state whose frames stand elsewhere."""
    model = held(ALONG["slanted"], [forces.Gravity((0, 0, -9.81))])
    state, _ = Static().step(model, model.initial_state(), throw=True)
    weights = torch.randn(1, EDGES, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    way = 1e-2 * torch.randn(state.q.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def weighted(part):
        return (weights * model.orientations(state.replace(q=state.q + part * way))).sum()

    part = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(weighted(part), part)
    difference = (weighted(0.3 + 1e-5) - weighted(0.3 - 1e-5)) / 2e-5
    assert slope.item() == pytest.approx(difference.item(), rel=1e-7)  # h^2, and rounding over h
    found = model.orientations(state)
    assert (found.mT @ found - torch.eye(3)).abs().max() < 1e-14
    edge = state.positions[:, 1:] - state.positions[:, :-1]
    torch.testing.assert_close(found[..., 2], edge / edge.norm(dim=-1, keepdim=True))


def test_orientations_of_another_robot_are_refused():
    """Name the numbers of dofs of the model and of the state."""
    other = RobotBuilder()
    other.add_rod(straight((0, 0, 0), (0.1, 0, 0), 3), Circle(1e-3), Material(1e6, 1000.0))
    with pytest.raises(InputError, match="this model has .* dofs, got"):
        held(ALONG["x"]).orientations(other.finalize().initial_state())
