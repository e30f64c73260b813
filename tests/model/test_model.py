"""Building models, their parameters per element and per robot, and what is refused."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch

from tests.constant_curvature.arms import paper_arm
from tests.rigid.chains import cable
from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    InputError,
    Material,
    Newmark,
    Rectangle,
    RobotBuilder,
    Static,
    arc,
    contact,
    forces,
    meshes,
    rollout,
    straight,
)


def rod(youngs=1e6, density=1000.0, section=None, loads=(), points=None, **options):
    """Return a rod along x of 6 edges, clamped at its first edge."""
    points = straight((0, 0, 0), (0.3, 0, 0), 7) if points is None else points
    loads = [forces.Gravity((0, 0, -9.81)), *loads]
    return rod_through(points, section or Circle(5e-3), Material(youngs, density), loads, **options).finalize()


def tips(model, batch, steps=5):
    """Return the tips (B, 3) after some steps."""
    state = model.initial_state(batch=batch)
    for _ in range(steps):
        state, _ = ImplicitEuler(0.01).step(model, state, throw=True)
    return state.positions[:, -1]


@pytest.mark.parametrize("shape", [(), (6,), (2, 1), (2, 6), (1, 6)])
def test_parameters_per_element_and_per_robot(shape):
    """Take any shape that broadcasts against (B, E), for modulus, density and radius."""
    plain = tips(rod(), 2)
    youngs, density, radius = (torch.full(shape, value, dtype=torch.float64) for value in (1e6, 1e3, 5e-3))
    model = rod(youngs, density, Circle(radius), loads=[forces.QuadraticResistive(0.0, 0.0, 1.0)])
    assert model.batch == (2 if shape[:1] == (2,) else None)
    assert (tips(model, 2) - plain).abs().max() < 1e-12


def test_stiffness_in_place_of_section_and_material():
    """Use given stiffnesses, and derive the others."""
    model = rod(stiffness={"EI1": 3e-4, "GJ": 1e-4})
    energy = model.term("bend_twist").energy
    assert energy.EI1.item() == 3e-4 and energy.GJ.item() == 1e-4
    assert energy.EI2.item() == pytest.approx(1e6 * math.pi * (5e-3) ** 4 / 4)


def branched(**stiffened):
    """Return a model of a straight rod of five nodes with a branch at its middle, some of its springs stiffened."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.4, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0, relaxation_time=0.01))
    builder.add_rod(straight((0.2, 0, 0), (0.2, 0, 0.2), 3), Circle(2e-3), Material(1e6, 1000.0, relaxation_time=0.01))
    for springs, values in stiffened.values():
        builder.set_spring_stiffness(springs, **values)
    return builder.finalize()


def test_stiffness_of_single_springs():
    """Set stiffnesses by the springs' nodes, in either direction, at junctions, too, and per robot; damping follows."""
    plain, each = branched(), torch.tensor([[1e-3, 2e-3], [3e-3, 4e-3]], dtype=torch.float64)
    model = branched(
        some=([[0, 1, 2], [5, 2, 1]], {"EI1": each, "GJ": 5e-3}), another=([[3, 2, 1]], {"EI2": torch.tensor(7.0)})
    )
    springs, energy = model.springs.tolist(), model.term("bend_twist").energy
    index = [
        next(k for k, nodes in enumerate(springs) if nodes in (t, t[::-1])) for t in ([0, 1, 2], [5, 2, 1], [3, 2, 1])
    ]
    assert torch.equal(energy.EI1[:, index[:2]], each) and energy.GJ[index[:2]].tolist() == [5e-3] * 2
    assert energy.EI2[index[2]].item() == 7.0
    own = plain.term("bend_twist").energy
    rest = [k for k in range(len(springs)) if k not in index]
    for name in ("EI1", "EI2", "GJ"):
        assert (getattr(energy, name)[..., rest] == getattr(own, name)).all()
    viscous = model.term("bend_twist").dissipation
    assert torch.allclose(viscous.viscous_EI1, 0.01 * energy.EI1)


