"""Kinematics and dynamics of chains, against a reference, closed forms and another library."""

import math

import numpy as np
import pytest
import torch

from tests.rigid.chains import cable, random_motion, reference, tensor
from torchdismech import Control
from torchdismech.geometry.quaternions import rotation_of_vector
from torchdismech.rigid import RigidChain, compiled, planar, spatial

CASES = [("planar3", 3), ("planar5", 5), ("planar10", 10), ("planar20", 20), ("spatial3", 3), ("spatial5", 5)]
# relative to the largest number: the references were made in double precision, 1e-12 or better
SAME = 1e-9


def assert_same(ours, theirs, name):
    """Compare relative to the largest number."""
    theirs = tensor(theirs)
    assert float((ours - theirs).abs().max()) <= SAME * float(theirs.abs().max()), name


@pytest.mark.parametrize("axes", ["z", "xyz"])
def test_what_is_given_is_kept_under_its_name(axes):
    """Have constants of the arguments' names, those about axes with the axis; so a chain can be built of another's."""
    chain = cable(3, space=len(axes) == 3)
    given = {name: getattr(chain, name) for name in ("length", "mass", "centre", "base", "gravity")}
    for name in ("inertia", "stiffness", "damping"):
        about = [getattr(chain, f"{name}_{axis}") for axis in axes]
        given[name] = about if len(axes) == 3 else about[0]
    again = RigidChain(**given, space=chain.space)
    assert all(torch.equal(getattr(again, name), getattr(chain, name)) for name in chain.per_robot)
    for name in chain.per_robot:  # each chain has numbers of its own
        getattr(chain, name).add_(1.0)
        assert not bool((getattr(again, name) == getattr(chain, name)).any())


@pytest.mark.parametrize(("name", "segments"), CASES)
def test_dynamics_are_those_of_the_reference(name, segments, factors):
    """Find its inertia, torques, accelerations, energies, and the motion of the tip, at six random states."""
    data = {key.partition("/")[2]: value for key, value in reference("rfem_oracles").items() if key.startswith(name)}
    chain = cable(segments, space=name.startswith("spatial"))
    dynamics = chain.dynamics()
    assert_same(dynamics.stiffness[:, 0, 0], data["K"], "K")
    assert_same(dynamics.damping[:, 0, 0], data["D"], "D")
    assert_same(chain.mass, data["mass"][data["mass"] > 0], "mass")
    q, velocity, torque = (tensor(data[key]) for key in ("q", "dq", "tau"))
    zero = torch.zeros_like(q)
    assert_same(chain.mass_matrix(q), data["M"], "M")
    assert_same(chain.inverse_dynamics(q, velocity, zero), data["nle"], "nle")
    assert_same(chain.inverse_dynamics(q, zero, zero), data["g"], "g")
    state = chain.initial_state(q=q, velocity=velocity)
    assert_same(state.positions[:, -1], data["p_ee"], "p_ee")
    assert_same(torch.cat([state.node_velocities[:, -1], chain.tip_spin(q, velocity)], 1), data["v_ee"], "v_ee")
    energies = chain.energies(state)
    assert_same(energies["kinetic"], data["kin"], "kinetic")
    assert_same(energies["gravity"], data["pot"], "potential")
    loose = cable(segments, space=name.startswith("spatial"), springs=False)
    assert_same(loose.forward_dynamics(state, Control(force=torque)), data["ddq"], "ddq")
    springs = dynamics.springs(q.t()[:, None], velocity.t()[:, None])[:, 0].t()
    assert_same(chain.forward_dynamics(state, Control(force=torque + springs)), data["ddq"], "ddq")


