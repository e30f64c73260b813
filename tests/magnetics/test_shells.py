"""Magnetised shells: derivatives, frames, equilibria of strips, and what is refused."""

import pytest
import torch

from tests.magnetics.robots import FIELDS, INTEGRATORS, UNIFORM, check_derivatives, shaken, vec
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    Static,
    forces,
    magnetics,
    meshes,
    rollout,
    trainable,
    unroll,
)
from torchdismech.testing import check_symmetry

MAGNETISATION = (3e4, 1e4, -2e4)
NODES = [[0.0, 0.0, 0.0], [0.05, 0.0, 0.0], [0.0, 0.04, 0.005], [0.06, 0.05, -0.005], [0.1, 0.01, 0.01]]
FACES = [[0, 1, 2], [1, 3, 2], [1, 4, 3]]


def sheet(field, magnetisation=MAGNETISATION, nodes=NODES, faces=FACES, clamped=(0, 1), forces=(), **options):
    """Return a model of a few triangles that do not lie in a plane, and its magnetic force."""
    builder = RobotBuilder()
    thickness = options.pop("thickness", 1e-3)
    builder.add_shell(nodes, faces, thickness, Material(1e6, 1000.0), options.pop("bending", "hinge"))
    if clamped:
        builder.clamp(nodes=list(clamped))
    force = magnetics.MagneticShells(magnetisation, field)
    for added in (force, *forces):
        builder.add_force(added)
    return builder.finalize(**options), force


def far(model, batch=2, seed=0):
    """Return states that are far from rest: sides change by a third, planes turn by half a radian."""
    return shaken(model, batch, size=0.012, seed=seed)


@pytest.mark.parametrize("name", FIELDS)
def test_derivatives(name):
    """Meet central differences, symmetric, in every kind of field; the potential's gradient is minus the force."""
    model, force = sheet(FIELDS[name]())
    check_derivatives(force, model, far(model))


@pytest.mark.parametrize("name", UNIFORM)
def test_second_derivatives_are_those_of_autograd(name):
    """Get the matrix that autograd gets of the force, to rounding."""
    model, force = sheet(FIELDS[name]())
    state = far(model, seed=3)

    def of(q):
        return force(state.replace(q=q), Control())

    expected = torch.autograd.functional.jacobian(of, state.q)
    expected = torch.stack([expected[k, :, k] for k in range(2)])
    ((blocks, _),) = force.derivatives(state, Control())
    found = torch.zeros_like(expected)
    for k, dofs in enumerate(force.blocks()[0].rows):
        found[:, dofs[:, None], dofs] += blocks[:, k]
    # 1e-12 of the largest entry: rounding of some hundred products
    assert torch.allclose(found, expected, rtol=0, atol=1e-12 * expected.abs().max().item())


@pytest.mark.parametrize("kind", ["uniform", "gradient", "dipole"])
def test_rotation(kind):
    """Turn energy and force with robot, magnetisation and field."""
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    turn = turn * torch.linalg.det(turn)
    value, place = vec(0.3, -0.2, 0.5), vec(0.1, -0.05, 0.2)
    slope = torch.tensor([[1.0, 2.0, 0.5], [2.0, -3.0, 0.1], [0.5, 0.1, 2.0]], dtype=torch.float64)

    def robot(r):
        if kind == "uniform":
            field = magnetics.Constant(r @ value)
        elif kind == "gradient":
            field = magnetics.Gradient(r @ value, r @ slope @ r.T, r @ place)
        else:
            field = magnetics.Dipole(r @ (60 * value), r @ place)
        return sheet(field, r @ vec(*MAGNETISATION), (vec(*NODES) @ r.T).numpy())

    model, force = robot(torch.eye(3, dtype=torch.float64))
    turned_model, turned_force = robot(turn)
    state = far(model)
    turned = turned_model.initial_state(q=(state.positions @ turn.T).flatten(1)).replace(time=state.time)
    assert torch.allclose(turned_force.potential(turned, Control()), force.potential(state, Control()), rtol=1e-12)
    expected = force(state, Control()) @ torch.block_diag(*[turn] * 5).T
    # rounding
    assert torch.allclose(turned_force(turned, Control()), expected, rtol=0, atol=1e-12 * expected.abs().max().item())


