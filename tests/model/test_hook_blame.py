"""What users' forces and energies are blamed for in steps: numbers that are not finite, kinks, and roots at rest."""

import pytest
import torch

from tests.hooked import moving, rod
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    Status,
    forces,
    straight,
)
from torchdismech.elastic import Energy, Plastic
from torchdismech.model.faults import what_is_wrong

# ---- numbers that are not finite -------------------------------------------------------------------------------------


class Odd(forces.LocalForce):
    """A force that is not finite at some states, or in some of its derivatives."""

    def __init__(self, kind=""):
        super().__init__(reach=0)
        self.kind = kind

    def nodal_force(self, state, control):
        """Return a spring, or something odd."""
        x, u = state.positions, state.node_velocities
        if self.kind == "nan":
            return x * float("nan")
        if self.kind == "one node":
            return torch.where(torch.arange(x.shape[1])[:, None] == 2, torch.inf, -x)
        if self.kind == "slope":
            return -torch.where(x == x, x, (x - x).sqrt())
        if self.kind == "late":
            return -x / (state.time < 0.012)[:, None, None].to(x)
        if self.kind == "wall":
            return 1e-6 * torch.log(x[..., 2:] - 1.0).expand_as(x)
        if self.kind == "direction":
            return -1e-3 * u / torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        return -5.0 * (x - self.body.nodes)


class OddEnergy(Energy):
    """A density that is not finite where one is asked for that."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def density(self, strain):
        """Return a number over zero, or a root of zero."""
        zero = strain[0] - strain[0]
        if self.kind == "nan":
            return zero / zero
        return zero.sqrt() if self.kind == "slope" else 1e-4 * strain[0] ** 4


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (lambda: rod(Odd("nan")), "Odd: its force on node 0 along x is nan, and so at every state that was tried"),
        (lambda: rod(Odd("one node")), "Odd: its force on node 2 along x is inf"),
        (lambda: rod(Odd("slope")), "Odd: its derivative by the position of node 0 along x is not finite"),
        (lambda: rod(energy=OddEnergy("nan")), r"OddEnergy \(bend_twist\): at stencil 0 its density is not finite"),
        (lambda: rod(energy=OddEnergy("slope")), r"OddEnergy \(bend_twist\): at stencil 0 its first derivatives are"),
    ],
    ids=["force", "one node", "slope", "density", "slope of a density"],
)
def test_what_is_never_finite_is_refused(odd, message):
    """Refuse at finalize, by name, and say where."""
    with pytest.raises(InputError, match=message):
        odd()


@pytest.mark.parametrize("kind", ["wall", "direction", "late"])
def test_what_is_finite_at_some_states_is_not_refused(kind):
    """Build robots below a wall, with a force that has no direction at rest, and with one that ends at a time."""
    rod(Odd(kind))


def test_numbers_that_are_not_finite_are_laid_to_the_force_that_gave_them():
    """Name the user's force where a step fails with it, from its start on and where it leads, and nothing else."""
    force = Odd()
    model = rod(forces.Gravity((0, 0, -9.81)), force, energy=OddEnergy(""))
    state = model.initial_state(batch=2)
    for _ in range(2):
        state, _ = ImplicitEuler(0.005).step(model, state, throw=True)
    for kind, said in (("nan", "force on node 0 along x is nan"), ("late", "force on node . along . is -?inf")):
        force.kind = kind
        cause = f"Odd: its {said}, where positions and velocities are finite; look in it"
        with pytest.warns(RuntimeWarning, match=cause) as heard:
            _, info = ImplicitEuler(0.005).step(model, state)
        assert info.status.tolist() == [Status.NOT_FINITE] * 2 and len(heard) == 1


def test_numbers_that_are_not_finite_are_laid_to_the_energy_that_gave_them():
    """Name a user's energy where a step fails with it."""
    energy = OddEnergy("")
    model = rod(Odd(), energy=energy)
    state = model.initial_state()
    energy.kind = "nan"
    with pytest.warns(RuntimeWarning, match=r"OddEnergy \(bend_twist\): at stencil 0 its density is not finite"):
        ImplicitEuler(0.005).step(model, state)


def test_numbers_that_a_control_sets_are_laid_to_no_hook():
    """Name the control, not forces and energies that are right, where a control is not finite, at rest, too."""
    model = rod(Odd(), energy=OddEnergy(""))
    state = model.initial_state()
    with pytest.warns(RuntimeWarning, match="Control.force of robot 0 at t = 0.005 s holds NaN") as heard:
        _, info = ImplicitEuler(0.005).step(model, state, Control(force=state.q * float("nan")))
    assert info.status.tolist() == [Status.NOT_FINITE] and len(heard) == 1


