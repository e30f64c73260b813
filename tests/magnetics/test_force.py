"""The magnetic force: its potential and derivatives, its frames, what it needs and what it refuses."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_bvp

from tests.magnetics.robots import FIELDS, INTEGRATORS, Swirl, check_derivatives, coil, shaken, vec
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    magnetics,
    meshes,
    rollout,
    straight,
)
from torchdismech.integrate.recorded.recordable import why_steps_unrecorded
from torchdismech.testing import check_symmetry

AREA = math.pi * 2e-3**2


@pytest.mark.parametrize("name", FIELDS)
def test_derivatives(name):
    """Meet central differences, symmetric, in every kind of field; the potential's gradient is minus the force."""
    model, force = coil(FIELDS[name]())
    check_derivatives(force, model, shaken(model))


@pytest.mark.parametrize("name", ["rotating", "dipole", "learned"])
def test_steps_evaluate_it_with_the_elastic_terms(name):
    """Get in the sums of a step what the force alone gives, at the time of evaluation, and the share that acts."""
    model, force = coil(FIELDS[name]())
    without, _ = coil((0.0, 0.0, 0.0))
    state = shaken(model)
    late = state.replace(time=state.time + 0.2)
    for share in (1.0, 0.25):
        start = model.mechanics.start(state, Control(), 0.2, None, share)
        found, values = model.mechanics.force_and_stiffness(start, state.q, state.velocity, late.time)
        own, elastic = without.mechanics.force_and_stiffness(
            without.start_step(state, elapsed=0.2), state.q, state.velocity, late.time
        )
        expected = share * force(late, Control())
        # rounding of elastic forces, which are far larger
        assert torch.allclose(found - own, expected, rtol=0, atol=1e-12 * own.abs().max().item())
        ((block, _),) = force.derivatives(late, Control())
        matrix = torch.zeros(2, model.n_dofs, model.n_dofs, dtype=torch.float64)
        for k, dofs in enumerate(force.blocks()[0].rows):
            matrix[:, dofs[:, None], dofs] -= share * block[:, k]
        free = model.unknowns.index
        difference = model.layout.pattern.to_dense(values) - without.layout.pattern.to_dense(elastic)
        assert torch.allclose(difference, matrix[:, free][:, :, free], rtol=0, atol=1e-12 * elastic.abs().max().item())
    # by a loop and by torch: rounding of a sum over springs
    torch.testing.assert_close(
        model.energies(state)["magnetic"], force.potential(state, Control()), rtol=1e-13, atol=0.0
    )


@pytest.mark.parametrize("kind", ["uniform", "gradient", "dipole"])
def test_rotation(kind):
    """Turn energy, force and matrix with robot, magnetisation and field."""
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    turn = turn * torch.linalg.det(turn)
    value, place, magnetisation = vec(0.3, -0.2, 0.5), vec(0.1, -0.05, 0.2), vec(3e4, 1e4, -2e4)
    slope = torch.tensor([[1.0, 2.0, 0.5], [2.0, -3.0, 0.1], [0.5, 0.1, 2.0]], dtype=torch.float64)

    def field(r):
        if kind == "uniform":
            return magnetics.Constant(r @ value)
        if kind == "gradient":
            return magnetics.Gradient(r @ value, r @ slope @ r.T, r @ place)
        return magnetics.Dipole(r @ (60 * value), r @ place)

    def robot(r, directors=None):
        builder = RobotBuilder()
        points = straight((0, 0, 0), (0.2, 0.05, 0), 6) @ r.T.numpy()
        section = torch.linspace(1e-3, 3e-3, 5, dtype=torch.float64)
        builder.add_rod(points, Circle(section), Material(1e6, 1000.0), directors=directors)
        force = magnetics.Magnetic(r @ magnetisation, field(r))
        builder.add_force(force)
        return builder.finalize(), force

    model, force = robot(torch.eye(3, dtype=torch.float64))
    _, turned_force = robot(turn, (model.directors @ turn.T).numpy())
    state = shaken(model)
    q = torch.cat([(state.positions @ turn.T).flatten(1), state.twist], dim=1)
    turned = state.replace(q=q, director=state.director @ turn.T, tangent=state.tangent @ turn.T)
    assert torch.allclose(turned_force.potential(turned, Control()), force.potential(state, Control()), rtol=1e-12)
    into = torch.block_diag(*[turn] * 6, torch.eye(5, dtype=torch.float64))
    expected = force(state, Control()) @ into.T
    assert torch.allclose(turned_force(turned, Control()), expected, rtol=0, atol=1e-12 * expected.abs().max().item())
    found, expected = _matrix(turned_force, turned), into @ _matrix(force, state) @ into.T
    assert torch.allclose(found, expected, rtol=0, atol=1e-12 * expected.abs().max().item())


