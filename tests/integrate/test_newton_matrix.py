"""The Newton matrix is the derivative of the residual, in every integrator, with every force."""

import pytest
import torch

from tests import shells
from tests.contact.robots import ROBOTS
from tests.integrate.recordings import rods_on_cpu
from tests.networks import NETWORK
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    helix,
    magnetics,
)
from torchdismech.integrate import step
from torchdismech.integrate.equations import StepEquations

INTEGRATORS = {
    "euler": ImplicitEuler(0.02),
    "midpoint": ImplicitMidpoint(0.02),
    "newmark": Newmark(0.02, beta=0.3, gamma=0.6),
    "static": Static(),
}
FORCES = {
    "none": list,
    "loads": lambda: [
        forces.Gravity((0.3, 0, -9.81)),
        forces.Buoyancy((0, 0, -9.81), 300.0),
        forces.PointForce([3], (1, 2, 3)),
    ],
    "damping": lambda: [forces.Viscous(0.2), forces.MassDamping(3.0)],
    "resistive": lambda: [forces.Resistive(0.1, 1.0)],
    "quadratic": lambda: [forces.QuadraticResistive(0.5, 1.5, 1000.0)],
    "magnetic": lambda: [magnetics.Magnetic((3e4, 1e4, -2e4), magnetics.Rotating(0.5, 3.0))],
    "magnets": lambda: [
        forces.Gravity((0.3, 0, -9.81)),
        magnetics.Magnetic((3e4, 1e4, -2e4), magnetics.Dipole((2.0, 90.0, -1.0), (0.2, -0.1, 0.3))),
    ],
    "explicit": lambda: [forces.Resistive(0.1, 1.0, explicit=True)],
    "all": lambda: [forces.Gravity((0, 0, -9.81)), forces.Viscous(0.2), forces.QuadraticResistive(0.5, 1.5, 1000.0)],
}
SHELL_FORCES = {
    "loads": FORCES["loads"],
    "damping": FORCES["damping"],
    "fluid": lambda: [
        forces.Drag(100.0, 1.0),
        forces.Pressure(20.0),
        forces.Thrust(50.0, smoothing=1e-5, refill=0.3, explicit=False),
    ],
}
HELIX = helix((0, 0, 0), (0.05, 0, 0), (0, 0.1, 1), 4.0, 0.1, 8)


def robot(shape: str, loads):
    """Return a model of two robots of unlike stiffness and anisotropic section, partly clamped."""
    builder = RobotBuilder()
    youngs = torch.tensor([[1e6], [3e6]], dtype=torch.float64)
    section, material = Circle(1.6e-3), Material(youngs, 1000.0, 0.4)
    flat = {"EI1": youngs * 4e-3 * 2e-3**3 / 12, "EI2": youngs * 2e-3 * 4e-3**3 / 12}  # as that of a rectangle
    if shape == "rod":
        builder.add_rod(HELIX, section, material, stiffness=flat)
        builder.clamp(nodes=[0, 1])
    else:
        builder.add_rods(*NETWORK, section, material, stiffness=flat)
        builder.clamp(nodes=[2], axes="xz")
    for load in loads:
        builder.add_force(load)
    return builder.finalize()


def balance_far_from_the_start(integrator, model, far: float = 5.0, size: float = 6e-3):
    """Return the equations of a step that starts deformed and moving, and unknowns far from that start.

    Edges of rods turn by more than 90 degrees within the step and twist by several rad: the frames are transported a
    long way. Shells are taken less `far`: their triangles must not fold up. `size` [m] is how deformed all is.
    """
    generator = torch.Generator().manual_seed(3)

    def noise(scale):
        return scale * torch.randn(2, model.n_dofs, dtype=torch.float64, generator=generator)

    lengths = torch.cat([torch.full((3 * len(model.nodes),), size), torch.full((model.body.n_angles,), 0.5)])
    rest = model.initial_state().q
    state = model.initial_state(q=rest + noise(lengths), velocity=noise(lengths * 20))
    control = Control(
        natural_curvature=torch.full((2, len(model.springs), 2), 0.1, dtype=torch.float64),
        natural_hinge_angle=torch.full((2, len(model.hinges)), 0.2, dtype=torch.float64),
    )
    end = state.q + noise(far * lengths)
    start = model.start_step(state, control, pairs=model.contact.may_touch(state.q, end, end.new_full((2,), 0.01)))
    balance = StepEquations(model, integrator.scheme, start, state.q, getattr(integrator, "dt", 0.0))
    unknowns = end[:, model.unknowns.index]
    if not len(model.triangles) and far > 1:
        turned = (model.frames.tangents(balance.full(unknowns)) * state.tangent).sum(-1)
        assert turned.min() < 0.0  # some edge turned by more than 90 degrees
    return balance, unknowns