@pytest.mark.parametrize(
    ("springs", "values", "message"),
    [
        ([[0, 1, 3]], {"EI1": 1.0}, r"no spring of nodes \[0, 1, 3\]"),
        ([[1, 0, 2]], {"EI1": 1.0}, "no spring of nodes"),
        ([[0, 1, 2], [2, 1, 0]], {"EI1": 1.0}, "each spring once"),
        ([[0, 1]], {"EI1": 1.0}, r"\(k, 3\), got \(1, 2\)"),
        ([[0, 1, 2]], {}, "at least one of EI1"),
        ([[0, 1, 2]], {"EI1": -1.0}, "set_spring_stiffness.EI1"),
        ([[0, 1, 2]], {"GJ": torch.ones(2)}, "GJ: expected a shape"),
    ],
)
def test_wrong_stiffness_of_single_springs_is_refused(springs, values, message):
    """Name the spring, or what is wrong with the numbers."""
    with pytest.raises(InputError, match=message):
        branched(wrong=(springs, values))


def test_rectangle():
    """Bend about the axis that the height says, and twist as Saint-Venant says."""
    constants = Rectangle(width=0.02, height=0.01).constants()
    assert constants["I1"].item() == pytest.approx(0.02 * 0.01**3 / 12)
    # Timoshenko's table for a/b = 2: 0.229 a b^3
    assert constants["J"].item() == pytest.approx(0.229 * 0.02 * 0.01**3, rel=2e-3)


def test_naturally_straight():
    """Store energy in a curved rod that is naturally straight, and none in one that is naturally curved."""
    points = arc((0, 0, 0.1), (0, 0, 0), (0, -1, 0), 1.0, 11)
    energies = {}
    for natural in ("initial", "straight"):
        model = rod(points=points, natural=natural)
        energies[natural] = model.energies(model.initial_state())["bend"].item()
    assert energies["initial"] < 1e-30  # J: squares of what rounding makes of strains, 1e-16, times 5e-3 N m
    # 1/2 EI kappa^2 per length; an arc of 0.1 rad per edge bends by 2 tan(0.05), and 9 of 10 cells count
    stiffness = 1e6 * math.pi * (5e-3) ** 4 / 4
    cell = 2 * 0.1 * math.sin(0.05)
    assert energies["straight"] == pytest.approx(9 * 0.5 * stiffness * (2 * math.tan(0.05)) ** 2 / cell, rel=1e-9)


def test_reference_twist_does_not_jump():
    """Follow an edge that circles its neighbour's axis three times: the twist grows without jumps of 2 pi."""
    model = rod(points=straight((0, 0, 0), (0.2, 0, 0), 3))
    state = model.initial_state()
    twists = []
    for angle in np.linspace(0, 6 * math.pi, 200):
        q = state.q.clone()
        q[0, 6:9] = torch.tensor([0.1 + 0.02, 0.098 * math.cos(angle), 0.098 * math.sin(angle)], dtype=q.dtype)
        state = model.frames.moved(state, q)
        twists.append(state.reference_twist.item())
    steps = np.diff(twists[1:])
    assert np.abs(steps).max() < 0.2
    # a turn sweeps the solid angle 2 pi (1 - cos) of its cone: 0.8 of 2 pi each, up to the polygon's error
    assert abs(twists[-1] - twists[1]) == pytest.approx(3 * 2 * math.pi * (1 - 0.2), rel=0.03)


def test_transport_puts_right_what_rounding_did_to_directors():
    """Make directors normal to the tangents again where they are off by a little, to the square of that."""
    model = rod()
    state = model.initial_state(batch=2)
    off = 1e-6
    tilted = state.replace(director=state.director + off * state.tangent)
    carried = model.frames.moved(tilted, state.q).director
    assert (carried * state.tangent).sum(-1).abs().max() < 1e-15  # rounding; without correction it stays 1e-6
    assert (carried - state.director).abs().max() < off**2


def test_state_dict_round_trip():
    """Carry all constants in the state dict."""
    stiff, soft = rod(youngs=5e6), rod()
    soft.load_state_dict(stiff.state_dict())
    assert torch.equal(tips(soft, 1), tips(stiff, 1))