@pytest.mark.parametrize(("name", "segments"), CASES)
def test_derivatives_are_those_of_the_reference(name, segments):
    """Find its derivatives of accelerations, and the Jacobian of the tip."""
    data = {key.partition("/")[2]: value for key, value in reference("rfem_oracles").items() if key.startswith(name)}
    chain = cable(segments, space=name.startswith("spatial"), springs=False)
    q, velocity, torque = (tensor(data[key]) for key in ("q", "dq", "tau"))
    q.requires_grad_()
    velocity.requires_grad_()
    acceleration = chain.forward_dynamics(chain.initial_state(q=q, velocity=velocity), Control(force=torque))
    by = [torch.autograd.grad(row.sum(), (q, velocity), retain_graph=True) for row in acceleration.unbind(1)]
    assert_same(torch.stack([g for g, _ in by], 1), data["ddq_dq"], "ddq_dq")
    assert_same(torch.stack([g for _, g in by], 1), data["ddq_dv"], "ddq_dv")
    for k in range(chain.n_dofs):  # velocities of the tip under unit rates are the columns of its Jacobian
        unit = torch.zeros_like(velocity).index_fill_(1, torch.tensor(k), 1.0)
        state = chain.initial_state(q=q.detach(), velocity=unit)
        column = torch.cat([state.node_velocities[:, -1], chain.tip_spin(state.q, unit)], 1)
        assert_same(column, data["J_ee"][:, :, k], "J_ee")


def closed_form(lengths, masses, centres, inertias, q, velocity, gravity=9.81):
    """Return inertia (J, J), Coriolis and gravity torques (J,) of a chain in the plane, from absolute angles."""
    count = len(lengths)
    sums = np.tril(np.ones((count, count)))
    arm = np.array(
        [[lengths[i] if i < k else centres[k] if i == k else 0.0 for i in range(count)] for k in range(count)]
    )
    a = (arm * masses[:, None]).T @ arm + np.diag(inertias)
    angle, rate = sums @ q, sums @ velocity
    between = angle[:, None] - angle
    inertia = sums.T @ (a * np.cos(between)) @ sums
    coriolis = sums.T @ ((a * np.sin(between)) @ rate**2)
    return inertia, coriolis, sums.T @ (gravity * (arm.T @ masses) * np.cos(angle))


@pytest.mark.parametrize("segments", [1, 4, 9])
def test_planar_chain_has_its_closed_form(segments):
    """Agree with the matrix in absolute angles, for bodies of unlike size, each robot with its own."""
    generator = np.random.default_rng(segments)
    robots = 3
    diameter = generator.uniform(4e-3, 8e-3, (robots, segments + 1))
    chain = cable(segments, diameter=diameter, density=generator.uniform(1e3, 3e3, segments + 1))
    q, velocity, _ = random_motion(chain, robots, size=1.0)
    zero = torch.zeros_like(q)
    inertia, torque = chain.mass_matrix(q), chain.inverse_dynamics(q, velocity, zero)
    for k in range(robots):
        values = [
            getattr(chain, name).expand(robots, -1)[k].numpy() for name in ("length", "mass", "centre", "inertia_z")
        ]
        m, coriolis, gravity = closed_form(*values, q[k].numpy(), velocity[k].numpy())
        # rounding alone: both sum some tens of terms
        np.testing.assert_allclose(inertia[k], m, rtol=0, atol=1e-14 * np.abs(m).max())
        np.testing.assert_allclose(torque[k], coriolis + gravity, rtol=0, atol=1e-13 * np.abs(coriolis + gravity).max())


def without_compiled_code(monkeypatch):
    """Let chains find torques and factors by torch, as on a machine without a C++ compiler and on a GPU."""
    for module in (planar, spatial):
        monkeypatch.setattr(module, "serves", lambda like: False)


@pytest.fixture(params=["compiled code", "torch"])
def factors(request, monkeypatch):
    """Find factors by compiled code and by torch, as machines without a C++ compiler and GPUs do."""
    if request.param == "torch":
        without_compiled_code(monkeypatch)
    elif not compiled.serves(torch.zeros(1, dtype=torch.float64)):
        pytest.skip("no C++ compiler")


@pytest.mark.parametrize("space", [False, True])
def test_factor_solves_with_springs_and_dampers(space, factors):
    """Solve with inertia plus a diagonal, real and complex, as the steps of integrators do."""
    chain = cable(4, space)
    q, right, other = random_motion(chain, 3)
    inertia = chain.mass_matrix(q)
    part = chain.dynamics().chain
    at, column = q.t().contiguous()[:, None], right.t().contiguous()[:, None]
    diagonal = 0.1 * other.t().contiguous()[:, None].abs()
    for values in (diagonal, diagonal * (1 + 2j), torch.zeros_like(diagonal)):
        found = part.at(at).factor(values).solve(column.to(values.dtype))[:, 0].t()
        matrix = inertia + torch.diag_embed(values[:, 0].t())
        back = (matrix @ found[..., None])[..., 0]
        # the inertia's condition number is up to 1e8 in space, where bodies turn about their own axis
        assert float((back - right).abs().max()) < 1e-8 * float(right.abs().max())
    bare = part.at(at).factor().solve(column)
    with_zeros = part.at(at).factor(torch.zeros_like(at)).solve(column)
    assert float((bare - with_zeros).abs().max()) < 1e-8 * float(bare.abs().max())