@pytest.mark.parametrize("shape", ["rod", "network"])
@pytest.mark.parametrize("loads", FORCES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_matrix_is_the_derivative_of_the_residual(integrator, loads, shape):
    """Match central differences of the residual."""
    check_matrix(*balance_far_from_the_start(INTEGRATORS[integrator], robot(shape, FORCES[loads]())))


@pytest.mark.parametrize("shape", ["hinge", "midedge", "hinge_rod", "midedge_rod"])
@pytest.mark.parametrize("loads", SHELL_FORCES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_matrix_of_shells(integrator, loads, shape):
    """Match central differences of the residual; mid-edge normals and joints have no inertia."""
    model = shells.robot(shape, SHELL_FORCES[loads](), relaxation_time=2e-3)
    if shape != "hinge":
        assert model.unknowns.algebraic.any()
    check_matrix(*balance_far_from_the_start(INTEGRATORS[integrator], model, far=0.5))


def test_matrix_of_a_continuum():
    """Match central differences where triangles stretch as a continuum."""
    model = shells.robot("midedge", SHELL_FORCES["damping"](), relaxation_time=2e-3, membrane="continuum")
    check_matrix(*balance_far_from_the_start(INTEGRATORS["midpoint"], model, far=0.5))


def check_matrix(balance, x) -> None:
    """Hold the matrix against central differences of the residual at x."""
    model = balance.model
    residual, values = balance.residual_and_matrix(x)
    matrix = model.solvers.of(len(x), balance.start.pairs).pattern.to_dense(values)
    assert torch.allclose(residual, balance.residual(x), rtol=1e-12, atol=1e-12 * residual.abs().max().item())
    columns = []
    for k in range(x.shape[1]):
        # steps of 1e-6 of an edge (30 mm) or of 1 rad: truncation 1e-12, rounding 1e-10 of the entries
        step = torch.zeros_like(x)
        step[:, k] = 1e-6 if model.unknowns.index[k] >= 3 * len(model.nodes) else 3e-8
        columns.append((balance.residual(x + step) - balance.residual(x - step)) / (2 * step[0, k]))
    differences = torch.stack(columns, dim=-1)
    scale = matrix.abs().amax((1, 2), keepdim=True)
    assert ((matrix - differences).abs() <= 1e-7 * scale).all()  # 2e-9 seen
    # small entries (twist) on their own scale, too: 3e-8 seen
    row_scale = differences.abs().amax(2, keepdim=True)
    assert ((matrix - differences).abs() <= 1e-6 * row_scale).all()


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("law", ["penalty", "barrier"])
@pytest.mark.parametrize("shape", ROBOTS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_matrix_of_contact(integrator, shape, law, rough):
    """Match central differences of the residual, most of the robot being in contact and sliding."""
    model = ROBOTS[shape](law, rough)
    balance, x = balance_far_from_the_start(INTEGRATORS[integrator], model, far=0.5, size=1e-3)
    report = touched(balance, x)
    assert min(report) > 3
    check_matrix(balance, x)


def touched(balance, x) -> list[int]:
    """Return how many contacts each robot has."""
    q = balance.full(x)
    state = balance.start.state.replace(q=q)
    forces = sum(((o(state, balance.start.control) != 0).sum(1) for o in balance.model.obstacles), x.new_zeros(2))
    if balance.start.pairs is not None:
        forces = forces + (balance.model.self_contacts.force(balance.start.pairs.listed, q, 0 * q) != 0).sum(1)
    return (forces / 3).tolist()


@pytest.mark.parametrize("shape", ["network", "magnets", "damped", "hinge", "midedge_rod", *ROBOTS])
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_potential(integrator, shape):
    """Have the residual as the gradient of the potential where loads have one and contact is smooth."""
    if shape in ROBOTS:
        model = ROBOTS[shape]("penalty", False)
    elif shape == "magnets":
        model = robot("network", FORCES["magnets"]())
    elif shape == "damped":
        model = robot("network", FORCES["damping"]())
    else:
        model = (robot if shape == "network" else shells.robot)(shape, FORCES["loads"]())
    far = 5.0 if shape in ("network", "magnets", "damped") else 0.5
    balance, x = balance_far_from_the_start(INTEGRATORS[integrator], model, far, 1e-3 if shape in ROBOTS else 6e-3)
    assert balance.has_potential
    residual = balance.residual(x)
    direction = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 1e-7
    slope = (balance.potential_at(x + direction) - balance.potential_at(x - direction)) / 2
    expected = (residual * direction).sum(1)
    assert torch.allclose(slope, expected, rtol=1e-5)  # rounding of a difference of energies: 1e-16 / 1e-7 relative


def test_a_search_down_the_potential_ends():
    """Judge steps by the residual again after a search that descends the potential, also one that raises."""
    model = robot("network", FORCES["loads"]())
    balance, x = balance_far_from_the_start(INTEGRATORS["static"], model, 0.5, 6e-3)
    assert balance.potential(x) is None
    with pytest.raises(KeyboardInterrupt), balance.descended():
        assert torch.equal(balance.potential(x), balance.potential_at(x))
        with balance.descended(False):
            assert balance.potential(x) is None
        assert balance.descending
        raise KeyboardInterrupt
    assert balance.potential(x) is None


def test_an_equilibrium_is_searched_for_down_the_potential(monkeypatch):
    """Descend while Newton's method searches, and no longer."""
    model, found, plain = rods_on_cpu(1), [], step.newton

    def newton(equations, *rest):
        found.append((equations, equations.descending))
        return plain(equations, *rest)

    monkeypatch.setattr(step, "newton", newton)
    Static().step(model, model.initial_state())
    assert found and all(descending and not equations.descending for equations, descending in found)


def test_no_potential_with_a_fluid():
    """Have none where a force changes within the step."""
    model = robot("rod", FORCES["resistive"]())
    balance, _ = balance_far_from_the_start(ImplicitEuler(0.02), model)
    assert not balance.has_potential
