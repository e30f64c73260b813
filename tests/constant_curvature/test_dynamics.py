"""Equations of motion against Lagrange's, statics and frequencies against closed forms, energy over time."""

import copy
import math

import numpy as np
import pytest
import torch

from tests.constant_curvature.arms import paper_arm, poses
from tests.rigid.chains import cable
from torchdismech import Control, rollout
from torchdismech.constant_curvature import ArmIntegrator, PneumaticArm, equilibrium
from torchdismech.errors import InputError, Status

MASSES = np.array([1.17, 0.54, 0.265])


def kinetic(arm, q, velocity):
    """Return the kinetic energy (B,) from the velocities of the Gauss points, by autograd along the motion."""
    gauss = len(arm._weights)
    _, moved = torch.func.jvp(lambda x: arm.posture(x).points[:, :, :gauss], (q,), (velocity,))
    return 0.5 * (arm.point_masses() * moved.square()).sum((0, 1, 2))


@pytest.mark.parametrize("bend", [0.0, 1e-6, 0.7, 2.0])
def test_bias_is_that_of_lagrange(bend):
    """Hold M and C v + G against derivatives of T - V by autograd."""
    arm = paper_arm(orientation=(0.2, 2.0, 0.3), disks=0)
    q, velocity = poses(1, bend)[0], poses(1, 3.0, seed=1)[0]
    dynamics = arm.dynamics(q[None], velocity[None])

    def lagrangian(q, v):
        return (kinetic(arm, q[None], v[None]) - arm.potential(q[None])["gravity"])[0]

    momentum = torch.func.grad(lagrangian, 1)
    mass = torch.func.jacfwd(momentum, 1)(q, velocity)
    bias = torch.func.jvp(lambda x: momentum(x, velocity), (q,), (velocity,))[1] - torch.func.grad(lagrangian)(
        q, velocity
    )
    assert (dynamics.mass[0] - mass).abs().max() < 1e-13 * mass.abs().max()
    assert (dynamics.bias[0] - bias).abs().max() < 1e-12 * (1 + bias.abs().max())


def test_mass_matrix_is_positive_definite():
    """Factor it at 10,000 random poses, the arm bent by up to half a turn a section."""
    arm = paper_arm(disks=0)
    q = poses(10_000, 1.2)
    mass = arm.mass_matrix(q)
    assert (mass - mass.mT).abs().max() < 1e-14
    assert bool((torch.linalg.cholesky_ex(mass)[1] == 0).all())


@pytest.mark.parametrize(
    ("bend", "by_three", "by_four"), [(0.75, 1e-3, 2.6e-6), (2.0, 2.2e-3, 4.3e-5), (3.0, 1.6e-2, 6.5e-4)]
)
def test_quadrature_converges(bend, by_three, by_four):
    """Hold what three and four points miss of the kinetic energy of any motion to what the docstring says.

    That is the largest eigenvalue of the error of the mass matrix by that of 20 points. The bounds are the figures of
    the docstring, rounded up; errors have to be at least two thirds of them, so that the figures stay true.
    """
    q = torch.tensor([[1.0, -0.5, -0.5] * 3], dtype=torch.float64)
    q = q * bend / paper_arm().shape(q)[0, :, 1:].norm(dim=-1).max()
    exact = paper_arm(quadrature=20).mass_matrix(q)[0]
    inverse = torch.linalg.inv(torch.linalg.cholesky(exact))
    errors = [inverse @ (paper_arm(quadrature=k).mass_matrix(q)[0] - exact) @ inverse.mT for k in (3, 4)]
    missed = [float(torch.linalg.eigvalsh(error).abs().max()) for error in errors]
    assert by_three / 1.5 < missed[0] < by_three and by_four / 1.5 < missed[1] < by_four


def test_hanging_arm_sags_by_its_weight():
    """Each section carries half of its own weight, as it is spread over its length, and all of those below."""
    arm = paper_arm(disks=0)
    q, status = equilibrium(arm, torch.zeros(1, 9, dtype=torch.float64))
    carried = MASSES / 2 + np.append(np.cumsum(MASSES[::-1])[::-1][1:], 0.0)
    assert status.item() == Status.CONVERGED
    assert np.allclose(q[0].numpy().reshape(3, 3), (9.81 * carried / (3 * 265.0))[:, None], rtol=1e-9)


def test_one_section_bends_as_its_springs_say():
    """Hold a weightless section's bend under unequal forces against 1.5 K r^2 a radian, without gravity."""
    arm = PneumaticArm([0.15], 0.5, 0.04, 265.0, gravity=(0.0, 0.0, 0.0))
    force = torch.tensor([[2.0, 0.0, -2.0]], dtype=torch.float64)
    q, _ = equilibrium(arm, torch.zeros(1, 3, dtype=torch.float64), force)
    bend = arm.shape(q)[0, 0, 1:]
    moment = -0.04 * torch.tensor([2.0 - 2.0 * math.cos(4 * math.pi / 3), -2.0 * math.sin(4 * math.pi / 3)])
    assert torch.allclose(bend, moment.double() / (1.5 * 265.0 * 0.04**2), rtol=1e-9)