class Cubic(forces.LocalForce):
    """A spring without stiffness at rest."""

    conservative = True

    def __init__(self):
        super().__init__(reach=0)

    def nodal_force(self, state, control):
        """Return the cube of how far nodes are from their places."""
        return -1e3 * (state.positions - self.body.nodes) ** 3

    def potential(self, state, control):
        """Return its potential."""
        return 250.0 * (state.positions - self.body.nodes).pow(4).sum((1, 2))


def test_right_hooks_are_not_blamed_at_rest():
    """Find nothing wrong where derivatives are zero and differences are all truncation, also of the library's terms."""
    model = rod(Cubic(), energy=OddEnergy(""))
    rest = model.initial_state(batch=2)
    assert what_is_wrong([*model.forces, *model.terms], rest, Control(), rest.time == 0) is None


# ---- kinks, and roots at rest ----------------------------------------------------------------------------------------


class Kinked(Energy):
    """A density or a slope with a kink at rest, and with derivatives that are right but there."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def density(self, strain):
        """Return the density (springs, B) [J/m]."""
        if self.kind == "slope":
            return 1e-4 * torch.relu(strain[0]) ** 2
        if self.kind == "root":
            return 1e-4 * (strain[0] ** 2 + strain[1] ** 2).sqrt()
        return 1e-4 * (torch.relu(strain[0]) if self.kind == "density" else strain[0].abs())


def straight_rod(energy):
    """Return a rod whose strains are zero at rest."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(4e-3), Material(1e6, 1000.0))
    builder.add_energy("bend_twist", energy)
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    return builder.finalize(compile=False)


@pytest.mark.parametrize("kind", ["density", "abs", "slope"])
def test_kinks_of_energies_are_called_so(kind):
    """Speak of a kink where differences to the two sides disagree, and not of derivatives that are wrong."""
    model = straight_rod(Kinked(kind))
    rest = model.initial_state(batch=2)
    wrong = what_is_wrong([*model.forces, *model.terms], rest, Control(), rest.time == 0)
    assert wrong.startswith("Kinked (bend_twist): density() or its slope seems to have a kink at this state")


@pytest.mark.parametrize("limit", [0.2, 0.216, 0.319])
def test_yielding_is_no_kink_of_an_energy(limit):
    """Take a smooth energy beside a plastic law, whose limit is where the energy is tried."""

    class Quartic(Energy):
        def density(self, strain):
            return 1e-8 * sum(x * x for x in strain) ** 2

    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 11), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp([0], direction="rest")
    builder.add_inelastic("bend_twist", Plastic({"EI1": 2e-5, "EI2": 2e-5, "GJ": 0.0}, limit))
    builder.add_energy("bend_twist", Quartic())
    builder.finalize(compile=False)  # refuses what seems to have a kink


def test_kinks_of_forces_are_named():
    """Say so of a force that pushes back on one side of its place at rest alone."""

    class Wall(forces.LocalForce):
        def nodal_force(self, state, control):
            return torch.relu(self.body.nodes - state.positions)

    model = rod(Wall(reach=0))
    rest = model.initial_state(batch=2)
    wrong = what_is_wrong([*model.forces, *model.terms], rest, Control(), rest.time == 0)
    assert "Wall: its derivative by position" in wrong and r"forward() seems to have a kink at this state" in wrong


def test_derivatives_that_are_wrong_are_not_taken_for_a_kink():
    """Name derivatives of a smooth density that are not its own, at rest, too."""
    energy = OddEnergy("")
    model = straight_rod(energy)
    for state in (model.initial_state(batch=2), moving(model)):
        energy.density = lambda strain: 1e-3 * strain[0].detach() + 1e-3 * strain[0] ** 2
        wrong = what_is_wrong([*model.forces, *model.terms], state, Control(), state.time == 0)
        assert "derivatives are not those" in wrong and "kink" not in wrong


def test_energies_without_derivatives_at_rest_are_refused():
    """Refuse a root of strains that are zero at rest, by name."""
    with pytest.raises(
        InputError, match=r"Kinked .bend_twist.: at stencil 0 its first derivatives are not finite at res"
    ):
        straight_rod(Kinked("root"))


def test_states_that_hold_what_a_hook_gave_are_laid_to_it():
    """Name the energy where a run begins with accelerations that are NaN, not what made the state."""
    energy = OddEnergy("")
    model = straight_rod(energy)
    energy.kind = "slope"
    with pytest.warns(RuntimeWarning) as heard:
        ImplicitEuler(0.005).prepare(model, model.initial_state(batch=2), 1)
    told = [str(warning.message) for warning in heard if "acceleration" in str(warning.message)]
    assert len(told) == 1 and "OddEnergy (bend_twist): at stencil 0 its first derivatives are not finite" in told[0]
    assert "look at what made the state" not in told[0]