@pytest.mark.parametrize("space", [False, True])
@pytest.mark.parametrize("robots", [1, 7, 65])
def test_compiled_code_finds_what_torch_finds(space, robots, monkeypatch):
    """Find torques and factor for batches that fill no vector, by two threads, with two diagonals, shared, none."""
    if not compiled.serves(torch.zeros(1, dtype=torch.float64)):
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    chain = cable(3, space, diameter=[4e-3, 6e-3, 5e-3, 3e-3])
    q, right, other = (x.t().contiguous()[:, None] for x in random_motion(chain, robots))
    posture = chain.dynamics().chain.at(q.repeat(1, 2, 1))
    motion = [torch.cat([right, other], 1), torch.cat([other, right], 1)]
    with torch.no_grad():
        torque = posture.torque(*motion)
    expected = posture.torque(*motion)  # in torch: autograd may record it
    assert float((torque - expected).abs().max()) < 1e-13 * float(expected.abs().max())  # rounding
    posture = chain.dynamics().chain.at(q)
    two = torch.cat([other.abs(), 0.5 * other.abs()], 1)
    right = torch.cat([right, other], 1)
    for diagonal in (two, two * (1 + 3j), two[..., :1], 1j * two[..., :1], None):
        with_parts = right if diagonal is not None else right[:, :1]
        with_parts = with_parts if diagonal is None else with_parts.to(diagonal.dtype)
        found = posture.factor(diagonal).solve(with_parts)
        with monkeypatch.context() as patch:
            without_compiled_code(patch)
            expected = posture.factor(diagonal).solve(with_parts)
        # rounding, times the condition of the inertia, which is large where round bodies turn about their own axis
        assert float((found - expected).abs().max()) < 1e-10 * float(expected.abs().max())


def test_cylinder_has_the_formulas_of_the_paper():
    """Divide into half, whole, .., half segments; mass, inertia, springs and dampers in closed form."""
    chain = cable(4, space=True)
    d, step, rho, youngs, shear, eta = 6e-3, 0.3, 2710.0, 7e10 / 3, 2.7e10 / 3, 1e9
    lengths = step * torch.tensor([0.5, 1, 1, 1, 0.5], dtype=torch.float64)
    mass = rho * math.pi * d**2 * lengths / 4
    expected = {
        "length": lengths,
        "mass": mass,
        "centre": lengths / 2,
        "inertia_x": mass * d**2 / 8,
        "inertia_y": mass * (3 * d**2 + 4 * lengths**2) / 48,
        "inertia_z": mass * (3 * d**2 + 4 * lengths**2) / 48,
        "stiffness_x": shear * math.pi * d**4 / (32 * step),
        "stiffness_y": youngs * math.pi * d**4 / (64 * step),
        "stiffness_z": youngs * math.pi * d**4 / (64 * step),
        "damping_x": eta * math.pi * d**4 / (32 * step),
        "damping_z": eta * math.pi * d**4 / (64 * step),
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(chain, name), tensor(value).expand_as(getattr(chain, name)))


def test_springs_between_unlike_elements_are_in_series():
    """Add up the angles of half a segment of either; like elements have the formula of one section."""
    chain = cable(2, diameter=[4e-3, 8e-3, 8e-3])
    rigidity = 7e10 / 3 * math.pi * tensor([4e-3, 8e-3, 8e-3]) ** 4 / 64
    half = 0.3
    expected = torch.stack([1 / (half / rigidity[0] + half / rigidity[1]), rigidity[1] / (2 * half)])
    torch.testing.assert_close(chain.stiffness_z, expected)
    assert float(cable(2, viscosity=[0.0, 0.0, 0.0]).damping_z.abs().max()) == 0