def test_acceleration_of_the_initial_state():
    """Start with what the forces give, so that Newmark is right from its first step."""
    model = rod()
    state = model.initial_state()
    assert state.acceleration[0, 3 * 6 + 2].item() == pytest.approx(-9.81)
    assert state.acceleration[0, 2] == 0  # clamped


def test_actuation_bends_towards_its_natural_curvature():
    """Reach the natural curvature that a control sets, in statics and along a schedule."""
    model = rod(density=1e-3)
    curvature = torch.zeros(1, 5, 2, dtype=torch.float64)
    curvature[..., 0] = 0.1
    state, _ = Static().step(model, model.initial_state(), Control(natural_curvature=curvature), throw=True)
    assert (model.strains(state)["kappa1"] - 0.1).abs().max() < 1e-5
    assert state.positions[0, -1, 2] > 0.05  # kappa1 > 0 curls towards +z

    def schedule(time, model):
        return Control(natural_curvature=curvature * (time / 0.2).clamp(max=1.0)[:, None, None])

    trajectory = rollout(model, model.initial_state(), ImplicitEuler(0.02), 40, schedule, every=40)
    assert (trajectory.positions[-1] - state.positions).abs().max() < 1e-3


def test_rest_length_moves_a_tip():
    """Follow a rest length that a control changes."""
    model = rod(density=1e-3)
    length = torch.full((1, 6), 0.06, dtype=torch.float64)
    state, _ = Static().step(model, model.initial_state(), Control(rest_length=length), throw=True)
    assert state.positions[0, -1, 0].item() == pytest.approx(0.05 + 5 * 0.06, abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Circle(-1.0).constants(), "Circle.radius"),
        (lambda: Material(math.nan, 1.0).constants(), "Material.youngs"),
        (lambda: Material(1.0, 1.0, 0.7).constants(), "poisson"),
        (lambda: rod(stiffness={"EJ": 1.0}), "EJ"),
        (lambda: rod(natural="bent"), "natural"),
        (lambda: rod(youngs=torch.ones(4, dtype=torch.float64)), "6 edges"),
        (lambda: rod(youngs=torch.ones(2, 1), loads=[forces.Viscous(torch.ones(3, 1))]).batch, "different numbers"),
        (lambda: rod().initial_state(q=torch.zeros(2, 4)), r"q has to be \(27,\)"),
        (lambda: rod(youngs=torch.ones(2, 1)).initial_state(batch=3), "2 robots"),
        (lambda: RobotBuilder().finalize(), "neither rods nor shells"),
        (lambda: RobotBuilder().clamp(nodes=[0]), "clamp.nodes"),
        (lambda: RobotBuilder().clamp(), "either nodes or box"),
        (lambda: ImplicitEuler(0.0), "dt"),
        (lambda: ImplicitEuler(0.1, max_iterations=0), "max_iterations"),
        (lambda: Newmark(0.1, beta=0.0), "gamma <= 2 beta, got beta=0.0, gamma=0.5"),
        (lambda: Newmark(0.1, beta=0.249), "unless dt is short if 2 beta < gamma"),
        (lambda: Newmark(0.1, gamma=0.499), "Vibrations grow at any dt if gamma < 1/2"),
        (lambda: Newmark(0.1, beta=0.6, gamma=1.01), "gamma <= 1"),
        (lambda: Static(load_steps=0), "load_steps"),
        (lambda: rollout(rod(), rod().initial_state(), ImplicitEuler(0.1), 0), "steps"),
        (lambda: straight((0, 0, 0), (1, 0, 0), 1), "straight: nodes"),
        (lambda: rod().term("stretsh"), "stretsh"),
    ],
)
def test_what_is_refused(wrong, message):
    """Name what is wrong."""
    with pytest.raises(InputError, match=message):
        wrong()


