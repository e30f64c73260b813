"""What users' forces and energies claim of themselves, and what becomes of claims that do not hold."""

import pytest
import torch
from torch import nn

from tests.hooked import OwnDamping, moving, rod
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    SimulationError,
    forces,
    straight,
)
from torchdismech.elastic import Energy


class Constant(OwnDamping):
    """Damping that claims not to change within a step."""

    constant = True


class Detached(forces.Force):
    """A force that leaves torch on its way."""

    def forward(self, state, control):
        """Return a spring computed by NumPy."""
        return torch.as_tensor(-3.0 * state.q.detach().numpy())


class Single(forces.Force):
    """A force in single precision."""

    def forward(self, state, control):
        """Return a damping force in float32."""
        return (-0.1 * state.velocity).float()


class Dropping(forces.LocalForce):
    """A force with dropout."""

    def __init__(self):
        super().__init__(reach=0)
        self.dropout = nn.Dropout(0.5)

    def nodal_force(self, state, control):
        """Return a damping force with dropout."""
        return self.dropout(-0.1 * state.node_velocities)


class FarReaching(forces.LocalForce):
    """A force between neighbours that claims a reach of zero."""

    def __init__(self):
        super().__init__(reach=0)

    def nodal_force(self, state, control):
        """Return differences of positions."""
        return -0.1 * state.positions.diff(dim=1, prepend=state.positions[:, :1])


class WrongShape(forces.Force):
    """A force on nodes where one on dofs is due."""

    def forward(self, state, control):
        """Return (B, N, 3)."""
        return -state.node_velocities


class Hidden(forces.Force):
    """A damping whose rates are one for each robot, without a word of it."""

    def __init__(self, rate):
        super().__init__()
        self.rate = nn.Parameter(rate)

    def forward(self, state, control):
        """Return the damping."""
        return self.body.on_nodes(-(self.rate * state.velocity[:, : 3 * state.n_nodes]).unflatten(1, (-1, 3)))


class Misnamed(Hidden):
    """... with the name, but a plain attribute."""

    per_robot = ("rate",)

    def __init__(self, rate):
        forces.Force.__init__(self)
        self.rate = rate


class Flat(Misnamed):
    """... with the name, but without a dimension beside that of the robots."""

    def __init__(self, rate):
        forces.Force.__init__(self)
        self.register_buffer("rate", rate)


class FlatStiffness(Energy):
    """An energy with a stiffness of each robot, without a dimension beside that of the robots."""

    per_robot = ("stiffness",)

    def __init__(self, stiffness):
        super().__init__()
        self.register_buffer("stiffness", stiffness)

    def density(self, strain):
        """Return k^2."""
        return self.stiffness * strain[0] ** 2


class AlongAxes(forces.LocalForce):
    """A damping by one rate, or one for each axis, of all robots or of each."""

    per_robot = ("rate",)

    def __init__(self, rate):
        super().__init__(reach=0)
        self.register_buffer("rate", rate)

    def nodal_force(self, state, control):
        """Return the force (B, N, 3) [N]."""
        rate = self.rate.unsqueeze(1) if self.rate.dim() > 1 else self.rate
        return -rate * state.node_velocities


class InPlane(forces.LocalForce):
    """A force on nodes with two components."""

    def nodal_force(self, state, control):
        """Return (B, N, 2)."""
        return -state.node_velocities[..., :2]


class Half(forces.Force):
    """A force that says where its derivatives stand, and not what they are."""

    def forward(self, state, control):
        """Return nothing."""
        return torch.zeros_like(state.q)

    def blocks(self):
        """Return none."""
        return []


class Miscounted(Half):
    """A force whose derivatives are more than the places for them."""

    def derivatives(self, state, control):
        """Return those of one place."""
        return [(None, None)]


RATES = torch.full((8, 1), 0.1, dtype=torch.float64)