def test_a_chain_in_space_that_bends_in_the_plane_is_the_chain_in_the_plane():
    """Give the joints about z the same motion; the others stay at rest."""
    flat, space = cable(3), cable(3, space=True)
    q, velocity, _ = random_motion(flat, 2)
    wide_q, wide_velocity = torch.zeros(2, 10, dtype=torch.float64), torch.zeros(2, 10, dtype=torch.float64)
    about_z = [0, 1, 4, 7]
    wide_q[:, about_z], wide_velocity[:, about_z] = q, velocity
    in_plane, in_space = (
        flat.initial_state(q=q, velocity=velocity),
        space.initial_state(q=wide_q, velocity=wide_velocity),
    )
    torch.testing.assert_close(in_space.positions, in_plane.positions, rtol=0, atol=1e-14)  # rounding
    found = in_space.acceleration[:, about_z]
    # rounding, times the condition of the inertia
    torch.testing.assert_close(found, in_plane.acceleration, rtol=1e-9, atol=0)


@pytest.mark.parametrize("space", [False, True])
def test_pinocchio_agrees(space):
    """Let another library find accelerations of unlike bodies at random states."""
    pin = pytest.importorskip("pinocchio", reason="a check against another library, `pip install pin`")
    chain = cable(6, space, diameter=[3e-3 + 1e-3 * k for k in range(7)])
    model = pinocchio_model(pin, chain)
    data = model.createData()
    q, velocity, torque = random_motion(chain, 5, seed=3)
    state = chain.initial_state(q=q, velocity=velocity)
    ours = chain.forward_dynamics(state, Control(force=torque))
    springs = chain.dynamics().springs(q.t()[:, None], velocity.t()[:, None])[:, 0].t()
    for k in range(5):
        theirs = pin.aba(model, data, q[k].numpy(), velocity[k].numpy(), (torque - springs)[k].numpy())
        # rounding, times the condition of the inertia
        np.testing.assert_allclose(ours[k], theirs, rtol=0, atol=1e-9 * np.abs(theirs).max())


def pinocchio_model(pin, chain):
    """Return the same chain as a model of pinocchio."""
    model = pin.Model()
    kinds = {0: pin.JointModelRX, 1: pin.JointModelRY, 2: pin.JointModelRZ}
    axes = [2] + [2, 1, 0] * (chain.n_bodies - 1) if chain.space else [2] * chain.n_bodies
    turned = np.array([[1.0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]])
    place = pin.SE3(turned, chain.base.numpy())
    parent = body = 0
    for k, axis in enumerate(axes):
        parent = model.addJoint(parent, kinds[axis](), place, f"joint{k}")
        place = pin.SE3.Identity()
        if axis == axes[-1] or k == 0:  # the last joint of a body carries it
            about = [getattr(chain, f"inertia_{x}")[body].item() if x in chain.axes else 0.0 for x in "xyz"]
            centre = np.array([chain.centre[body].item(), 0.0, 0.0])
            inertia = pin.Inertia(chain.mass[body].item(), centre, np.diag(about))
            model.appendBodyToJoint(parent, inertia, pin.SE3.Identity())
            place = pin.SE3(np.eye(3), np.array([chain.length[body].item(), 0.0, 0.0]))
            body += 1
    return model


@pytest.mark.parametrize(
    ("bend", "nu", "percent"), [(0.2, 0.5, 0.5), (0.5, 0.5, 3.3), (1.0, 0.5, 15.7), (0.5, 0.3, 3.5), (1.0, 0.3, 16.6)]
)
def test_joints_are_stiffer_between_y_and_z(bend, nu, percent):
    """Hold the energy of a bend half-way between y and z, over that about z, to what the page tells."""
    chain = cable(1, space=True, youngs=1e9, shear=1e9 / (2 * (1 + nu)), gravity=(0.0, 0.0, 0.0))
    turned = rotation_of_vector(torch.tensor([0.0, bend, bend], dtype=torch.float64) / math.sqrt(2)).numpy()
    about_z, about_x = math.atan2(turned[1, 0], turned[0, 0]), math.atan2(turned[2, 1], turned[2, 2])
    between, alone = (
        chain.energies(chain.initial_state(q=[0.0, *angles]))["elastic"].item()
        for angles in ((about_z, -math.asin(turned[2, 0]), about_x), (bend, 0.0, 0.0))
    )
    # the page gives one digit behind the point
    assert 100 * (between / alone - 1) == pytest.approx(percent, abs=0.06)
