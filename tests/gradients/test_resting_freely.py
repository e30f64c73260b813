"""Gradients of equilibria that contacts hold, that may turn or slide along what they lie on, and that follow others."""

import numpy as np
import pytest
import torch

from torchdismech import Circle, Control, Material, RobotBuilder, Static, forces, magnetics, meshes, straight, trainable
from torchdismech.contact import Complementarity, HalfSpace, Obstacle, Penalty
from torchdismech.elastic import Inelastic

RADIUS, MATERIAL = 1e-3, Material(5e6, 2000.0, 0.4)


def on_a_floor(builder, response):
    """Return the model of a robot with weight that lies on a smooth floor, or falls onto it."""
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), response, name="floor"))
    return builder.finalize()


def rod(height, length=0.1, nodes=11, bend=0.0, planar=False):
    """Return a builder with a rod at some height above a floor."""
    along = np.linspace(0, length, nodes)
    builder = RobotBuilder(planar=planar)
    builder.add_rod(np.stack([along, bend * along**2, 0 * along + RADIUS + height], axis=1), Circle(RADIUS), MATERIAL)
    return builder


def pinned_rod(response):
    """Return a rod that hangs from one node onto a floor, about which it may turn, and about its own axis."""
    builder = rod(1e-3, nodes=9)
    builder.clamp(nodes=[0])
    return on_a_floor(builder, response)


def pinned_bow(response):
    """Return the same of a rod that is bent at rest, which may turn about the vertical."""
    builder = rod(1e-3, bend=1.0, nodes=9)
    builder.clamp(nodes=[0])
    return on_a_floor(builder, response)


def pinned_sheet(response):
    """Return a sheet that hangs from one node."""
    sheet = meshes.rectangle(0.1, 0.05, spacing=0.025)
    builder = RobotBuilder()
    builder.add_shell(sheet.nodes + np.array([0, 0, 1e-3]), sheet.triangles, 1e-3, MATERIAL)
    builder.clamp(nodes=[0])
    return on_a_floor(builder, response)


def loose_rod(response):
    """Return a rod that nothing holds but the floor."""
    return on_a_floor(rod(1e-5), response)


def loose_magnet(response, clamped=False):
    """Return a magnetised rod over a dipole: the pull grows as it comes nearer, so that contact alone holds it."""
    builder = rod(1e-5, 0.03, 7)
    if clamped:
        builder.clamp(nodes=[0], direction="rest")
    builder.add_force(magnetics.Magnetic((0, 0, 5e4), magnetics.Dipole((0, 0, 2.0), (0.015, 0, -0.03))))
    return on_a_floor(builder, response)


def sliding_rod(response):
    """Return a planar rod that lies on the floor with a node that slides along a line of 45 degrees to it."""
    builder = rod(0.0, planar=True)
    builder.clamp(nodes=[0], along=[(1, 0, 1)])
    builder.add_force(forces.PointForce([10], (1e-4, 0, 0)))
    return on_a_floor(builder, response)


ROBOTS = [pinned_rod, pinned_bow, pinned_sheet, loose_rod, loose_magnet, sliding_rod]


@pytest.mark.filterwarnings("ignore:.*no minimum:RuntimeWarning")
@pytest.mark.parametrize("robot", ROBOTS)
def test_heights_have_gradients_where_contacts_hold_a_robot(robot):
    """Compare with differences how a floor lifts robots, and how their weight presses them onto it."""
    model = robot(Complementarity())
    weights = 1 + 0.5 * torch.sin(torch.arange(len(model.nodes), dtype=torch.float64))

    def heights():
        return (Static(**exact).step(model, model.initial_state(), throw=True)[0].positions[0, :, 2] * weights).sum()

    exact = {"force_tolerance": 1e-13, "relative_tolerance": 0.0}
    floor = trainable.shifted(model, ["floor.point"], 1.0, (3,))
    weight = trainable.scaled(model, ["Gravity.acceleration"])
    (by_place, by_weight) = torch.autograd.grad(heights(), [floor.shift, weight.log_factor])
    for found, parameter, step in (
        (by_place[2], floor.shift.data[2:3], 1e-6),
        (by_weight, weight.log_factor.data, 1e-4),
    ):
        with torch.no_grad():
            parameter += step
            above = heights()
            parameter -= 2 * step
            difference = (above - heights()) / (2 * step)
            parameter += step
        # of some 10, and some 1e-3 m: what is left of the search, and of the rounding of heights, over the step
        assert float(found) == pytest.approx(float(difference), rel=1e-5, abs=1e-8)


