"""What forces without written derivatives depend on, on rods that are clamped in every way."""

import pytest
import torch

from tests.hooked import assert_matrix_is_derivative, moving
from torchdismech import Circle, Control, ImplicitEuler, ImplicitMidpoint, Material, RobotBuilder, Static, forces
from torchdismech.testing import check_force


class Damping(forces.Force):
    """A damping of all that moves."""

    def forward(self, state, control):
        """Return -c u, of nodes, angles and held tangents alike."""
        return -1e-3 * state.velocity


class Springs(forces.Force):
    """A spring on each dof."""

    def forward(self, state, control):
        """Return a force that saturates."""
        return -1e-2 * torch.tanh(3 * state.q)


class Untwisting(forces.Force):
    """Torques on the angles alone, those of what clamps hold among them."""

    def forward(self, state, control):
        """Return -k theta, weaker where the frame is turned far."""
        first, torque = 3 * state.n_nodes, -1e-4 * torch.sin(state.twist)
        before, after = state.q.new_zeros(state.batch, first), state.q.new_zeros(state.batch, 3 * state.n_held)
        return torch.cat([before, torque, after], dim=1)


class Together(forces.Force):
    """A spring of every dof to all others, on what clamps hold, too."""

    def forward(self, state, control):
        """Return a pull towards the mean of all numbers."""
        return -1e-2 * (state.q - state.q.mean(1, keepdim=True))


CLAMPS = {
    "nodes": {"nodes": [0, 1]},
    "direction": {"nodes": [0], "direction": "rest"},
    "middle": {"nodes": [3], "direction": "rest"},
    "turning": {"nodes": [0], "direction": "rest", "twist": False},
}
FORCES = {Damping: 0, Springs: 0, Untwisting: 0, Together: None}


def clamped_rod(force, clamp, planar):
    """Return a rod of 7 nodes that is curved in its plane, or out of it, too."""
    x = torch.linspace(0, 0.1, 7, dtype=torch.float64)
    out = torch.zeros_like(x) if planar else 0.1 * x
    builder = RobotBuilder(planar=planar)
    builder.add_rod(torch.stack([x, out * x, 2 * x * x], dim=1), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(**CLAMPS[clamp])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(force)
    return builder.finalize(compile=False)


@pytest.mark.parametrize("planar", [False, True], ids=["space", "planar"])
@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("cls", FORCES, ids=lambda cls: cls.__name__)
def test_forces_on_angles_and_on_all_dofs_go_with_every_clamp(cls, clamp, planar):
    """Find the reach, have the derivatives of differences in force and matrix, and step."""
    force = cls()
    model = clamped_rod(force, clamp, planar)
    assert force.dependence.reach == FORCES[cls]
    state = moving(model)
    check_force(force, model, state).raise_if_failed()
    for integrator in (ImplicitEuler(0.005), ImplicitMidpoint(0.005), Static()):
        assert_matrix_is_derivative(integrator, model, state)
        if clamp != "turning" or not isinstance(integrator, Static):  # such a rod swings about its clamp's direction
            _, info = integrator.step(model, model.initial_state(batch=2))
            assert info.converged.all()


@pytest.mark.parametrize("cls", FORCES, ids=lambda cls: cls.__name__)
def test_force_and_derivatives_come_from_one_evaluation(cls, monkeypatch):
    """Evaluate a force once for both, with the bits of each found by itself, and with its gradients if recorded."""
    force, evaluations, forward = cls(), [], cls.forward
    model = clamped_rod(force, "nodes", False)
    state = moving(model)
    alone, expected = force(state, Control()).detach(), force.derivatives(state, Control())
    monkeypatch.setattr(cls, "forward", lambda *given: evaluations.append(1) or forward(*given))
    with torch.no_grad():
        value, derivatives = force.with_derivatives(state, Control())
    assert len(evaluations) == 1 and torch.equal(value, alone) and not value.requires_grad
    for found, own in zip(derivatives, expected, strict=True):
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(found, own, strict=True))
    # q and velocity both depend on the root, as in a step
    root = state.q.clone().requires_grad_()
    at_root = state.replace(q=root + 0, velocity=state.velocity + 100 * root)
    value, derivatives = force.with_derivatives(at_root, Control())
    assert len(evaluations) == 2 and torch.equal(value, force(at_root, Control()))
    again = force.derivatives(at_root, Control())
    for found, own in zip(derivatives, again, strict=True):
        assert all(
            a is b is None or (torch.equal(a, b) and not a.requires_grad) for a, b in zip(found, own, strict=True)
        )
    by_root = [
        torch.autograd.grad(x.square().sum(), root, retain_graph=True)[0] for x in (value, force(at_root, Control()))
    ]
    assert torch.equal(*by_root)