def test_rest_without_length_is_none():
    """Pull the chambers of the last section together by more than they are long: that row is flagged, the other not."""
    force = torch.zeros(2, 9, dtype=torch.float64)
    force[1, 6:] = -1.1 * 265.0 * 0.15
    _, status = equilibrium(paper_arm(gravity=(0.0, 0.0, 0.0)), torch.zeros_like(force), force)
    assert status.tolist() == [Status.CONVERGED, Status.COLLAPSED]


def test_a_row_that_is_not_finite_takes_no_search(monkeypatch):
    """Look for rest beside a row of NaN: it is flagged, and the others take as many evaluations as without it."""
    arm, counts = paper_arm(), []
    dynamics = arm.dynamics

    def counted(q, velocity):
        counts[-1] += 1
        return dynamics(q, velocity)

    monkeypatch.setattr(arm, "dynamics", counted)
    for first in (0.0, math.nan):
        q = torch.zeros(3, 9, dtype=torch.float64)
        q[1, 0] = first
        counts.append(0)
        status = equilibrium(arm, q)[1]
    assert status.tolist() == [Status.CONVERGED, Status.NOT_FINITE, Status.CONVERGED]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("arm", "push"),
    [
        (paper_arm(orientation=(0.0, 2.5, 0.0)), 0.0),
        # a stiff section is pressed, whose rounding hides the weight of the soft one beyond it
        (PneumaticArm([0.15] * 2, [1.0, 0.02], 0.04, [1e6] * 3 + [20.0] * 3, orientation=(0.0, 1.0, 0.0)), 1e4),
    ],
)
def test_rest_in_single_precision_is_that_of_double(arm, push):
    """Find the same rest in either precision, also along chambers whose residual is within the rounding of others."""
    found = []
    for dtype in (torch.float64, torch.float32):
        force = torch.zeros(1, arm.n_dofs, dtype=dtype)
        force[:, :3] = push
        q, status = equilibrium(copy.deepcopy(arm).to(dtype), torch.zeros_like(force), force)
        assert status.item() == Status.CONVERGED
        found.append(q.double())
    # single precision resolves 1e-9 m of the 1e-2 m that chambers move by; by the residual alone it would be 5e-6 m off
    assert (found[0] - found[1]).abs().max() < 1e-7


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": torch.zeros(9, dtype=torch.float64)}, r": q: expected a tensor of shape \(B, 9\), got \(9,\)"),
        ({"q": torch.tensor(0.0)}, r": q: expected a tensor of shape \(B, 9\), got \(\)"),
        (
            {"q": torch.zeros(1, 9, dtype=torch.float32)},
            ": q: expected torch.float64, as the arm is, got torch.float32",
        ),
        ({"force": torch.zeros(3, 9, dtype=torch.float64)}, ": q, equilibrium: force: of 2, 3 robots"),
        ({"q": [[0.0] * 9]}, r": q: expected a tensor of shape \(B, 9\), got list"),
        ({"force": [0.0] * 9}, r": force: expected a tensor of shape \(B, 9\), got list"),
        ({"arm": cable(3)}, r" is for pneumatic arms \(PneumaticArm\), got RigidChain"),
        ({"iterations": 0}, ": iterations: expected a whole number from 1 up, got 0"),
    ],
)
def test_what_no_rest_can_be_sought_from_is_refused(changes, words):
    """Name what does not fit the arm."""
    with pytest.raises(InputError, match=f"equilibrium{words}"):
        equilibrium(**{"arm": paper_arm(), "q": torch.zeros(2, 9, dtype=torch.float64), **changes})


def test_small_oscillations_have_the_frequencies_of_the_eigenproblem():
    """Let the lowest mode of the hanging arm swing a period of the eigenproblem without damping: it comes back."""
    arm = paper_arm(disks=0, damping=0.0, quadrature=4)
    rest, _ = equilibrium(arm, torch.zeros(1, 9, dtype=torch.float64))
    stiffness = torch.func.jacfwd(lambda x: arm.dynamics(x[None], torch.zeros(1, 9).double()).bias[0])(rest[0])
    stiffness = stiffness + torch.diag(arm.stiffness.expand(9))
    mass = arm.mass_matrix(rest)[0]
    lower = torch.linalg.cholesky(mass)
    inner = torch.linalg.solve_triangular(lower, stiffness, upper=False)
    squares, modes = torch.linalg.eigh(torch.linalg.solve_triangular(lower, inner.mT, upper=False))
    modes = torch.linalg.solve_triangular(lower.mT, modes, upper=True)
    size = 1e-6
    period = 2 * math.pi / math.sqrt(squares[0])
    integrator = ArmIntegrator(period / 20, scheme="rk23")
    state = arm.initial_state(q=rest + size * modes[:, 0])
    for _ in range(20):
        state, _ = integrator.step(arm, state)
    # 160 steps of the third order in a period leave 2e-5 of the phase
    assert (state.q - rest - size * modes[:, 0]).norm() < 1e-4 * size * modes[:, 0].norm()