def test_numbers_and_directions_of_edges_do_not_matter():
    """Get the same force under other numbers, with edges the other way round, and elsewhere in a uniform field."""
    model, force = coil(FIELDS["rotating"]())
    check_symmetry(force, model, shaken(model), rotation=None).raise_if_failed()


def _matrix(force, state):
    """Return dF/dq (B, n, n)."""
    ((blocks, _),) = force.derivatives(state, Control())
    matrix = state.q.new_zeros(state.batch, *state.q.shape[1:] * 2)
    for k, dofs in enumerate(force.blocks()[0].rows):
        matrix[:, dofs[:, None], dofs] += blocks[:, k]
    return matrix


def test_what_a_field_pushes_and_turns():
    """Push a robot by the sum of V grad(B)^T P, and turn it by V P x B: a uniform field turns only."""
    slope = torch.tensor([[1.0, 2.0, 0.5], [2.0, -3.0, 0.1], [0.5, 0.1, 2.0]], dtype=torch.float64)
    value, magnetisation = vec(0.3, -0.2, 0.5), vec(3e4, 1e4, -2e4)
    for gradient in (0 * slope, slope):
        model, force = coil(magnetics.Gradient(value, gradient), magnetisation)
        state = model.initial_state()  # where P is the magnetisation itself
        pushes = force(state, Control())[:, :18].unflatten(1, (-1, 3))
        volume = AREA * model.body.edge_length.sum()
        middles = 0.5 * (model.nodes[1:] + model.nodes[:-1])
        moment = AREA * model.body.edge_length[:, None] * magnetisation
        field = value + middles @ gradient.T
        expected = volume * gradient.T @ magnetisation
        scale = float(pushes.abs().max())
        assert torch.allclose(pushes.sum(1)[0], expected, rtol=0, atol=1e-12 * scale)
        about = torch.linalg.cross(model.nodes, pushes[0]).sum(0)
        edges = model.nodes[1:] - model.nodes[:-1]
        twisting = force(state, Control())[0, 18:, None] * edges / edges.norm(dim=1, keepdim=True)
        torque = torch.linalg.cross(moment, field).sum(0) + torch.linalg.cross(middles, moment @ gradient).sum(0)
        assert torch.allclose(about + twisting.sum(0), torque, rtol=0, atol=1e-12 * float(torque.abs().max()))


