"""Energies and stencils that a user writes: a strain and a psi, nothing else."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, Static, forces, straight
from torchdismech.elastic import ElasticTerm, Energy, Stencil
from torchdismech.testing import check_energy, check_rigid_motion, check_stencil

RIBBON = Path(__file__).resolve().parents[2] / "examples" / "ribbon" / "ribbon.py"


@pytest.fixture(scope="module")
def ribbon():
    """Import the example."""
    spec = importlib.util.spec_from_file_location("ribbon", RIBBON)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sadowsky_energy(ribbon):
    """Pass the contract checks on both branches, and meet smoothly between them."""
    check_energy(ribbon.Sadowsky(2.0, 5.0), strains=3, size=1.5).raise_if_failed()
    energy = ribbon.Sadowsky(1.0, 0.0)
    near = [torch.tensor([[1.0 + s]], dtype=torch.float64) for s in (-1e-9, 1e-9)]
    tau, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    slopes = [energy.derivatives((kappa, zero, tau))[0] for kappa in near]
    # slopes change by curvature (about 4) times the distance of 2e-9
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*slopes, strict=True))


def test_twisted_ribbon(ribbon):
    """Answer a twist with 4 D angle / L, and the linear rod with GJ angle / L."""
    # 38 edges lie between the middles of the two clamped ones
    free = ribbon.LENGTH * 39 / 40
    angle = math.pi / 2
    torque, _ = ribbon.twisted(ribbon.ribbon(), angle)
    assert torque == pytest.approx(4 * ribbon.BENDING * angle / free, rel=1e-6)
    torque, _ = ribbon.twisted(ribbon.strip(), angle)
    ratio = ribbon.THICKNESS / ribbon.WIDTH
    torsion = ribbon.WIDTH * ribbon.THICKNESS**3 * (1 / 3 - 0.21 * ratio * (1 - ratio**4 / 12))
    shear = ribbon.YOUNGS / (2 * (1 + ribbon.POISSON))
    assert torque == pytest.approx(shear * torsion * angle / free, rel=1e-6)


def test_buckled_ribbon(ribbon):
    """Hold a buckled and twisted ribbon in an equilibrium that is not the linear rod's."""
    _, soft = ribbon.twisted(ribbon.ribbon(), math.pi, approach=0.1 * ribbon.LENGTH)
    _, rod = ribbon.twisted(ribbon.strip(), math.pi, approach=0.1 * ribbon.LENGTH)
    assert (soft - rod).norm(dim=-1).max() > 0.01 * ribbon.LENGTH


class PlaneAngle(Stencil):
    """Angle in the x-z plane at a node between two neighbours; variables: the components of the two edges."""

    def __init__(self, before, node, after):
        one = np.ones(len(node))
        edges = [(before, node), (node, after)]
        super().__init__(
            [[(3 * b + k, one), (3 * a + k, -one)] for a, b in edges for k in (0, 2)],
            ["angle"],
        )

    def strain(self, local, *constants):
        """Return the angle."""
        ex, ez, fx, fz = local
        return (torch.atan2(ex * fz - ez * fx, ex * fx + ez * fz),)


class Stiffening(Energy):
    """psi = k (angle^2 / 2 + angle^4)."""

    def density(self, strain):
        """Return the density of a spring that stiffens."""
        (angle,) = strain
        return 0.01 * (0.5 * angle**2 + angle**4)


def with_angle_springs(name="hinges", compile=False):
    """Return a rod with angle springs at each third node."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 13), Circle(2e-3), Material(1e6, 1000.0))
    node = np.array([3, 6, 9])
    builder.add_term(ElasticTerm(name, PlaneAngle(node - 1, node, node + 1), Stiffening(), torch.ones(3)))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0.1, -0.5)))
    return builder.finalize(compile=compile)


def test_own_stencil():
    """Use a stencil by its strain alone: derivatives, energy report and Newton matrix follow."""
    model = with_angle_springs()
    generator = torch.Generator().manual_seed(0)
    q = model.initial_state(batch=2).q
    q = q + 0.003 * torch.randn(q.shape, dtype=q.dtype, generator=generator)
    state = model.initial_state(q=q)
    check_stencil(model.term("hinges").stencil, state).raise_if_failed()
    assert (model.energies(state)["hinges"] > 0).all()
    start = model.start_step(state)
    _, values = model.force_and_stiffness(start, q, torch.zeros_like(q), state.time)
    matrix = model.pattern.to_dense(values)
    columns = []
    for dof in model.free_index.tolist():
        step = torch.zeros_like(q)
        step[:, dof] = 1e-7
        difference = model.elastic_force(start, q - step) - model.elastic_force(start, q + step)
        columns.append(difference[:, model.free_index] / 2e-7)
    differences = torch.stack(columns, -1)
    # central differences: rounding of forces of 1 N over 1e-7 m, against entries of 1e3 N/m
    assert (matrix - differences).abs().max() < 1e-6 * matrix.abs().max()
    with torch.no_grad():  # as steps are solved
        _, without_records = model.force_and_stiffness(start, q, torch.zeros_like(q), state.time)
    assert torch.equal(without_records, values)


def test_own_stencil_stiffens_the_rod():
    """Sag less with the springs than without."""
    tips = []
    for scale in (1.0, 0.0):
        model = with_angle_springs()
        model.term("hinges").measure *= scale
        state, _ = Static(load_steps=5).step(model, model.initial_state(), throw=True)
        tips.append(state.positions[0, -1, 2].item())
    assert tips[1] < tips[0] < 0


def test_names_are_unique():
    """Refuse a term whose name is taken."""
    with pytest.raises(InputError, match="stretch"):
        with_angle_springs(name="stretch")


def test_a_plane_strain_is_not_frame_indifferent():
    """Show in the report that an angle in the x-z plane changes when the robot is turned in space."""
    model = with_angle_springs()
    q = model.initial_state().q.clone()
    q[0, 2:39:3] = 0.1 * q[0, 0:39:3] ** 2
    report = check_rigid_motion(model, model.initial_state(q=q))
    assert {check.name: check.ok for check in report.checks}["hinges"] is False
    assert {check.name: check.ok for check in report.checks}["bend"] is True


@pytest.mark.slow
def test_compiling_leaves_autograd_terms_eager():
    """Name the terms that stay eager, and step all the same."""
    model = with_angle_springs(compile=True)
    assert model.uncompiled_terms() == ["hinges"]
    state, _ = ImplicitEuler(0.02).step(model, model.initial_state(), throw=True)
    eager = with_angle_springs()
    other, _ = ImplicitEuler(0.02).step(eager, eager.initial_state(), throw=True)
    assert (state.q - other.q).abs().max() < 1e-10
