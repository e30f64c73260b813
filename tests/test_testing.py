"""The contract checks: they pass what is right and name what is wrong."""

import copy

import pytest
import torch

from torchdismech import Circle, InputError, Material, RobotBuilder, forces, helix
from torchdismech.elastic import Energy, LinearElastic
from torchdismech.testing import check_energy, check_force, check_rigid_motion, check_stencil

FORCES = {
    "gravity": lambda: forces.Gravity((0, 0, -9.81)),
    "buoyancy": lambda: forces.Buoyancy((0, 0, -9.81), 1000.0),
    "point": lambda: forces.PointForce([2, 3], (1, 0, 0)),
    "viscous": lambda: forces.Viscous(0.1),
    "damping": lambda: forces.MassDamping(2.0),
    "resistive": lambda: forces.Resistive(0.1, 1.0),
    "quadratic": lambda: forces.QuadraticResistive(0.5, 1.5, 1000.0),
    "explicit": lambda: forces.Resistive(0.1, 1.0, explicit=True),
}


def bent_robot(*loads):
    """Return a branched model with edges stored both ways, and a state of two robots, bent, twisted and moving."""
    builder = RobotBuilder()
    rod = builder.add_rod(helix((0, 0, 0), (0.05, 0, 0), (0, 0.1, 1), 4.0, 0.1, 7), Circle(2e-3), Material(1e6, 1e3))
    end = builder.nodes[rod[3]]
    builder.add_rods([end + [0.0, 0.03, 0.02], end], [[0, 1]], Circle(2e-3), Material(1e6, 1e3))
    for load in loads:
        builder.add_force(load)
    model = builder.finalize()
    generator = torch.Generator().manual_seed(2)
    rest = model.initial_state(batch=2)
    noise = torch.randn(2, 2, model.n_dofs, dtype=torch.float64, generator=generator)
    at = model.initial_state(q=rest.q + 0.004 * noise[0], velocity=noise[1])
    # anchors of the frames elsewhere: edges turn by up to 2 rad
    return model, at.replace(q=at.q + 0.03 * noise[1])


@pytest.mark.parametrize("name", ["stretch", "bend_twist"])
def test_stencils(name):
    """Pass the project's own stencils, far from the anchors of their frames."""
    model, state = bent_robot()
    check_stencil(model.term(name).stencil, state).raise_if_failed()


@pytest.mark.parametrize("name", FORCES)
def test_forces(name):
    """Pass the project's own forces."""
    force = FORCES[name]()
    model, state = bent_robot(force)
    check_force(force, model, state).raise_if_failed()


def test_energies_and_rigid_motion():
    """Pass linear elasticity, and a robot that is turned."""
    check_energy(LinearElastic({"a": 2.0, "b": 3.0}), strains=2).raise_if_failed()
    model, state = bent_robot()
    check_rigid_motion(model, model.frames.moved(model.initial_state(batch=2), state.q)).raise_if_failed()


class WrongSlope(LinearElastic):
    """Linear elasticity whose slope is 10 % off."""

    def derivatives(self, strain):
        """Return wrong first derivatives."""
        first, second = super().derivatives(strain)
        return [1.1 * f for f in first], second


class NotANumber(Energy):
    """Returns NaN for negative strains."""

    def density(self, strain):
        """Return sqrt of the strain."""
        return torch.sqrt(strain[0])


class ForgottenDerivative(forces.Viscous):
    """Viscous force that forgets its derivative."""

    def blocks(self):
        """Return none."""
        return []

    def derivatives(self, state, control):
        """Return none."""
        return []


class NotSymmetric(forces.Resistive):
    """Resistive force that claims to be symmetric."""

    symmetric = True


def test_a_wrong_energy_is_named():
    """Fail a wrong slope and a NaN, naming the check."""
    report = check_energy(WrongSlope({"a": 2.0}), strains=1)
    assert not report.ok
    assert "first derivatives" in str(report) and "FAILED" in str(report)
    with pytest.raises(AssertionError, match="first derivatives"):
        report.raise_if_failed()
    assert not check_energy(NotANumber(), strains=1).ok


@pytest.mark.parametrize("cls", [ForgottenDerivative, NotSymmetric])
def test_a_wrong_force_is_named(cls):
    """Refuse a missing derivative and a false claim of symmetry in a model, and show them in a report without."""
    force = cls(0.1) if cls is ForgottenDerivative else cls(0.1, 1.0)
    with pytest.raises(InputError, match=cls.__name__):
        bent_robot(copy.deepcopy(force))
    model, state = bent_robot()
    report = check_force(force, model, state)
    failed = {check.name for check in report.checks if not check.ok}
    assert failed == {"derivative by velocity"} or any("symmetric" in name for name in failed)
