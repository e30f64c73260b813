"""Forces between neighbours: the same as any force that reaches one edge, with blocks of pairs."""

import numpy as np
import pytest
import torch

from torchdismech import Circle, Control, ImplicitEuler, InputError, Material, RobotBuilder, forces, unroll
from torchdismech.testing import check_force


class Web(forces.PairForce):
    """Springs and dampers that each end feels in its own way, of a stiffness of each robot."""

    per_robot = ("stiffness",)

    def __init__(self, stiffness=((3.0,), (5.0,))):
        super().__init__()
        self.register_buffer("stiffness", torch.tensor(stiffness, dtype=torch.float64))

    def pair_force(self, x, u):
        """Return the force on the second node of each pair (B, P, 3)."""
        along = x[:, :, 1] - x[:, :, 0]
        closing = (along * (u[:, :, 1] - 0.5 * u[:, :, 0])).sum(-1, keepdim=True)
        return -(self.stiffness[..., None] + closing) * along * torch.tanh(along.norm(dim=-1, keepdim=True))


class Same(forces.LocalForce):
    """The same force, by what a node's neighbours are."""

    per_robot = ("stiffness",)

    def __init__(self):
        super().__init__(reach=1)
        self.web = Web()
        self.register_buffer("stiffness", self.web.stiffness)

    def bind(self, body):
        """Learn the robot."""
        super().bind(body)
        self.web.bind(body)

    def nodal_force(self, state, control):
        """Return the force (B, N, 3)."""
        self.web.stiffness = self.stiffness
        return self.web.nodal_force(state, control)


def star(*loads):
    """Return three arms that meet at a node, which is held."""
    nodes = [(0, 0, 0), (0.05, 0, 0.01), (0.1, 0, 0.02), (-0.03, 0.04, 0), (-0.05, 0.09, 0), (-0.03, -0.05, -0.02)]
    builder = RobotBuilder()
    edges = [(0, 1), (1, 2), (0, 3), (3, 4), (0, 5)]
    builder.add_rods(np.array(nodes), edges, Circle(2e-3), Material(torch.tensor([[1e6], [2e6]]).double(), 1000.0))
    builder.clamp(nodes=[0])
    for load in loads:
        builder.add_force(load)
    return builder.finalize(compile=False)


def moving(model):
    """Return states of two robots off their rest, which move."""
    torch.manual_seed(0)
    start = model.initial_state(batch=2).detach()
    return start.replace(q=start.q + 5e-3 * torch.randn_like(start.q), velocity=torch.randn_like(start.velocity))


def test_derivatives_where_rods_meet():
    """Be what differences give, in each robot as if it were alone."""
    force = Web()
    model = star(force)
    check_force(force, model, moving(model)).raise_if_failed()


def test_steps_are_those_of_a_local_force():
    """Lead where a force with larger blocks leads, with the same gradients."""
    found = []
    for load in (Web(), Same()):
        model = star(load)
        start = moving(model)
        velocity = start.velocity.requires_grad_()
        run = unroll(model, start.replace(velocity=velocity), ImplicitEuler(2e-3), 3)
        found.append((run.q.detach(), run.iterations, torch.autograd.grad(run.q.square().sum(), velocity)[0]))
    (q, iterations, gradient), (expected, others, by) = found
    assert torch.equal(iterations, others)
    # both are solved to 1e-8 of the loads
    assert (q - expected).abs().max() < 1e-10 and (gradient - by).abs().max() < 1e-6 * by.abs().max()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # as a state is no tensor
@pytest.mark.parametrize("kind", ["as it is", "nodal_force", "forward of the object", "hook", "backward hook"])
def test_force_and_derivatives_come_from_one_evaluation(kind, monkeypatch):
    """Evaluate pairs once for both, with gradients if recorded; leave what users put around it as it is."""
    force, evaluations, pair_force = Web(), [], Web.pair_force
    state = moving(star(force))
    if kind == "nodal_force":
        monkeypatch.setattr(Web, "nodal_force", lambda *given: 2 * forces.PairForce.nodal_force(*given), raising=False)
    if kind == "forward of the object":
        force.forward = lambda *given: 2 * Web.forward(force, *given)
    if kind == "hook":
        force.register_forward_hook(lambda *given: 3 * given[-1])
    if kind == "backward hook":
        force.register_full_backward_pre_hook(lambda _, gradients: [3 * g for g in gradients])
    root = state.q.requires_grad_()
    state = state.replace(q=root + 0, velocity=state.velocity + 100 * root)
    alone, expected = force(state, Control()), force.derivatives(state, Control())
    monkeypatch.setattr(Web, "pair_force", lambda *given: evaluations.append(1) or pair_force(*given))
    value, derivatives = force.with_derivatives(state, Control())
    assert len(evaluations) == (1 if kind == "as it is" else 2) and torch.equal(value, alone)
    assert all(torch.equal(a, b) and not a.requires_grad for a, b in zip(derivatives[0], expected[0], strict=True))
    by_root, expected_by_root = (
        torch.autograd.grad(x.square().sum(), root, retain_graph=True)[0] for x in (value, alone)
    )
    assert (by_root - expected_by_root).abs().max() <= 1e-12 * by_root.abs().max()  # sums in another order
    with torch.no_grad():
        value, _ = force.with_derivatives(state, Control())
    assert torch.equal(value, alone) and not value.requires_grad


def test_another_shape_is_refused():
    """Say what was expected of `pair_force`."""

    class Wrong(Web):
        def pair_force(self, x, u):
            return super().pair_force(x, u)[:, 1:]

    with pytest.raises(InputError, match=r"Wrong.pair_force: expected the force of each pair, of shape \(B, P, 3\)"):
        star(Wrong())


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.filterwarnings("ignore:Error detected in")
@pytest.mark.parametrize("kind", [Web, Same])
def test_anomaly_mode(kind):
    """Build, step and differentiate within torch's anomaly mode: the same gradients, and NaN of a loss is named."""

    def gradient():
        model = star(kind())
        velocity = torch.full((2, model.n_dofs), 0.1, dtype=torch.float64, requires_grad=True)
        run = unroll(model, model.initial_state(velocity=velocity), ImplicitEuler(5e-3), 3)
        return torch.autograd.grad(run.positions.square().sum(), velocity)[0]

    expected = gradient()
    with torch.autograd.detect_anomaly():
        assert torch.equal(gradient(), expected)
        lost = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        with pytest.raises(RuntimeError, match="returned nan values"):
            (0 * lost.sqrt()).sum().backward()