def test_planar_couple():
    """Turn an edge of the plane by A l0 B . J R M, as forces over its present length on its two nodes."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 2), Circle(2e-3), Material(1e6, 1000.0))
    force = magnetics.Magnetic((5e4, 0.0, 2e4), (0.3, 0.0, -0.4))
    builder.add_force(force)
    model = builder.finalize()
    angle, length = 0.7, 0.13
    end = (length * math.cos(angle), 0.0, length * math.sin(angle))
    state = model.initial_state(q=vec(0, 0, 0, *end, 0))
    turned = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]) @ [5e4, 2e4]
    couple = AREA * 0.1 * np.dot([0.3, -0.4], [-turned[1], turned[0]])
    push = couple / length * np.array([-math.sin(angle), 0.0, math.cos(angle)])
    found = force(state, Control())[0]
    assert np.allclose(found[3:6], push, rtol=1e-12) and np.allclose(found[:3], -push, rtol=1e-12)


@pytest.mark.parametrize(
    "integrator", ["euler", *(pytest.param(name, marks=pytest.mark.slow) for name in INTEGRATORS if name != "euler")]
)
def test_a_row_is_the_robot_alone(integrator):
    """Match each robot, with its own field, magnetisation and section, stepped alone; in parts of a batch, too."""
    rule, steps = INTEGRATORS[integrator], 1 if integrator == "static" else 3
    generator = torch.Generator().manual_seed(0)
    # statics: weak enough for one equilibrium
    amplitude = vec(0.1, 0.2, 0.3)[:, None] * (0.1 if integrator == "static" else 1.0)
    magnetisation = torch.randn(3, 5, 3, dtype=torch.float64, generator=generator) * 2e4

    def run(rows, chunk=None):
        field = magnetics.Rotating(amplitude[rows], 2.0)
        youngs = vec(1e6, 2e6, 3e6)[rows, None]
        model, _ = coil(field, magnetisation[rows], youngs=youngs)
        state, step = model.initial_state(batch=len(magnetisation[rows])), type(rule)(**_options(rule), chunk=chunk)
        for _ in range(steps):
            state, _ = step.step(model, state, throw=True)
        return state.q

    whole = run(slice(None))
    assert (whole - whole[:1]).abs().max() > 1e-4  # they differ
    for k in range(3):
        assert (run(slice(k, k + 1)) - whole[k]).abs().max() < 1e-9  # solved to 1e-8 N
    assert (run(slice(None), chunk=2) - whole).abs().max() < 1e-9


def _options(rule):
    return {"load_steps": rule.load_steps} if isinstance(rule, Static) else {"dt": rule.dt}


def test_a_row_that_fails_leaves_the_others_alone():
    """Report a robot whose field is NaN at some time, and step the others."""

    def field(time):
        return torch.stack([torch.where(time > 0.5, torch.nan, 0 * time + 0.1), 0 * time, 0 * time + 0.2], dim=-1)

    model, _ = coil(field)
    good, _ = coil((0.1, 0.0, 0.2))
    state = model.initial_state(batch=3)
    state = state.replace(time=vec(0.0, 0.6, 0.0))
    rule = ImplicitEuler(5e-3, force_tolerance=1e-12, relative_tolerance=0)
    after, info = rule.step(model, state)
    assert info.converged.tolist() == [True, False, True]
    expected, _ = rule.step(good, good.initial_state(batch=3))
    assert (after.q[[0, 2]] - expected.q[[0, 2]]).abs().max() < 1e-9
    assert torch.equal(after.q[1], state.q[1])


def test_the_field_is_that_of_the_end_of_a_step():
    """Sample it at the end of an Euler step, at the middle of a midpoint step."""
    for rule, share in ((ImplicitEuler(1e-2), 1.0), (ImplicitMidpoint(1e-2), 0.5), (Newmark(1e-2), 1.0)):
        seen = []

        def field(time, seen=seen):
            seen.append(time.clone())
            return (0.1, 0.0, 0.2)

        model, _ = coil(field)
        state = model.initial_state().replace(time=vec(3.0))
        seen.clear()
        rule.step(model, state)
        assert all(torch.allclose(t, vec(3.0 + share * 1e-2), rtol=1e-15) for t in seen) and seen


# ---- against statics ---------------------------------------------------------------------------------------------


def _clamped_rod(nodes, magnetisation, field, youngs=1e6, length=0.2, radius=2e-3):
    """Return a rod along x whose clamped edge has its middle at the origin: there the frame is held."""
    dx = length / (nodes - 1.5)
    builder = RobotBuilder()
    builder.add_rod(straight((-0.5 * dx, 0, 0), (length, 0, 0), nodes), Circle(radius), Material(youngs, 1000.0, 0.4))
    builder.clamp(nodes=[0, 1])
    builder.add_force(magnetics.Magnetic(magnetisation, field))
    model = builder.finalize(compile=False)
    state, info = Static(force_tolerance=1e-12, relative_tolerance=0).step(model, model.initial_state(), throw=True)
    return model, state


def _shot(stiffness, couple, angle, length=0.2):
    """Return theta(s) of stiffness theta'' + couple sin(angle - theta) = 0, theta(0) = theta'(length) = 0."""
    s = np.linspace(0, length, 201)

    def rates(s, y):
        return [y[1], -couple / stiffness * np.sin(angle - y[0])]

    found = solve_bvp(rates, lambda a, b: [a[0], b[1]], s, np.zeros((2, len(s))), tol=1e-10, max_nodes=100_000)
    assert found.success
    return found.sol