@pytest.mark.parametrize(("scheme", "order"), [("implicit", 1), ("rk23", 3)])
def test_energy_is_kept_as_well_as_the_order_says(scheme, order):
    """Measure the drift of energy without damping and contact over 20 ms, and how it shrinks with the step."""
    arm = paper_arm(disks=0, damping=0.0)
    drift = []
    for count in (40, 80) if scheme == "implicit" else (3, 6):
        state = arm.initial_state(q=poses(1, 0.5)[0])
        trajectory = rollout(arm, state, ArmIntegrator(0.02 / count, scheme=scheme), count)
        total = sum(trajectory.energies.values())[:, 0]
        drift.append(float((total - total[0]).abs().max() / total.abs().max()))
    assert math.log2(drift[0] / drift[1]) > order - 0.35, drift
    # .6 % in 80 steps of first order, 2.3e-6 in 6 of third
    assert drift[1] < (0.01 if scheme == "implicit" else 5e-6), drift


def energy_left(damping, scheme, dt, seconds):
    """Return what part (B,) is left of the energy of arms that were let go a centimetre off their rest."""
    arm = paper_arm(disks=0, damping=damping)
    rest, _ = equilibrium(arm, torch.full((1, 9), 0.01, dtype=torch.float64), torch.zeros(1, 9, dtype=torch.float64))
    off = torch.zeros(9, dtype=torch.float64)
    off[[3, 6]] = 0.01
    trajectory = rollout(arm, arm.initial_state(q=rest + off), ArmIntegrator(dt, scheme=scheme), round(seconds / dt))
    least = rollout(arm, arm.initial_state(q=rest), ArmIntegrator(dt), 1)
    total, lowest = (sum(run.energies.values()) for run in (trajectory, least))
    return ((total[-1] - lowest[0]) / (total[0] - lowest[0])).item()


def test_implicit_steps_damp_as_dampers_of_dt_times_the_stiffness():
    """Lose as much with larger dampers and a smaller step, and as RK23 with the integrator's share as dampers."""
    lost = 1 - energy_left(0.0, "implicit", 2e-3, 0.04)
    assert lost > 0.1
    # what else is of first order in dt: 2 and 3 %
    assert 1 - energy_left(265.0 * 1.5e-3, "implicit", 5e-4, 0.04) == pytest.approx(lost, rel=0.05)
    assert 1 - energy_left(265.0 * 2e-3, "rk23", 2e-3, 0.04) == pytest.approx(lost, rel=0.05)


def test_explicit_steps_keep_energy():
    """Keep it to some per cent without damping: semi-implicit Euler swings about it."""
    assert energy_left(0.0, "explicit", 1e-3, 0.2) == pytest.approx(1.0, abs=0.02)


def test_steps_converge_to_each_other():
    """Step the damped arm under a load by both schemes: the implicit one gets there at first order."""
    arm = paper_arm(disks=0)
    control = Control(force=torch.tensor([[0.0] * 3 + [20.0, 0.0, 0.0] * 2], dtype=torch.float64))

    def end(dt: float, scheme: str) -> torch.Tensor:
        state = arm.initial_state(q=torch.full((9,), 0.02, dtype=torch.float64))
        integrator = ArmIntegrator(dt, scheme=scheme)
        for _ in range(round(0.02 / dt)):
            state, info = integrator.step(arm, state, control)
            assert bool(info.converged.all())
        return state.positions[0, -1]

    exact = end(5e-4, "rk23")
    errors = [float((end(dt, "implicit") - exact).norm()) for dt in (2e-3, 1e-3)]
    # 3e-5 m with steps of 1 ms; of second order is a hundredth of that
    assert errors[1] < 1e-4 and errors[0] / errors[1] == pytest.approx(2.0, abs=0.1)


def test_five_chambers_move_as_three():
    """Give chambers of equal total stiffness to an arm of five a section: sections behave alike."""
    three = paper_arm(disks=0)
    five = PneumaticArm(
        [0.15] * 3, MASSES, 0.04, 265.0 * 3 / 5, 125.0 * 3 / 5, chambers=5, orientation=(0.0, math.pi, 0.0), disks=0
    )
    shape = torch.tensor([[0.01, 0.3, -0.2], [0.02, 0.1, 0.4], [0.0, -0.3, 0.2]], dtype=torch.float64)
    ends = []
    for arm in (three, five):
        q = (torch.linalg.pinv(arm.to_shapes()) @ shape.flatten()).expand(1, -1)
        state = arm.initial_state(q=q)
        for _ in range(10):
            state, _ = ArmIntegrator(2e-3).step(arm, state)
        ends.append(state.positions[0, -1])
    assert (ends[0] - ends[1]).norm() < 1e-12


def test_steps_of_arms_are_shown_in_a_line():
    """Print integrators and reports of steps of arms without their tensors."""
    arm, integrator = paper_arm(), ArmIntegrator(0.01)
    _, info = integrator.step(arm, arm.initial_state(batch=2))
    assert repr(integrator) == "ArmIntegrator(dt=0.01)"
    assert repr(info) == "ArmStepInfo(2 robots: 2 CONVERGED; 0 iterations on average, at most 0)"