@pytest.mark.parametrize("field", ["natural_curvature", "natural_twist", "rest_length", "clamped_q", "force"])
def test_controls_of_another_shape_are_refused(field):
    """Name the field, the shape that was expected and the one that came."""
    model = rod()
    with pytest.raises(InputError, match=rf"Control.{field}: expected shape .*, got \(1, 3\)"):
        ImplicitEuler(0.01).step(model, model.initial_state(), Control(**{field: torch.zeros(1, 3)}))


def test_states_and_controls_are_copies():
    """Write to what a state was made of, to a state, and to natural strains: neither a state nor the model changes."""
    model = rod()
    q = model.body.rest_q.expand(2, -1).numpy().copy()
    velocity = torch.zeros(2, model.n_dofs, dtype=torch.float64)
    state, expected = model.initial_state(q=q, velocity=velocity), model.initial_state(2)
    q[:], velocity[:] = 1.0, 1.0
    assert torch.equal(state.q, expected.q) and torch.equal(state.velocity, expected.velocity)
    for batch in (1, 3):
        model.rest_state(batch).director.zero_()
        own = model.natural_strains(batch)
        for strain in own.tensors().values():
            strain[:1] = 7.0
            assert batch == 1 or not bool((strain[1:] == 7.0).any())
        assert not any(bool((strain == 7.0).any()) for strain in model.natural_strains(1).tensors().values())
    assert torch.equal(model.rest_state(2).director, expected.director)


