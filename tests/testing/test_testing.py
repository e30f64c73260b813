"""The contract checks: they pass what is right and name what is wrong."""

import copy

import pytest
import torch

from torchdismech import Circle, InputError, Material, RobotBuilder, forces, helix
from torchdismech.elastic import Energy, LinearElastic
from torchdismech.testing import check_energy, check_force, check_rigid_motion, check_stencil, check_symmetry

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


def test_a_force_takes_the_precision_of_the_model():
    """Check a force that was given in double precision with a robot in single precision."""
    model, state = bent_robot()
    check_force(forces.PointForce([2], (0.0, 0.0, 1.0)), model.float(), state.to(torch.float32)).raise_if_failed()


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


@pytest.mark.parametrize("size", [0, -1.0, torch.nan])
def test_strains_of_no_size_are_refused(size):
    """Refuse zero, at which energies that are right at rest alone would pass, and what is no size."""
    with pytest.raises(InputError, match=f"check_energy: size: expected a finite number above 0, got {size!r}"):
        check_energy(WrongSlope({"a": 2.0}), strains=1, size=size)


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


class Together(forces.LocalForce):
    """A force away from the mean of all robots."""

    def nodal_force(self, state, control):
        """Return the force (B, N, 3) [N]."""
        return state.positions - state.positions.mean(0, keepdim=True)


class Rates(forces.LocalForce):
    """A damping by a rate of each robot."""

    per_robot = ("rate",)

    def __init__(self, rate):
        super().__init__(reach=0)
        self.register_buffer("rate", rate)

    def nodal_force(self, state, control):
        """Return the force (B, N, 3) [N]."""
        return -self.rate.unsqueeze(-1) * state.node_velocities


@pytest.mark.parametrize("batch", [1, 2])
def test_robots_that_are_alike_do_not_hide_a_force_between_them(batch):
    """Fail a force between robots at a state of robots that are alike, and at one of a single robot."""
    model, _ = bent_robot()
    report = check_force(Together(reach=0, explicit=True), model, model.initial_state(batch=batch))
    assert {check.name for check in report.checks if not check.ok} == {"each robot as if alone"}
    check_force(forces.Resistive(0.1, 1.0), model, model.initial_state(batch=batch)).raise_if_failed()


def test_forces_with_rates_of_each_robot_are_looked_at_alone():
    """Pass rates of two robots, and say what state they need where there are others."""
    model, state = bent_robot()
    rate = torch.tensor([[0.1], [0.3]], dtype=torch.float64)
    report = check_force(Rates(rate), model, state)
    report.raise_if_failed()
    assert "each robot as if alone" in str(report)
    with pytest.raises(InputError, match=r"Rates.rate is given for 2 robots, expected 3, .*initial_state.batch=2."):
        check_force(Rates(rate), model, model.initial_state(batch=3))


def test_symmetries_of_a_force_that_no_robot_has():
    """Check the symmetries of a force that is bound to the robot for that, and then its derivatives."""
    model, state = bent_robot()
    force = Rates(torch.tensor([[0.1], [0.3]], dtype=torch.float64))
    check_symmetry(force, model, state).raise_if_failed()
    check_force(force, model, state).raise_if_failed()


@pytest.mark.parametrize("check", [check_force, check_symmetry])
def test_states_of_other_robots_are_refused(check):
    """Name the field of a state that is of another robot, and constants of another number of robots."""
    model, state = bent_robot()
    short = RobotBuilder()
    short.add_rod(helix((0, 0, 0), (0.05, 0, 0), (0, 0.1, 1), 4.0, 0.1, 3), Circle(2e-3), Material(1e6, 1e3))
    with pytest.raises(InputError, match=r"State.q: this model has 31 dofs, got 11"):
        check(forces.Resistive(0.1, 1.0), model, short.finalize().initial_state())
    three = Rates(torch.tensor([[0.1], [0.3], [0.2]], dtype=torch.float64))
    with pytest.raises(InputError, match=r"Rates.rate is given for 3 robots, expected 2, .*initial_state.batch=3."):
        check(three, model, state)


def test_arguments_in_another_order_are_refused():
    """Name the argument that is of another kind, and the order."""
    model, state = bent_robot()
    force = forces.Gravity((0, 0, -9.81))
    with pytest.raises(InputError, match=r"check_force.force, model, state.: force: expected a Force, got Model"):
        check_force(model, force, state)
    with pytest.raises(InputError, match=r"check_force.force, model, state.: model: expected a Model, got State"):
        check_force(force, state, model)
    with pytest.raises(InputError, match=r"check_symmetry.force, model, state.: force: expected a Force, got Model"):
        check_symmetry(model, force, state)
    with pytest.raises(InputError, match=r"check_rigid_motion.model, state.: model: expected a Model, got State"):
        check_rigid_motion(state, model)
    with pytest.raises(InputError, match=r"check_stencil.stencil, state.: stencil: expected a Stencil, got State"):
        check_stencil(state, model.term("stretch").stencil)
    with pytest.raises(InputError, match=r"check_energy.energy, strains.: energy: expected an Energy, got int"):
        check_energy(2, LinearElastic({"a": 2.0, "b": 3.0}))
    with pytest.raises(InputError, match=r"check_energy: strains: expected a whole number from 1 up, got '2'"):
        check_energy(LinearElastic({"a": 2.0, "b": 3.0}), "2")