def test_bending_across_the_rod():
    """Bend a rod magnetised along its axis in a field across as beam theory says, with an error of second order."""
    area, inertia = math.pi * 2e-3**2, math.pi * 2e-3**4 / 4
    shape = _shot(1e6 * inertia, 1e4 * 0.002 * area, math.pi / 2)
    s = np.linspace(0, 0.2, 20001)
    expected = np.trapezoid(np.sin(shape(s)[0]), s)
    assert 0.05 < shape(0.2)[0][()] < 1.0
    errors = []
    for nodes in (11, 21, 41):
        _, state = _clamped_rod(nodes, (1e4, 0.0, 0.0), (0.0, 0.0, 0.002))
        tip = state.positions[0, -1]
        assert abs(float(tip[1])) < 1e-12
        errors.append(abs(float(tip[2]) / expected - 1))
    assert errors[-1] < 5e-4  # 2.4e-4 at 40 edges
    assert all(3.0 < a / b < 5.0 for a, b in zip(errors, errors[1:], strict=False))


def test_twisting_along_the_rod():
    """Twist a rod magnetised across its axis as the theory of torsion says, with an error of second order."""
    area, polar = math.pi * 2e-3**2, math.pi * 2e-3**4 / 2
    shear = 1e6 / 2.8
    shape = _shot(shear * polar, 1e4 * 0.002 * area, 2.0)
    errors = []
    for nodes in (11, 21, 41):
        field = (0.0, 0.002 * math.cos(2.0), 0.002 * math.sin(2.0))
        model, state = _clamped_rod(nodes, (0.0, 1e4, 0.0), field)
        assert float((state.positions - model.nodes).abs().max()) < 1e-9  # it twists, and stays straight
        middle = 0.2 - 0.5 * 0.2 / (nodes - 1.5)
        errors.append(abs(float(state.twist[0, -1]) / float(shape(middle)[0]) - 1))
    assert errors[-1] < 2e-5  # 9e-6 at 40 edges
    assert all(3.0 < a / b < 5.0 for a, b in zip(errors, errors[1:], strict=False))


class Narrow(torch.nn.Module):
    """A field that has two components."""

    def forward(self, position, time):
        """Return two of them."""
        return position[..., :2]


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_wrong_numbers_are_refused():
    """Name what is wrong."""
    with pytest.raises(InputError, match="expected one row, or one of each of the 5 rod edges, got 4"):
        coil((0.0, 0.0, 1.0), torch.zeros(4, 3))
    with pytest.raises(InputError, match=r"Magnetic.magnetisation: expected shape \(3,\)"):
        magnetics.Magnetic((1.0, 2.0), (0.0, 0.0, 1.0))
    with pytest.raises(InputError, match="Magnetic.magnetisation: expected finite"):
        magnetics.Magnetic((math.nan, 0.0, 0.0), (0.0, 0.0, 1.0))
    with pytest.raises(InputError, match="expected finite"):
        magnetics.Magnetic((1.0, 0.0, 0.0), (0.0, math.inf, 1.0))
    with pytest.raises(InputError, match=r"function of time has to return \(3,\)"):
        coil(lambda time: time)[0].initial_state()
    with pytest.raises(InputError, match=r"Narrow has to return \(B, E, 3\)"):
        coil(Narrow())
    sheet = meshes.rectangle(0.1, 0.1, 0.05)
    builder = RobotBuilder()
    builder.add_shell(sheet.nodes, sheet.triangles, 1e-3, Material(1e6, 1000.0, 0.3))
    builder.add_force(magnetics.Magnetic((1.0, 0.0, 0.0), (0.0, 0.0, 1.0)))
    with pytest.raises(InputError, match="of shells take MagneticShells"):
        builder.finalize()


