"""What cannot be compiled, and stays eager."""

import pytest
import torch

from tests.compilation.rods import after_evaluations, graphs, rod, stepped
from tests.elastic.test_user_terms import with_angle_springs
from torchdismech import ImplicitEuler, compilation, forces, trainable, unroll
from torchdismech.elastic import Energy


class Branching(Energy):
    """A quadratic energy with derivatives in closed form that torch.compile cannot trace: it looks at numbers."""

    closed_form = True

    def density(self, strain):
        """Return strain^2."""
        return strain[0] ** 2

    def derivatives(self, strain):
        """Return slopes and curvatures."""
        scale = 2.0 if float(strain[0].detach().sum()) < 1e9 else 1.0
        return [scale * strain[0]], [[torch.full_like(strain[0], scale)]]


def test_terms_without_closed_forms_stay_eager(monkeypatch, compiled, capsys):
    """Say once which terms keep a robot eager."""
    model = with_angle_springs(compile="auto")
    monkeypatch.setattr(compilation, "THRESHOLD", 0.0)
    stepped(model)
    said = capsys.readouterr().err
    assert said.count("torchdismech:") == 1 and "not compiled: derivatives of hinges come from autograd" in said
    assert compiled == [] and not model.compilation.active


def test_without_a_compiler_steps_stay_eager(monkeypatch, compiled, capsys):
    """Say once that there is no compiler."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(compilation, "THRESHOLD", 0.0)
    model = rod()
    assert torch.equal(stepped(model), stepped(rod(compile=False)))
    assert capsys.readouterr().err.count("$CXX = 'no-such-compiler' is not found") == 1
    assert compiled == [] and "no-such-compiler" in model.mechanics.why_eager()


def test_what_torch_cannot_compile_stays_eager(monkeypatch, traced, capsys):
    """Go on eagerly where torch.compile fails, in steps and in backward passes; raise where compiling is asked for."""
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        stepped(rod(energy=Branching(), compile=True))
    expected = stepped(rod(energy=Branching(), compile=False))
    model = rod(energy=Branching())
    after_evaluations(monkeypatch, model, 5)
    assert torch.equal(stepped(model), expected)
    said = capsys.readouterr().err
    assert said.count("torch.compile fails: ") == 1 and not model.compilation.active
    stepped(model)
    assert capsys.readouterr().err == ""


def test_backward_passes_fall_back(monkeypatch, traced):
    """Differentiate eagerly what torch.compile first fails with in the backward pass."""
    found = []
    for switch in (False, True):
        model = rod(energy=Branching())
        factor = trainable.scaled(model, ["bend_twist.EI1"])
        loss = unroll(model, model.initial_state(batch=2).detach(), ImplicitEuler(1e-2), 2).q[-1].square().sum()
        if switch:
            after_evaluations(monkeypatch, model, 1)
            model.compilation.consider(2, model.initial_state(batch=2).q, model.mechanics.why_eager)
            assert model.compilation.active
        found.append(torch.autograd.grad(loss, factor.log_factor)[0].item())
    assert found[1] == found[0] and "torch.compile fails" in model.compilation.refusal


def test_other_errors_are_raised(monkeypatch, compiled):
    """Hand on what a force of one's own raises, whatever runs compiled."""
    model = rod()
    after_evaluations(monkeypatch, model, 1)
    stepped(model)

    def broken(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(forces.Gravity, "forward", broken)
    with pytest.raises(RuntimeError, match="no such luck"):
        ImplicitEuler(1e-2).step(model, model.initial_state(batch=2))


class Breeze(forces.MassDamping):
    """A damping of one's own that looks at numbers, which compiled code cannot."""

    compiles = False

    def forward(self, state, control):
        """Return the damping."""
        return super().forward(state, control) * (1.0 if float(state.time.sum()) < 1e9 else 2.0)


def test_loads_that_do_not_compile_run_eagerly_around_compiled_kernels(traced):
    """Take steps with a force that says so as eager ones."""
    found = [stepped(rod(compile=compile, loads=[Breeze(0.3)])) for compile in (False, True)]
    assert torch.equal(*found) and graphs() > 0