def test_everything_clamped_is_refused():
    """Say that nothing can move."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 3), Circle(5e-3), Material(1e6, 1e3))
    builder.clamp(box=((-1, -1, -1), (1, 1, 1)))
    with pytest.raises(InputError, match="nothing can move"):
        builder.finalize()


def test_an_exchanged_term_counts_in_forces_and_energies():
    """Evaluate the terms that the model has now, as trained or exchanged terms need."""
    model = rod()
    state = model.initial_state()
    q = state.q + 1e-3 * torch.arange(model.n_dofs, dtype=torch.float64)
    start, terms = model.start_step(state), model.terms
    force = model.mechanics.elastic_force(start, q)
    for k, term in enumerate(terms):
        twin = copy.deepcopy(term)
        for parameter in twin.energy.parameters():
            parameter.data *= 2
        terms[k] = twin
    assert torch.allclose(model.mechanics.elastic_force(start, q), 2 * force, rtol=1e-12)


def test_clones_have_tensors_of_their_own():
    """Find the same numbers in clones of a state and a report, in other memory."""
    model = rod()
    after, info = ImplicitEuler(1e-3).step(model, model.initial_state(batch=2))
    state, report = after.clone(), info.clone()
    for of_clone, own in ((state.fields(), after.fields()), (report.tensors(), info.tensors())):
        assert all(torch.equal(a, b) for a, b in zip(of_clone, own, strict=True))
        assert not {tensor.data_ptr() for tensor in of_clone} & {tensor.data_ptr() for tensor in own if tensor.numel()}


def test_states_are_shown_in_a_line():
    """Say how many robots there are, of how many dofs, and when; of states of all models, not all of their numbers."""
    state = rod().initial_state(2)
    assert repr(state) == f"State(2 robots of {state.q.shape[1]} dofs, t = 0 s, torch.float64 on cpu)"
    times = torch.tensor([0.1, 0.25], dtype=torch.float64)
    assert "t = 0.1 to 0.25 s" in repr(BDF2(0.01).started(state.replace(time=times)))
    assert repr(state.rows([1])).startswith("State(1 robot of ") and "(0 robots of " in repr(state.rows([]))
    for model in (cable(3), paper_arm()):
        shown = repr(model.initial_state(2))
        assert shown.startswith(f"{type(model.initial_state(2)).__name__}(2 robots of ") and len(shown) < 80


def test_thrown_takes_numbers():
    """Throw a rod by lists as by tensors of its dtype; refuse vectors of another shape by name."""
    model = rod()
    start = model.initial_state(2)
    given = model.thrown(start, velocity=(1, 0, 2), angular_velocity=[0.0, 3.0, 0.0], center=(0, 0, 0))
    vectors = [torch.tensor(x, dtype=torch.float64) for x in ([1.0, 0, 2], [0, 3.0, 0], [0.0, 0, 0])]
    assert torch.equal(given.velocity, model.thrown(start, *vectors).velocity)
    straight = model.thrown(start, velocity=(1, 0, 2))
    assert torch.equal(straight.velocity, model.thrown(start, (1, 0, 2), (0, 0, 0)).velocity)
    spinning = model.thrown(start, angular_velocity=(0, 3, 0))
    assert torch.equal(spinning.velocity, model.thrown(start, (0, 0, 0), (0, 3, 0)).velocity)
    with pytest.raises(InputError, match=r"angular_velocity has to be \(3,\) or \(2, 3\), got \(2,\)"):
        model.thrown(start, (0, 0, 0), (1, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_spins_that_turn_nothing_are_refused(dtype):
    """Refuse a spin of nodes on its axis, also beside a velocity; turn a rod about itself, and nodes about others."""
    model = rod().to(dtype)
    start = model.initial_state(2)
    q = start.q.clone()
    q[:, : 3 * start.n_nodes : 3] += 0.1  # m along x: 0.1 is no binary number
    start = start.replace(q=q)
    middle = start.positions[0, 3]
    for given in ({}, {"velocity": (0, 1, 0)}, {"center": middle}, {"center": middle - torch.tensor([0, 0, 1.0])}):
        with pytest.raises(InputError, match="thrown: angular_velocity turns nothing"):
            model.thrown(start, angular_velocity=[(0, 0, 0), (0, 0, 2)], nodes=[3], **given)
    ways = ({}, {"nodes": [2, 3]}, {"nodes": [3], "center": (0, 0.1, 0)}, {"nodes": [3], "center": middle + 0.1})
    for given in ways:
        assert model.thrown(start, angular_velocity=(0, 0, 2), **given).node_velocities.abs().max() > 0
    about_itself = model.thrown(start, angular_velocity=(2, 0, 0), nodes=[2, 3]).velocity
    assert about_itself[0, 3 * start.n_nodes :].tolist().count(2.0) == 1


def sheet(thickness):
    """Build a sheet of 0.1 x 0.05 m."""
    builder, mesh = RobotBuilder(), meshes.rectangle(0.1, 0.05, spacing=0.025)
    builder.add_shell(mesh.nodes, mesh.triangles, thickness, Material(1e6, 1000.0))
    return builder.finalize()


@pytest.mark.parametrize(
    ("material", "said"),
    [
        (
            Material(1.0, 1100.0),
            r"Young's modulus is 1 Pa, .* 1 MPa is 1e6; .*ignore', 'material: '",
        ),
        (Material(torch.tensor([[1e6], [2.0]]), 1100.0), "Young's modulus is 2 Pa"),
        (Material(1e6, 1.1), r"a density of 1.1 kg/m\^3 is less than 10"),
        (Material(1e6, 1.1e6), r"a density of 1.1e\+06 kg/m\^3 is more than 100000"),
    ],
)
def test_materials_in_other_units_are_warned_of(material, said):
    """Say so when the robot is built, once of several parts alike; not of a modulus that does not count."""
    builder = RobotBuilder()
    for height in (0.0, 0.1):
        builder.add_rod(straight((0, 0, height), (0.3, 0, height), 4), Circle(1e-3), material)
    with pytest.warns(UserWarning, match=said) as heard:
        builder.finalize()
    assert len(heard) == 1 and heard[0].filename == __file__
    stiff = RobotBuilder()
    own = {"EA": 10.0, "EI1": 1e-4, "EI2": 1e-4, "GJ": 1e-4}
    stiff.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(1e-3), Material(1.0, 1100.0), stiffness=own)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stiff.finalize()


def test_sections_in_millimetres_are_warned_of():
    """Say that a rod is thicker than it is long, a shell than it is wide; say nothing of those that are not."""
    with pytest.warns(UserWarning, match=r"a radius of 5 m is more than all of them are long, \S+ m: give sizes in m"):
        rod(section=Circle(5.0))
    with pytest.warns(UserWarning, match="a thickness of 1 m is more than it is across, 0.1 m: give sizes in m"):
        sheet(thickness=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rod(section=Circle(5e-3))
        sheet(thickness=1e-3)


def test_nodes_in_millimetres_are_warned_of():
    """Say how far rods reach if that is more than robots do."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (200, 0, 0), 11), Circle(2e-3), Material(1e6, 1000.0))
    with pytest.warns(UserWarning, match="rods: they are 200 m across. If nodes are in millimetres give them in m"):
        builder.finalize()
    builder, mesh = RobotBuilder(), meshes.rectangle(100.0, 50.0, spacing=25.0)
    builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(1e6, 1000.0))
    with pytest.warns(UserWarning, match="shell: it is 100 m across. If nodes are in millimetres") as heard:
        builder.finalize()
    assert heard[0].filename == __file__