def test_learned_fields_are_looked_at():
    """Refuse a module that is no function of the state when the model is built; say which terms stay eager."""

    class Noise(torch.nn.Module):
        def forward(self, position, time):
            return torch.randn_like(position)

    with pytest.raises(InputError, match="two evaluations at the same state differ"):
        coil(Noise())
    model, _ = coil(Swirl())
    assert model.mechanics.uncompiled_terms() == ["magnetic"] and "magnetic" in model.mechanics.why_eager()
    assert coil((0.0, 0.0, 1.0))[0].mechanics.uncompiled_terms() == []


def test_what_is_recorded():
    """Take CUDA graphs and tapes, also where a field is a function of time, which is called before each step."""
    assert why_steps_unrecorded(coil((0.0, 0.0, 1.0))[0]) is None
    assert why_steps_unrecorded(coil((0.0, 0.0, 1.0))[0].to("meta")) is None
    timed = magnetics.Timed(lambda time: torch.stack([time, time, time], 1))
    assert why_steps_unrecorded(coil(timed)[0]) is None


@pytest.mark.parametrize(
    "integrator",
    [
        ImplicitEuler(2e-3),
        ImplicitMidpoint(2e-3),
        BDF2(2e-3),
        Newmark(2e-3),
        ImplicitEuler(2e-3, max_iterations=2, max_substeps=32),
    ],
    ids=["euler", "midpoint", "bdf2", "newmark", "parts"],
)
def test_functions_of_time_are_evaluated_where_forces_are(integrator):
    """Step in a field that a function gives as in the one that turns, in recorded steps, too, and in parts of steps."""

    def turning(time):
        angle = 20.0 * time
        return 0.01 * torch.stack([torch.cos(angle), 0 * time, torch.sin(angle)], 1)

    ends = []
    for field in (turning, magnetics.Rotating(0.01, 20.0 / (2 * math.pi))):
        model, _ = coil(field)
        run = rollout(model, model.initial_state(), integrator, 20, every=20)
        assert bool((run.status == 0).all())
        ends.append(run.positions[-1])
    assert (ends[1] - model.nodes).abs().max() > 1e-3  # it moves
    assert torch.allclose(*ends, rtol=0, atol=1e-10)  # to what steps leave of their residuals


def test_functions_of_time_pass_gradients_by_numbers_in_a_list_on():
    """Differentiate by a field's size that a function of time gives beside plain numbers."""
    size = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    given = [lambda time: (0.0, 0.0, size), lambda time: torch.stack([0 * size, 0 * size, size])]
    models = [coil(field)[0] for field in given]
    tips = [ImplicitEuler(1e-3).step(model, model.initial_state())[0].positions[0, -1].sum() for model in models]
    gradients = [torch.autograd.grad(tip, size)[0] for tip in tips]
    assert gradients[0] == gradients[1] != 0


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (lambda time: 0.01 * torch.rand(3), "Magnetic: two evaluations at the same state differ"),
        (lambda time: (time.add_(1.0), torch.zeros(3))[1], "Magnetic: changes State.time in place"),
        (magnetics.Rotating, r"got the class Rotating itself; make one of it, Rotating\(...\)"),
        (lambda x, time: x, "Magnetic: cannot be evaluated for 3 robots.* missing 1 required positional argument"),
        (lambda time: None, r"function of time has to return \(3,\) or .* got None"),
        (lambda time: "a", r"function of time has to return \(3,\) or .* got 'a'"),
        (
            lambda time: torch.ones(8, 1) * time[:, None],
            r"fields of single robots are a Table\(times, values \(T, B, 3",
        ),
    ],
    ids=["random", "in place", "class", "of positions", "none", "text", "of eight robots"],
)
def test_functions_of_time_are_looked_at(field, said):
    """Refuse functions that are none of time alone when the model is built, in words."""
    with pytest.raises(InputError, match=said):
        coil(field)


def test_functions_of_time_that_are_lost_later_are_named():
    """Name the force of a field that is not finite from some time on."""
    model, _ = coil(lambda time: torch.where(time > 2.5e-3, torch.nan, 0.1)[:, None].expand(-1, 3))
    with pytest.warns(RuntimeWarning) as told:
        rollout(model, model.initial_state(), ImplicitEuler(1e-3), 4)
    assert any("step from t = 0.002 s: Magnetic: its force on node" in str(one.message) for one in told)
