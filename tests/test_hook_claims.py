"""What users' forces and energies claim of themselves, and what becomes of claims that do not hold."""

import pytest
import torch
from torch import nn

from tests.hooked import OwnDamping, moving, rod
from torchdismech import (
    ImplicitEuler,
    InputError,
    SimulationError,
    forces,
)
from torchdismech.elastic import Energy

# ---- what is refused ---------------------------------------------------------------------------------------------


class Constant(OwnDamping):
    """Damping that claims not to change within a step."""

    constant = True


class Detached(forces.Force):
    """A force that leaves torch on its way."""

    def forward(self, state, control):
        """Return a spring computed by NumPy."""
        return torch.as_tensor(-3.0 * state.q.detach().numpy())


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


class Half(forces.Force):
    """A force that says where its derivatives stand, and not what they are."""

    def forward(self, state, control):
        """Return nothing."""
        return torch.zeros_like(state.q)

    def blocks(self):
        """Return none."""
        return []


RATES = torch.full((8, 1), 0.1, dtype=torch.float64)


REFUSED = {
    "constant": (Constant, "constant = True, but changes with velocity"),
    "numpy": (Detached, "leaves torch"),
    "dropout": (Dropping, "dropout"),
    "reach": (FarReaching, "larger reach"),
    "shape": (WrongShape, r"expected shape \(B, n\)"),
    "per robot": (lambda: Hidden(RATES), r"per_robot; there is Hidden.rate \(8, 1\)"),
    "plain attribute": (lambda: Misnamed(RATES), "Misnamed.rate: named in per_robot, but it is neither"),
    "half": (Half, "there is no derivatives"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_force_that_breaks_its_claims_is_refused(name):
    """Refuse at finalize, by the force's name."""
    make, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        rod(make())


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


@pytest.mark.parametrize(("cls", "message"), [(WrongDensity, "WrongDensity"), (WrongHessian, "second derivatives")])
def test_an_energy_that_breaks_its_claims_is_refused(cls, message):
    """Refuse at finalize, by the energy's name."""
    with pytest.raises(InputError, match=message):
        rod(energy=cls())


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