def test_two_weights_are_warned_of():
    """Say that gravity that is added twice acts twice; say nothing of one."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0))
    for _ in range(2):
        builder.add_force(forces.Gravity((0, 0, -9.81)))
    with pytest.warns(
        UserWarning, match="2 forces Gravity act on the robot, alike, and add up: leave one out"
    ) as heard:
        builder.finalize()
    assert heard[0].filename == __file__


def test_a_control_sets_constants_of_what_took_the_place_of_others():
    """It set those of the shape before, which does nothing any more, without a word."""
    ball, law = contact.Sphere((0.3, 0.0, -0.05), 0.03), contact.Penalty(1e3, 1e-3)
    model = rod(loads=[contact.Obstacle(ball, law, name="ball")])
    control = Control(values={"ball.radius": torch.full((1, 1), 0.06, dtype=torch.float64)})
    step, state = ImplicitEuler(0.01).step, model.initial_state(control=control)
    expected = step(model, state, control, throw=True)[0]
    model.obstacles[0].shape = contact.Sphere((0.3, 0.0, -0.05), 0.02)
    assert torch.equal(model.initial_state(control=control).acceleration, state.acceleration)
    assert torch.equal(step(model, state, control, throw=True)[0].q, expected.q)
    assert not torch.equal(step(model, state, throw=True)[0].q, expected.q)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": torch.tensor(0.5, dtype=torch.float64)}, r"State.time: expected shape \(2,\), got \(\)"),
        ({"velocity": torch.zeros(31, dtype=torch.float64)}, r"State.velocity: expected shape \(2, 31\), got \(31,\)"),
        ({"acceleration": torch.zeros(1, 31, dtype=torch.float64)}, r"acceleration: expected .* got \(1, 31\)"),
        ({"director": torch.zeros(2, 3, 7, dtype=torch.float64)}, r"director: expected shape \(2, 7, 3\), got"),
        ({"q": torch.zeros(31, dtype=torch.float64)}, r"State.q: expected shape \(B, 31\), got \(31,\)"),
    ],
)
def test_states_whose_tensors_do_not_go_together(changes, message):
    """They ended in errors of torch, or were taken, one row for all robots."""
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 7), Circle(5e-3), Material(1e6, 1e3), held="end").finalize()
    state = model.initial_state(2).replace(**changes)
    for refused in (lambda: ImplicitEuler(0.01).step(model, state), lambda: model.energies(state)):
        with pytest.raises(InputError, match=message):
            refused()


def test_reports_of_states_of_other_robots():
    """Refuse them; some ended in errors of torch, and strains were numbers without a meaning."""
    floor = contact.Obstacle(contact.HalfSpace((0, 0, -1), (0, 0, 1)), contact.Penalty(1e3, 1e-3))
    model = rod(section=Circle(torch.tensor([[5e-3], [4e-3]])), loads=[floor])
    longer = rod(points=straight((0, 0, 0), (0.3, 0, 0), 9)).initial_state(2)
    for report in (model.strains, model.contact_report, model.internal_variables, model.thrown):
        with pytest.raises(InputError, match="State.q: this model has 27 dofs, got 35"):
            report(longer)
    for report in (model.contact_report, model.thrown):
        with pytest.raises(InputError, match="parameters are for 2 robots, got a state of 3; to step some"):
            report(model.rest_state(3))