def test_numbers_of_nodes_do_not_matter():
    """Get the same force under other numbers and elsewhere: no side of a triangle is before the others."""
    model, force = sheet(FIELDS["rotating"]())
    check_symmetry(force, model, far(model), rotation=None).raise_if_failed()
    state, expected = far(model), force(far(model), Control())
    for faces in ([[1, 2, 0], [3, 2, 1], [4, 3, 1]], [[2, 0, 1], [2, 1, 3], [3, 1, 4]]):
        _, other = sheet(FIELDS["rotating"](), faces=faces)
        assert torch.allclose(other(state, Control()), expected, rtol=0, atol=1e-12 * expected.abs().max().item())


def test_stretching_leaves_the_magnetisation():
    """Stretch and shear a flat sheet without turning it: its energy stays, as of a rotation alone."""
    flat = [[x, y, 0.0] for x, y, _ in NODES]
    model, force = sheet((0.3, -0.2, 0.5), nodes=flat, clamped=())
    rest = model.initial_state()
    stretch = torch.tensor([[1.4, 0.2, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    pulled = rest.replace(q=(rest.positions @ stretch).flatten(1))
    assert torch.allclose(force.potential(pulled, Control()), force.potential(rest, Control()), rtol=1e-14)
    volume = 1e-3 * float(model.body.face_area.sum())
    expected = -volume * float(vec(*MAGNETISATION) @ vec(0.3, -0.2, 0.5))
    assert float(force.potential(rest, Control())) == pytest.approx(expected, rel=1e-13)


def test_uniform_fields_turn_and_do_not_push():
    """Push nothing in a uniform field, and turn by the sum of V P x B; in a gradient push by V grad(B)^T P."""
    value, slope = vec(0.3, -0.2, 0.5), torch.tensor([[1.0, 2, 0.5], [2, -3, 0.1], [0.5, 0.1, 2]], dtype=torch.float64)
    for field, push in ((magnetics.Constant(value), None), (magnetics.Gradient(value, slope), slope)):
        model, force = sheet(field, clamped=())
        state = model.initial_state()
        found, moment = force(state, Control())[0].view(-1, 3), vec(*MAGNETISATION)
        volume = 1e-3 * float(model.body.face_area.sum())
        expected = torch.zeros(3, dtype=torch.float64) if push is None else volume * push.T @ moment
        # 1e-12 of the largest: rounding
        assert torch.allclose(found.sum(0), expected, rtol=0, atol=1e-12 * found.abs().max().item())
        if push is None:
            torque = torch.linalg.cross(state.positions[0], found).sum(0)
            assert torch.allclose(torque, volume * torch.linalg.cross(moment, value), rtol=1e-11)


@pytest.mark.parametrize(("spacing", "bound"), [(0.01, 0.03), (0.005, 0.01)])
def test_a_strip_bends_as_beams_do(spacing, bound):
    """Bend a strip along its magnetisation in a field across: a tip of A M B L^3 / (3 EI), closer on finer meshes."""
    length, width, thickness, youngs = 0.1, 0.02, 5e-4, 1e6
    mesh = meshes.rectangle(length, width, spacing)
    builder = RobotBuilder()
    builder.add_shell(
        mesh.nodes, mesh.triangles, thickness, Material(youngs, 1000.0, 0.0), "midedge", membrane="continuum"
    )
    builder.clamp(box=([-1e-6, -1, -1], [1e-6, 1, 1]))
    builder.add_force(magnetics.MagneticShells((1e3, 0.0, 0.0), (0.0, 0.0, 1e-5)))
    model = builder.finalize()
    state, _ = Static(force_tolerance=1e-14).step(model, model.initial_state(), throw=True)
    end = mesh.nodes[:, 0] > length - 1e-6
    tip = float(state.positions[0, end, 2].mean())
    expected = width * thickness * 1e3 * 1e-5 * length**3 / (3 * youngs * width * thickness**3 / 12)
    assert tip == pytest.approx(expected, rel=bound) and expected < 0.02 * length  # small deflections


@pytest.mark.parametrize("integrator", INTEGRATORS.values(), ids=INTEGRATORS)
@pytest.mark.parametrize("name", ["rotating", "dipole"])
def test_batches_are_honest(integrator, name):
    """Step robots of other magnetisations and thickness together as each alone."""
    each = torch.tensor([[[1e4, 0, 2e4]], [[0, 2e4, -1e4]], [[-1e4, 1e4, 0]]], dtype=torch.float64)
    thickness = torch.tensor([[1e-3], [2e-3], [1.5e-3]], dtype=torch.float64)

    def run(rows):
        model, _ = sheet(FIELDS[name](), each[rows], thickness=thickness[rows], bending="midedge", solver="banded")
        state = model.initial_state()
        for _ in range(2):
            state, info = integrator.step(model, state, throw=True)
        return state.q

    together = run(slice(0, 3))
    assert float((together[0] - together[1]).abs().max()) > 1e-7
    for robot in range(3):
        # 1e-10 m, rad: Newton's method stops at 1e-8 N, and bits depend on the number of robots
        torch.testing.assert_close(together[robot], run(slice(robot, robot + 1))[0], rtol=0, atol=1e-10)


def test_gradients():
    """Differentiate ten steps by field, magnetisation and amplitude: as central differences."""
    amplitude = torch.tensor([[0.05]], dtype=torch.float64)
    field = magnetics.Rotating(amplitude, 2.0)
    model, force = sheet(field, vec(1e4, 0, 1e4).expand(1, 3, 3))

    def loss(scale, moment):
        values = {"MagneticShells.field.amplitude": scale, "MagneticShells.magnetisation": moment}
        state = model.initial_state(1)
        run = unroll(model, state, ImplicitEuler(5e-3), 10, schedule=lambda time, model: Control(values=values))
        return run.positions[-1, 0, 4].pow(2).sum()

    at = [amplitude.clone().requires_grad_(), force.magnetisation.detach().clone().requires_grad_()]
    gradients = torch.autograd.grad(loss(*at), at)
    direction = [torch.ones_like(amplitude), torch.linspace(-1, 1, 9, dtype=torch.float64).view(1, 3, 3)]
    for k, step in enumerate((1e-5, 1.0)):
        ends = []
        for sign in (1, -1):
            moved = [
                x.detach() + (sign * step * d if j == k else 0)
                for j, (x, d) in enumerate(zip(at, direction, strict=True))
            ]
            with torch.no_grad():
                ends.append(float(loss(*moved)))
        found = float((gradients[k] * direction[k]).sum())
        # Newton's method leaves 1e-8 N of some mN
        assert found == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)


def test_compiled_steps_agree():
    """Compile the term with the elastic ones: up to rounding the same motion."""
    runs = []
    for compile in (False, True):
        model, _ = sheet(FIELDS["dipole"](), compile=compile)
        runs.append(rollout(model, model.initial_state(1), ImplicitEuler(5e-3), 3).positions)
    # rounding in another order, and Newton's tolerance
    torch.testing.assert_close(*runs, rtol=0, atol=1e-10)


def test_rods_and_shells_in_one_field():
    """Magnetise both of a robot, in one field; reports tell their energies apart, constants have names."""
    builder = RobotBuilder()
    builder.add_shell(NODES, FACES, 1e-3, Material(1e6, 1000.0))
    builder.add_rod([NODES[4], [0.15, 0.02, 0.02], [0.2, 0.02, 0.02]], Circle(1e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    field = magnetics.Dipole((0.0, 0.0, 20.0), (0.1, 0.0, -0.2))
    for force in (magnetics.Magnetic(MAGNETISATION, field), magnetics.MagneticShells(MAGNETISATION, field)):
        builder.add_force(force)
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    model = builder.finalize()
    state, _ = ImplicitEuler(5e-3).step(model, model.initial_state(1), throw=True)
    energies = model.energies(state)
    assert float(energies["magnetic"]) != 0 and float(energies["magnetic_shells"]) != 0
    assert {"Magnetic.magnetisation", "MagneticShells.magnetisation"} <= set(trainable.constants(model))


@pytest.mark.parametrize(
    ("magnetisation", "problem"),
    [
        ((1.0, 2.0), r"MagneticShells.magnetisation: expected shape \(3,\), \(F, 3\), \(B, 1, 3\) or \(B, F, 3\)"),
        (torch.ones(2, 3), r"MagneticShells.magnetisation: expected one row, or one of each of the 3 triangles, got 2"),
        ((float("nan"), 0.0, 0.0), "finite"),
    ],
)
def test_wrong_magnetisations_are_refused(magnetisation, problem):
    """Name what does not fit the triangles."""
    with pytest.raises(InputError, match=problem):
        sheet((0.0, 0.0, 1.0), magnetisation)


def test_robots_without_shells_are_refused():
    """Say which force is for rods."""
    builder = RobotBuilder()
    builder.add_rod(NODES[:3], Circle(1e-3), Material(1e6, 1000.0))
    builder.add_force(magnetics.MagneticShells(MAGNETISATION, (0.0, 0.0, 1.0)))
    with pytest.raises(InputError, match="MagneticShells: acts on triangles, and the robot has none"):
        builder.finalize()