@pytest.mark.filterwarnings("ignore:.*no minimum:RuntimeWarning")
@pytest.mark.parametrize("response", [Complementarity(), Penalty(200.0, 1e-4)])
@pytest.mark.parametrize("robot", [pinned_bow, loose_rod])
def test_equilibria_after_others_have_the_same_gradients(robot, response):
    """Go through three shares of the load, or three equilibria in turn, as through one."""
    model = robot(response)
    pull = torch.zeros(1, model.n_dofs, dtype=torch.float64, requires_grad=True)
    found = []
    for static, times in ((Static(), 1), (Static(load_steps=3), 1), (Static(), 3)):
        state = model.initial_state()
        for _ in range(times):
            state, _ = static.step(model, state, Control(force=pull), throw=True)
        (gradient,) = torch.autograd.grad(state.positions[0, :, 2].square().sum(), pull)
        found.append(gradient[:, 2 : 3 * len(model.nodes) : 3])  # by weights: where it turns to is up to the search
    assert all(torch.isfinite(gradient).all() for gradient in found)
    for other in found[1:]:  # the searches end within their tolerance of each other
        assert torch.allclose(other, found[0], rtol=1e-4, atol=1e-4 * float(found[0].abs().max()))


@pytest.mark.filterwarnings("ignore:.*no minimum:RuntimeWarning")
@pytest.mark.parametrize("response", [Complementarity(), Penalty(200.0, 1e-4)])
def test_what_a_free_motion_moves_has_no_gradient(response):
    """Give NaN for the one of three robots that may turn where the loss asks how far, and no others."""
    model = pinned_bow(response)
    pull = torch.zeros(3, model.n_dofs, dtype=torch.float64)
    tip = 3 * (len(model.nodes) - 1)
    pull[0, tip], pull[2, tip + 1] = 1e-4, 1e-4  # the first and the last are held by what pulls at their tips
    pull.requires_grad_()
    state, info = Static().step(model, model.initial_state(3), Control(force=pull), throw=True)
    (by_heights,) = torch.autograd.grad(state.positions[:, :, 2].sum(), pull, retain_graph=True)
    assert info.stable.tolist() == [True, False, True] and torch.isfinite(by_heights).all()
    (by_places,) = torch.autograd.grad(state.positions[:, -1, 1].sum(), pull)
    assert torch.isnan(by_places).any(1).tolist() == [False, True, False]


def test_what_contact_alone_keeps_down_has_gradients_beside_others():
    """Find of a robot over a magnet what it has alone, beside one over a magnet without strength."""
    model = loose_magnet(Complementarity(), clamped=True)
    moments = torch.tensor([[0.0, 0.0, 100.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    pull = torch.zeros(2, model.n_dofs, dtype=torch.float64, requires_grad=True)

    def by_pull(rows):
        """Return the gradients of lengths by forces."""
        control = Control(force=pull[rows], values={"Magnetic.field.moment": moments[rows]})
        state, _ = Static().step(model, model.initial_state(len(moments[rows])), control, throw=True)
        lengths = state.positions[:, -1, 0] - state.positions[:, 0, 0]
        return torch.autograd.grad(lengths.sum(), pull)[0][rows]

    together, alone = by_pull(slice(0, 2)), torch.cat([by_pull(slice(0, 1)), by_pull(slice(1, 2))])
    # 1e-3 m/N, which the stiffness of stretching gives; the magnet's, a millionth of that, leaves some 1e-10 of it
    assert alone.abs().amax(1).min() > 5e-4 and torch.allclose(together, alone, rtol=1e-8, atol=1e-10)


class Creep(Inelastic):
    """A material that takes a part of each strain for its own; what it remembers is in a unit of the author's."""

    variables = ("taken",)

    def __init__(self, unit):
        super().__init__()
        self.unit = unit

    def density(self, strain, past):
        """Return a quadratic energy of what is not taken."""
        return 1.5e-4 * (strain[0] - past.internal[0] / self.unit) ** 2

    def updated(self, strain, past):
        """Return what is taken now, in that unit."""
        taken = past.internal[0] / self.unit
        return (self.unit * (taken + 0.3 * (strain[0] - taken)),)

    def stored(self, internal):
        """Return nothing."""
        return torch.zeros_like(internal[0])


@pytest.mark.parametrize("unit", [1.0, 1e9])
def test_equilibria_hand_on_what_materials_remember_in_any_unit(unit):
    """Pass gradients through equilibria in turn by way of what a material remembers, however small they are in it."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), nodes=4), Circle(2e-3), MATERIAL)
    builder.clamp(nodes=[0], direction="rest")
    builder.add_inelastic("bend_twist", Creep(unit))
    model = builder.finalize()
    size = torch.tensor([1e-3, 2e-3, 5e-4], dtype=torch.float64, requires_grad=True)

    def tip():
        state = model.initial_state()
        for own in size:
            force = torch.zeros(1, model.n_dofs, dtype=torch.float64).index_fill(1, torch.tensor(11), 1.0) * own
            static = Static(force_tolerance=1e-13, relative_tolerance=0.0)
            state, _ = static.step(model, state, Control(force=force), throw=True)
        return state.positions[0, -1, 2]

    (found,) = torch.autograd.grad(tip(), size)
    for k in range(3):
        with torch.no_grad():
            size[k] += 1e-6
            above = tip()
            size[k] -= 2e-6
            difference = (above - tip()) / 2e-6
            size[k] += 1e-6
        # central differences: what is left of the searches over the step, some 1e-8 of slopes of .1 and more
        assert abs(float(difference)) > 0.01 and float(found[k]) == pytest.approx(float(difference), rel=1e-6)