REFUSED = {
    "constant": (Constant, "constant = True, but changes with velocity"),
    "numpy": (Detached, "leaves torch"),
    "dropout": (Dropping, "dropout"),
    "single precision": (Single, r"Single: expected numbers in torch.float64, as the model's, got torch.float32"),
    "reach": (FarReaching, "larger reach"),
    "shape": (WrongShape, r"expected shape \(B, n\)"),
    "per robot": (lambda: Hidden(RATES), r"per_robot; there is Hidden.rate \(8, 1\)"),
    "rows without columns": (lambda: Flat(RATES[:, 0]), r"of two dimensions .* Flat.rate \(8,\), .* be \(8, 1\)"),
    "rows as many as trials": (lambda: Flat(RATES[:3, 0]), r"of two dimensions .* Flat.rate \(3,\), .* be \(3, 1\)"),
    "two components": (InPlane, r"^InPlane.nodal_force: .* \(B, N, 3\) = \(3, 7, 3\), got \(3, 7, 2\)"),
    "plain attribute": (lambda: Misnamed(RATES), "Misnamed.rate: named in per_robot, but it is neither"),
    "half": (Half, "there is no derivatives"),
    "miscounted": (Miscounted, r"Miscounted: blocks\(\) has 0 places, derivatives\(\) fills 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_force_that_breaks_its_claims_is_refused(name):
    """Refuse at finalize, by the force's name."""
    make, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        rod(make())


@pytest.mark.parametrize("robots", [3, 5])
def test_an_energy_with_rows_without_columns_is_refused(robots):
    """Name the tensor, its shape and the one that it would have, also for as many robots as are tried."""
    with pytest.raises(InputError, match=rf"FlatStiffness.stiffness \({robots},\), which would be \({robots}, 1\)"):
        rod(energy=FlatStiffness(torch.full((robots,), 1e-3, dtype=torch.float64)))


def test_tensors_for_all_robots_may_be_named_as_those_of_single_robots():
    """Build with one number, with one for each axis, and with these of each robot."""
    for rate in (torch.tensor(0.1), torch.tensor([0.1, 0.2, 0.3]), torch.ones(5, 3)):
        rod(AlongAxes(rate.double()))


class WrongDensity(Energy):
    """A density summed over the springs."""

    def density(self, strain):
        """Return (B,)."""
        return (1e-3 * strain[0] ** 2).sum(0)


class WrongHessian(Energy):
    """A density in closed form with a wrong second derivative."""

    closed_form = True

    def density(self, strain):
        """Return k^4."""
        return 1e-4 * strain[0] ** 4 + 0 * strain[1]

    def derivatives(self, strain):
        """Return the right slope and a wrong curvature."""
        none = [None] * len(strain)
        zero = torch.zeros_like(strain[0])
        return [4e-4 * strain[0] ** 3, zero, zero], [[4e-4 * strain[0] ** 2, None, None], none, none]


class SingleDensity(Energy):
    """A density in single precision."""

    def density(self, strain):
        """Return k^2, rounded."""
        return 1e-3 * strain[0].float() ** 2


@pytest.mark.parametrize("method", ["add_energy", "replace_energy", "add_dissipation"])
def test_an_energy_in_another_dtype_is_refused(method):
    """Say of an energy what a force gets, also where it is added to one in the model's dtype."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.5, 0, 0), 6), Circle(5e-3), Material(1e6, 1000.0))
    getattr(builder, method)("bend_twist", SingleDensity())
    words = (
        r"SingleDensity \(bend_twist\): expected numbers in torch.float64, as the model's, got torch.float32; make its"
    )
    with pytest.raises(InputError, match=words):
        builder.finalize()


@pytest.mark.parametrize(("cls", "message"), [(WrongDensity, "WrongDensity"), (WrongHessian, "second derivatives")])
def test_an_energy_that_breaks_its_claims_is_refused(cls, message):
    """Refuse at finalize, by the energy's name."""
    with pytest.raises(InputError, match=message):
        rod(energy=cls())


class Rates(Energy):
    """A dissipation of the rates of curvature, linear and square."""

    def __init__(self, linear: float):
        super().__init__()
        self.linear = linear

    def density(self, strain):
        """Return both."""
        return self.linear * strain[0] + 1e-5 * (strain[0] ** 2 + strain[1] ** 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("linear", [1e-4, 0.0])
def test_a_dissipation_that_is_a_load_is_refused(linear, dtype):
    """Refuse one that is linear in the rates beside others, which acted as a load, and take it without that part."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.5, 0, 0), 6), Circle(5e-3), Material(1e6, 1000.0, relaxation_time=0.1))
    builder.add_dissipation("bend_twist", Rates(0.0))
    builder.add_dissipation("bend_twist", Rates(linear))
    if linear == 0:
        builder.finalize(dtype=dtype)
        return
    with pytest.raises(InputError, match=r"Rates \(bend_twist\): expected a dissipation whose slopes are 0 where no"):
        builder.finalize(dtype=dtype)


class Late(forces.LocalForce):
    """A force that is right at first and then, once it is told, not deterministic or of a larger reach."""

    def __init__(self):
        super().__init__(reach=0)
        self.fault = ""

    def nodal_force(self, state, control):
        """Return a spring with a fault."""
        x = state.positions
        if self.fault == "random":
            return -50.0 * (x - self.body.nodes) * torch.rand_like(x)
        if self.fault == "reach":
            return -3e4 * (x - x.flip(1))
        return -5.0 * (x - self.body.nodes)


@pytest.mark.parametrize(("fault", "message"), [("random", "two evaluations"), ("reach", "larger reach")])
def test_a_failed_step_names_the_hook(fault, message):
    """Say which force is wrong where a step fails with it: in a warning, and in the error that is asked for."""
    force = Late()
    model = rod(force, batch=7)
    state = moving(model, 7)
    force.fault = fault
    integrator = ImplicitEuler(0.02, max_iterations=6)
    with pytest.warns(RuntimeWarning, match=f"Late.*{message}"):
        _, info = integrator.step(model, state)
    assert not info.converged.all()
    with pytest.raises(SimulationError, match=f"Late.*{message}"):
        integrator.step(model, state, throw=True)


def test_gradients_by_a_wrong_matrix_are_refused():
    """Refuse a gradient where a step converged in spite of a matrix that lacks derivatives."""

    class Pulling(Late):
        """A weak spring to the other end."""

        def nodal_force(self, state, control):
            """Return it."""
            x = state.positions
            return -1e-3 * (x - x.flip(1)) if self.fault else torch.zeros_like(x)

    force = Pulling()
    model = rod(force)
    force.fault = "reach"
    start = moving(model)
    velocity = start.velocity.clone().requires_grad_()
    after, info = ImplicitEuler(0.02, max_iterations=200).step(model, start.replace(velocity=velocity))
    assert info.converged.all()
    with pytest.raises(InputError, match="Pulling.*larger reach"):
        after.q.sum().backward()


# ---- kinks, and roots at rest ------------------------------------------------------------------------------------
