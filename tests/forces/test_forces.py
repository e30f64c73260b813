"""What each force adds up to in simple cases."""

import math

import numpy as np
import pytest
import torch

from tests import shells
from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    Rectangle,
    RobotBuilder,
    contact,
    elastic,
    forces,
    magnetics,
    meshes,
    modes,
    straight,
)
from torchdismech.forces.base import acting
from torchdismech.testing import check_force

LENGTH, RADIUS, DENSITY = 0.4, 5e-3, 1200.0
VOLUME = math.pi * RADIUS**2 * LENGTH


def rod(*loads, batch=1, mass=None):
    """Return a free straight rod along x with the forces, and its state at rest."""
    points = straight((0, 0, 0), (LENGTH, 0, 0), 9)
    builder = rod_through(points, Circle(RADIUS), Material(1e6, DENSITY), loads, held="not")
    if mass is not None:
        builder.add_mass([8], mass)
    model = builder.finalize()
    return model, model.initial_state(batch=batch)


def total(force, state):
    """Return the sum of the force over the nodes (B, 3)."""
    return force(state, None)[:, : 3 * state.n_nodes].unflatten(1, (-1, 3)).sum(1)


def moving(state, velocity):
    """Return the state with every node at the velocity."""
    v = torch.zeros_like(state.velocity)
    v[:, : 3 * state.n_nodes] = torch.tensor(velocity, dtype=v.dtype).repeat(state.n_nodes)
    return state.replace(velocity=v)


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_numbers_belong_to_what_they_were_given_to(kind):
    """Keep the numbers of forces, fields, energies and paths when a tensor or array is changed that gave them."""
    vector, times, rows = kind([0.0, 0.0, -9.81]), kind([0.0, 1.0]), kind([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    stiffness = kind([[1.0], [2.0]])
    made = [
        forces.Gravity(vector),
        forces.PointForce([0], vector),
        forces.Pressure(stiffness),
        magnetics.Constant(vector),
        magnetics.Table(times, rows),
        contact.Path(times, rows),
        elastic.LinearElastic({"EA": stiffness}),
    ]
    before = [{name: tensor.clone() for name, tensor in one.state_dict().items()} for one in made]
    for given in (vector, times, rows, stiffness):
        given += 1.0
    for one, numbers in zip(made, before, strict=True):
        assert numbers and all(torch.equal(tensor, numbers[name]) for name, tensor in one.state_dict().items())


def test_gravity_is_the_weight():
    """Weigh rod and added mass, with a gravity of each robot's own."""
    gravity = forces.Gravity(torch.tensor([[0, 0, -9.81], [1.62, 0, 0]], dtype=torch.float64))
    _, state = rod(gravity, mass=0.05, batch=2)
    weight = VOLUME * DENSITY + 0.05
    expected = torch.tensor([[0, 0, -9.81 * weight], [1.62 * weight, 0, 0]], dtype=torch.float64)
    assert torch.allclose(total(gravity, state), expected, rtol=1e-12)


def test_buoyancy_is_the_displaced_weight():
    """Lift by the weight of the displaced fluid; the added mass displaces none."""
    buoyancy = forces.Buoyancy((0, 0, -9.81), 1000.0)
    _, state = rod(buoyancy, mass=0.05)
    assert total(buoyancy, state)[0, 2].item() == pytest.approx(1000 * 9.81 * VOLUME, rel=1e-12)


@pytest.mark.parametrize(
    ("force", "along", "across"),
    [
        (forces.Viscous(0.3), 0.3 * LENGTH, 0.3 * LENGTH),
        (forces.MassDamping(2.0), 2 * VOLUME * DENSITY, 2 * VOLUME * DENSITY),
        (forces.Resistive(0.1, 0.7), 0.1 * LENGTH, 0.7 * LENGTH),
    ],
)
def test_linear_drag(force, along, across):
    """Resist motion along and across the axis in proportion to the speed."""
    _, state = rod(force)
    assert total(force, moving(state, [0.5, 0, 0]))[0].tolist() == pytest.approx([-0.5 * along, 0, 0], abs=1e-12)
    assert total(force, moving(state, [0, 0.5, 0]))[0].tolist() == pytest.approx([0, -0.5 * across, 0], abs=1e-12)


def test_quadratic_drag():
    """Resist by 1/2 rho C L 2r speed^2 along and across the axis, and backwards alike."""
    force = forces.QuadraticResistive(0.05, 1.1, 1000.0)
    _, state = rod(force)
    pressure = 0.5 * 1000 * LENGTH * 2 * RADIUS * 0.5**2
    for sign in (1, -1):
        along = total(force, moving(state, [0.5 * sign, 0, 0]))[0]
        across = total(force, moving(state, [0, 0, 0.5 * sign]))[0]
        assert along.tolist() == pytest.approx([-sign * 0.05 * pressure, 0, 0], abs=1e-12)
        assert across.tolist() == pytest.approx([0, 0, -sign * 1.1 * pressure], abs=1e-12)
    assert total(force, state).abs().max() == 0  # smooth at rest, too


def test_point_force_gives_its_impulse():
    """Push for exactly (stop - start) / dt steps, whatever the rounding of the times."""
    force = forces.PointForce([0, 4], (0, 3.0, 0), start=0.1, stop=0.4)
    model, state = rod(force)
    rule = ImplicitEuler(0.01)
    for _ in range(60):
        state, _ = rule.step(model, state, throw=True)
    momentum = (model.body.node_mass()[:, None] * state.node_velocities[0]).sum(0)
    # 60 steps of 10 ms, each balanced to 1e-8 of some 6 N
    assert momentum.tolist() == pytest.approx([0, 2 * 3.0 * 0.3, 0], abs=5e-8)


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e-9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dt", [1e-3, 2e-3, 2.5e-3, 5e-3, 1e-2])
def test_loads_act_for_a_whole_number_of_steps(dtype, dt, unit):
    """Count the steps of a load between start and stop, in both precisions: time is the sum of rounded steps.

    So it is in runs of ns, too.
    """
    # summed one after the other, as steps do; 1,000 to 2,000 steps of 1 ms are the longest of these loads
    steps = torch.full((2100,), dt * unit, dtype=dtype).numpy()
    time = torch.from_numpy(np.add.accumulate(steps, dtype=steps.dtype))
    for start, stop in ((0.1, 0.2), (0.02, 0.06), (0.5, 1.0), (1.0, 2.0), (0.3, 0.4), (0.5, math.inf)):
        on = acting(time, start * unit, stop * unit).nonzero()[:, 0]
        assert len(on) == round((min(stop, 2100 * dt) - start) / dt), (start, stop)
        assert int(on[0]) == round(start / dt), (start, stop)  # the step that ends one dt after the start


@pytest.mark.parametrize("dt", [1e-3, 1e-6, 1e-8, 1e-9])
def test_loads_late_in_a_run_act_for_a_whole_number_of_steps(dt):
    """Count the steps of a load that begins after 1,000 s, of which a part in 1e9 is many short steps."""
    begin = 1000.0
    time = torch.from_numpy(np.add.accumulate(np.array([begin, *[dt] * 100])))[1:]
    for first, count in ((3, 1), (3, 5), (20, 70)):
        on = acting(time, begin + first * dt, begin + (first + count) * dt).nonzero()[:, 0]
        assert on.tolist() == list(range(first, first + count))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loads_that_start_at_zero_act_there(dtype):
    """Act at 0, where states begin, if the start is 0; at other times a load begins after its start."""
    time = torch.tensor([-1.0, -0.5, 0.0, 1e-3, 0.5, 0.6], dtype=dtype)
    for start, first in ((-math.inf, 0), (-0.5, 2), (-1e-12, 2), (0.0, 2), (1e-12, 3), (5e-4, 3)):
        assert acting(time, start, 0.5).nonzero().flatten().tolist() == list(range(first, 5)), start


@pytest.mark.parametrize("rule", [ImplicitEuler, ImplicitMidpoint, Newmark, BDF2])
def test_a_start_at_zero_is_the_beginning(rule):
    """Move a robot as without a start, by the same bits: Newmark's first step has the acceleration at 0."""
    ends = []
    for times in ({}, {"start": 0.0}, {"start": -1.0}):
        model, state = rod(forces.PointForce([4], (0, 1e-3, 0), **times))
        for _ in range(3):
            state, _ = rule(0.02).step(model, state, throw=True)
        ends.append(state.q)
    assert ends[0].abs().max() > 0
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_explicit_force_is_held():
    """Hold an explicit force at its value at the start of the step; others see the end."""
    momentum = []
    for explicit in (True, False):
        force = forces.MassDamping(10.0, explicit=explicit)
        model, state = rod(force)
        state = moving(state, [1.0, 0, 0])
        state, _ = ImplicitEuler(0.01).step(model, state, throw=True)
        momentum.append(state.node_velocities[0, 0, 0].item())
        assert model.mechanics.conservative(at_rest=False)
    assert momentum == pytest.approx([1 - 0.1, 1 / 1.1], abs=1e-8)


@pytest.mark.parametrize(
    ("force", "words"),
    [
        (forces.Resistive(0.1, 0.1), "Resistive: acts on the edges of rods, and the robot has none; of shells take"),
        (forces.QuadraticResistive(1.0, 1.0, 1e3), "QuadraticResistive: acts on the edges of rods, and the robot has"),
        (forces.LineLoad((0, 0, 1), edges=[0]), "LineLoad.edges: acts on the edges of rods, and the robot has none; a"),
        (forces.PointMoment((0, 0, 1), nodes=[0]), "PointMoment: acts on the edges of rods, and the robot has none"),
    ],
)
def test_loads_on_rods_refuse_shells(force, words):
    """Say that there is nothing to act on."""
    builder, sheet = RobotBuilder(), meshes.rectangle(0.1, 0.1, spacing=0.05)
    builder.add_shell(sheet.nodes, sheet.triangles, 1e-3, Material(1e6, 1000.0, 0.3))
    builder.add_force(force)
    with pytest.raises(InputError, match=words):
        builder.finalize()


def test_quadratic_drag_refuses_flat_sections():
    """Say that their width depends on the direction: half of the short side was taken for it, broadside, too."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 5), Rectangle(1e-2, 1e-3), Material(1e6, 1000.0))
    builder.add_force(forces.QuadraticResistive(0.0, 1.5, 1000.0))
    with pytest.raises(InputError, match="QuadraticResistive: rod edge 0 has a rectangular section"):
        builder.finalize()


def planar_strip(directors=None, **sides):
    """Return the force on a planar strip, which lies along x and rises at 0.5 m/s in water."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 5), Rectangle(**sides), Material(1e6, 1000.0), directors=directors)
    force = forces.QuadraticResistive(0.0, 1.5, 1000.0)
    builder.add_force(force)
    return total(force, moving(builder.finalize().initial_state(), [0, 0, 0.5]))[0].tolist()


def test_quadratic_drag_of_planar_strips():
    """Resist by the side along y, on whichever of the two directors it lies; refuse sections that lie askew."""
    expected = [0, 0, -0.5 * 1000 * 1.5 * 0.1 * 1e-2 * 0.5**2]
    assert planar_strip(width=1e-2, height=1e-3) == pytest.approx(expected, abs=1e-12)
    assert planar_strip(width=1e-2, height=1e-4) == pytest.approx(expected, abs=1e-12)
    up, across = np.tile([0.0, 0.0, 1.0], (4, 1)), np.tile([0.0, 1.0, 0.0], (4, 1))
    assert planar_strip(up, width=1e-2, height=1e-3) == pytest.approx(expected, abs=1e-12)
    assert planar_strip(across, width=1e-3, height=1e-2) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InputError, match="planar robot whose rectangles have a side along y"):
        planar_strip((up + across) / math.sqrt(2), width=1e-2, height=1e-3)


def test_mass_damping_slows_every_mode_alike():
    """Damp C = rate M: all modes of a free rod decay alike, its spin, too."""
    model, state = rod(forces.MassDamping(3.0))
    found = modes(model, state, 14)
    assert (found.frequency[0] < 1e-3).sum() >= 6  # it is free
    # eigenvalues of some 1e5 1/s^2 are found to 1e-10 of the largest, so those at zero to a part in a million
    assert found.damping[0].tolist() == pytest.approx([3.0] * 14, rel=1e-5)


def test_a_damped_rod_that_buckles_in_one_step():
    """Find how a rod buckles that is pressed together and turned far in a long step, down the potential."""
    count, length = 24, 0.25
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (length, 0, 0), count), Circle(4.73e-3), Material(1.356e6, 1100.0, 0.5))
    builder.clamp(nodes=[0, 1])
    builder.clamp(nodes=[count - 2, count - 1])
    builder.add_force(forces.MassDamping(20.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize(compile=False)
    state = model.initial_state()
    q = state.q.clone()
    q[:, [3 * (count - 2), 3 * (count - 1)]] -= 0.139 * length / 8
    q[:, 3 * count + count - 2] += 5.275 / 8
    _, info = ImplicitEuler(0.05).step(model, state, Control(clamped_q=q), throw=True)
    assert info.iterations > 5  # whole Newton steps do not find it


def test_bad_parameters_are_refused():
    """Name what is wrong."""
    with pytest.raises(InputError, match="Gravity.acceleration"):
        forces.Gravity((0, 0))
    with pytest.raises(InputError, match="start has to be before stop"):
        forces.PointForce([0], (0, 0, 1), start=1.0, stop=0.5)
    with pytest.raises(InputError, match="PointForce.nodes"):
        rod(forces.PointForce([99], (0, 0, 1)))
    with pytest.raises(InputError, match=r"Viscous.viscosity: expected finite numbers, got nan"):
        forces.Viscous(math.nan)
    for given in ("down", None, [[0, 0, 1], [0]]):
        with pytest.raises(InputError, match="Gravity.acceleration: expected numbers, got"):
            forces.Gravity(given)
    with pytest.raises(InputError, match="Gravity.acceleration: got a tensor that requires gradients"):
        forces.Gravity((0, 0, torch.tensor(-9.81, requires_grad=True)))
    used = forces.Viscous(0.1)
    rod(used)
    with pytest.raises(InputError, match="another model"):
        rod(used)


BELOW_ZERO = {
    "Viscous.viscosity": lambda x: forces.Viscous(x),
    "MassDamping.rate": lambda x: forces.MassDamping(x),
    "Buoyancy.fluid_density": lambda x: forces.Buoyancy((0, 0, -9.81), x),
    "Drag.density": lambda x: forces.Drag(x, 1.2),
    "Drag.coefficient": lambda x: forces.Drag(1000.0, x),
    "Resistive.tangential": lambda x: forces.Resistive(x, 0.2),
    "Resistive.normal": lambda x: forces.Resistive(0.1, x),
    "QuadraticResistive.tangential": lambda x: forces.QuadraticResistive(x, 1.2, 1000.0),
    "QuadraticResistive.normal": lambda x: forces.QuadraticResistive(0.1, x, 1000.0),
    "QuadraticResistive.density": lambda x: forces.QuadraticResistive(0.1, 1.2, x),
}


def test_a_force_that_sets_what_follows_from_its_kind_is_refused():
    """Refuse a class that says itself whether it varies: with False it would neither vary nor be constant."""
    with pytest.raises(InputError, match="Still.varies: follows from `constant` and `explicit`"):

        class Still(forces.Force):
            varies = False


@pytest.mark.parametrize("name", BELOW_ZERO)
def test_coefficients_below_zero_are_refused(name):
    """Refuse a drag that would push things along, and a density below zero, also of one robot among others."""
    make = BELOW_ZERO[name]
    with pytest.raises(InputError, match=rf"^{name}: expected 0 or more, got -5$"):
        make(-5.0)
    with pytest.raises(InputError, match=rf"^{name}: expected 0 or more, got -1$"):
        make(torch.tensor([[0.3], [-1.0]], dtype=torch.float64))
    assert name.partition(".")[2] in make(0.0).not_negative


@pytest.mark.parametrize("name", ["Viscous.viscosity", "MassDamping.rate", "Buoyancy.fluid_density"])
@pytest.mark.parametrize("count", [3, 9])
def test_coefficients_of_the_whole_robot_are_one_number(name, count):
    """Refuse one dimension, whether it is as long as the nodes are many or not: robots have (B, 1)."""
    with pytest.raises(InputError, match=rf"^{name}: expected one number, or .* \(B, 1\), got \({count},\)$"):
        BELOW_ZERO[name](torch.ones(count, dtype=torch.float64))


@pytest.mark.parametrize(("name", "count"), [(n, 9 if n.startswith("R") else 8) for n in BELOW_ZERO if "Resist" in n])
def test_coefficients_of_elements_fit_the_robot(name, count):
    """Refuse another number of elements when the model is built, and three dimensions; one dimension is of elements."""
    make = BELOW_ZERO[name]
    for shape in ((5,), (3, 5)):
        given = make(torch.ones(shape, dtype=torch.float64))
        expected = rf"^{name}: expected one number, \({count},\) .* or \(B, {count}\) .*, got shape \({shape[0]},"
        with pytest.raises(InputError, match=expected):
            rod(given)
    with pytest.raises(InputError, match=rf"^{name}: .*, got shape \(2, 1, {count}\)"):
        make(torch.ones(2, 1, count, dtype=torch.float64))
    own = make(torch.linspace(0.1, 0.9, count, dtype=torch.float64))
    _, state = rod(own, batch=count)
    drag = own(moving(state, [0.5, 0.5, 0]), None)
    assert torch.equal(drag, drag[:1].expand_as(drag))  # robots as many as elements are all alike


@pytest.mark.parametrize("name", ["Viscous.viscosity", "Resistive.normal"])
def test_coefficients_below_zero_are_refused_in_steps(name):
    """Refuse what a control sets, and what an optimiser drove there; a coefficient of zero is fine."""
    parameter = name.partition(".")[2]
    force = BELOW_ZERO[name](0.2)
    model, state = rod(force)
    step = ImplicitEuler(0.01).step
    with pytest.raises(InputError, match=rf"{name}'\]: expected 0 or more, got -0.1"):
        step(model, state, Control(values={name: torch.tensor(-0.1, dtype=torch.float64)}))
    trained = getattr(force, parameter).requires_grad_()
    with torch.no_grad():
        trained.zero_()
        step(model, state, throw=True)
        trained.fill_(-0.1)
    with pytest.raises(InputError, match=rf"^{name}: expected 0 or more, got -0.1; an optimiser"):
        step(model, state)


class Neighbours(forces.LocalForce):
    """A force between neighbours on rods and shells: what a learned one may be."""

    def nodal_force(self, state, control):
        """Return pushes along the edges that depend on their length, on relative velocity and on the angles there."""
        x, u = state.positions, state.node_velocities
        a, b = torch.as_tensor(self.body.links).T
        e = x[:, b] - x[:, a]
        push = torch.tanh(30 * e) + 0.1 * (u[:, b] - u[:, a]) * e.norm(dim=-1, keepdim=True)
        return torch.zeros_like(x).index_add(1, a, push).index_add(1, b, -push)


@pytest.mark.parametrize("shape", ["hinge", "midedge", "midedge_rod"])
def test_local_forces_reach_along_the_edges_of_shells(shape):
    """Find the derivatives of a force between neighbours on a shell with its rod."""
    force = Neighbours(reach=1)
    model = shells.robot(shape, [force])
    noise = torch.randn(2, model.n_dofs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = model.initial_state(q=model.initial_state(batch=2).q + 2e-3 * noise, velocity=0.1 * noise)
    check_force(force, model, state).raise_if_failed()


@pytest.mark.parametrize("spacing", [0.05, 0.02])
def test_viscosity_and_buoyancy_of_a_shell_do_not_depend_on_its_mesh(spacing):
    """Resist by viscosity x root of the area, and lift by the fluid's weight in the shell's volume, on any mesh."""
    sheet = meshes.rectangle(0.2, 0.1, spacing, "random", seed=0)
    builder = RobotBuilder()
    builder.add_shell(sheet.nodes, sheet.triangles, 3e-3, Material(1e6, 1000.0, 0.3), "hinge")
    viscous, buoyancy = forces.Viscous(0.5), forces.Buoyancy((0, 0, -9.81), 800.0)
    builder.add_force(viscous)
    builder.add_force(buoyancy)
    model = builder.finalize()
    velocity = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64).repeat(model.body.n_nodes)
    state = model.initial_state(velocity=velocity)
    total = viscous(state, Control())[0].view(-1, 3).sum(0)
    expected = -0.5 * math.sqrt(0.2 * 0.1) * torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)
    assert torch.allclose(total, expected, rtol=1e-12)
    lift = buoyancy(state, Control())[0].view(-1, 3).sum(0)
    assert lift[2].item() == pytest.approx(800.0 * 9.81 * 0.2 * 0.1 * 3e-3, rel=1e-12)
    assert model.body.node_mass().sum().item() == pytest.approx(1000.0 * 0.2 * 0.1 * 3e-3, rel=1e-12)
